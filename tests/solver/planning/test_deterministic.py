"""``deterministic=True``: a plan depends on what was asked and the seed, never on the clock or other work on the machine."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_brute_force import mixed_instances
from planning_problems import facts, over_scenarios, several_kinds
from solver_strategies import instances, l40s, lognormal_workload, pareto_front, plan_generation

import solver

SMALL = lognormal_workload(16, 4, seed=3)
SCENARIOS = over_scenarios(SMALL, 4)
ONE_KIND = solver.Cluster(2, 8, 2), l40s(max_batch=32)
MIXED = several_kinds(16)
REST = solver.NonGenerationPhases(prepare_s=1.0, learn_s=2.0, learner_gpus=2)
DEADLINE, COST = solver.Objective(deadline_s=18.0), solver.Objective(0.5, cost="usd")
TOGETHER = {"keep_together": True}
PROBLEMS = {
    "one kind": (SMALL, *ONE_KIND),
    "with a model": (SMALL, *ONE_KIND, {"time_limit_s": 0.4}),
    "together": (SMALL, *ONE_KIND, TOGETHER),
    "shared prefill": (SMALL, *ONE_KIND, {"share_prefill": True}),
    "scenarios": (SCENARIOS, *ONE_KIND),
    "the worst scenarios": (SCENARIOS, *ONE_KIND, {"objective": solver.Objective(cvar_alpha=0.5)}),
    "a deadline": (SMALL, *ONE_KIND, {"objective": DEADLINE}),
    "a deadline over scenarios": (SCENARIOS, *ONE_KIND, {"objective": DEADLINE}),
    "a budget and the rest of the step": (
        SMALL,
        *ONE_KIND,
        {"objective": solver.Objective(budget_gpu_s=400.0), "phases": REST},
    ),
    "several kinds, with a linear programme": (SMALL, *MIXED, {"objective": COST, "time_limit_s": 0.25}),
    "several kinds, hurried": (SMALL, *MIXED, {"time_limit_s": 0.05}),
    "several kinds, together": (SMALL, *MIXED, TOGETHER),
    "several kinds, shared prefill": (SMALL, *MIXED, {"share_prefill": True}),
    "several kinds over scenarios": (SCENARIOS, *MIXED, {"objective": COST}),
    "several kinds, a deadline": (SMALL, *MIXED, {"objective": DEADLINE}),
    "several kinds, a deadline over scenarios": (SCENARIOS, *MIXED, {"objective": DEADLINE}),
}
REFUSED = {
    "one kind": (SMALL, *ONE_KIND),
    "one kind over scenarios": (SCENARIOS, *ONE_KIND),
    "several kinds": (SMALL, *MIXED),
    "several kinds over scenarios": (SCENARIOS, *MIXED),
}


def planned(problem: tuple) -> str:
    """The facts of a plan, or the sentence that refuses it."""
    workload, cluster, latency, *options = problem
    asked = {**(options[0] if options else {})}
    search = {"time_limit_s": 0.1} | {name: asked.pop(name) for name in ("time_limit_s", "seed") if name in asked}
    try:
        plan = plan_generation(solver.PlanningProblem(workload, cluster, latency, **asked), **search)
    except solver.PlanningError as refusal:
        return str(refusal)
    assert plan.status != "stopped"
    return facts(plan)


@contextmanager
def busy() -> Iterator[None]:
    """Another thread that works as fast as it may."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def racing_clock() -> Iterator[None]:
    """A clock of which a thousand seconds pass at every look."""
    now = iter(range(0, 1 << 60, 1000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.perf_counter", lambda: float(next(now)))
        yield


@pytest.mark.parametrize("name", PROBLEMS)
def test_neither_the_clock_nor_other_work_changes_a_plan(name):
    problem = PROBLEMS[name]
    first = planned(problem)
    with busy():
        assert planned(problem) == first
    with racing_clock():
        assert planned(problem) == first
    assert first.startswith("{"), "not refused"


@pytest.mark.parametrize("objective", [solver.Objective(deadline_s=3.0), solver.Objective(budget_gpu_s=5.0)])
@pytest.mark.parametrize("name", REFUSED)
def test_nor_do_they_change_a_refusal(name, objective):
    problem = *REFUSED[name], {"objective": objective, "time_limit_s": 0.1}
    first = planned(problem)
    with racing_clock():
        assert planned(problem) == first
    assert "no plan found" in first


def test_more_slots_that_would_be_enough_are_found_without_a_clock():
    """A refusal looks for them by planning again and again, within a time limit of its own."""
    of_one, of_several = (
        r"the cause is an actor's 2 slots: with \d+ a plan",
        r"though one may exist: .* instead of 1 slots per actor",
    )
    one, several = (solver.Cluster(1, 8, 2), l40s(max_batch=2), 16.0), (*several_kinds(1), 10.0)
    for (cluster, models, deadline_s), says in ((one, of_one), (several, of_several)):
        problem = SMALL, cluster, models, {"objective": solver.Objective(deadline_s=deadline_s), "time_limit_s": 0.1}
        first = planned(problem)
        assert re.search(says, first)
        with racing_clock():
            assert planned(problem) == first


@given(instances(refill=True), mixed_instances(refill=True), st.integers(0, 3), st.sampled_from([1.0, 0.9]))
@settings(max_examples=10, deadline=None)
def test_small_problems_have_one_answer(one, several, seed, tightness):
    """Under a limit that some keep and some do not."""
    split = solver.random_split(solver.PlanningProblem(*one[:3], admission=one.admission))
    limit = solver.Objective(deadline_s=max(split.makespan_s * tightness, 1e-3))
    models = {(offer.kind, offer.gpus): offer.latency for offer in several.offers}
    for workload, cluster, latency, objective, admission in (
        (*one[:3], limit, one.admission),
        (*several[:2], models, solver.Objective(0.5), several.admission),
    ):
        options = {"objective": objective, "admission": admission, "seed": seed, "time_limit_s": 0.05}
        problem = workload, cluster, latency, options
        first = planned(problem)
        with racing_clock():
            assert planned(problem) == first


@pytest.mark.parametrize("workload", [SMALL, SCENARIOS], ids=["lengths", "scenarios"])
@pytest.mark.parametrize("where", [ONE_KIND, MIXED], ids=["one kind", "several kinds"])
def test_a_front_does_not_depend_on_the_clock(workload, where):
    def front() -> tuple[list[str], list[float]]:
        found = pareto_front(solver.PlanningProblem(workload, *where), points=8, time_limit_s=0.3)
        return [facts(plan) for plan in found.plans], np.concatenate([found.bound_makespan_s, found.bound_cost]).tolist()

    first = front()
    with racing_clock():
        assert front() == first


def test_one_kind_counts_the_same_work_whatever_the_limit_is_below_that_of_a_model():
    workload, cluster, latency = PROBLEMS["scenarios"]
    first, *others = (
        plan_generation(solver.PlanningProblem(workload, cluster, latency), time_limit_s=s) for s in (1e-9, 0.01, 0.19)
    )
    assert all(facts(other) == facts(first) for other in others)
    assert first.status != "stopped"


def test_the_clock_would_have_changed_that_plan():
    workload, cluster, latency = PROBLEMS["scenarios"]
    hurried = solver.plan_generation(solver.PlanningProblem(workload, cluster, latency), time_limit_s=1e-9)
    assert hurried.status == "stopped"
    assert facts(hurried) != facts(plan_generation(solver.PlanningProblem(workload, cluster, latency), time_limit_s=1e-9))


def test_several_kinds_count_more_work_under_a_longer_limit():
    """The limit is counted seconds: what is found never gets worse, and the bound never looser."""
    short, long = (plan_generation(solver.PlanningProblem(SMALL, *MIXED, COST), time_limit_s=s) for s in (1e-9, 0.4))
    assert long.value <= short.value
    assert long.lower_bound > short.lower_bound
    assert short.notes["stopped_by"] == "work"


def test_another_process_plans_the_same():
    code = (
        "import sys; sys.path[:0] = ['tests/support', 'tests/solver/planning']\n"
        "from test_deterministic import PROBLEMS, planned\n"
        "for name in ('with a model', 'several kinds, hurried'): print(planned(PROBLEMS[name]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [planned(PROBLEMS[name]) for name in ("with a model", "several kinds, hurried")]


@pytest.mark.parametrize("value", ["yes", 1, None])
@pytest.mark.parametrize("ask", [solver.plan_generation, solver.pareto_front])
def test_it_is_true_or_false(ask, value):
    with refused(solver.PlanningError, repr(value)):
        ask(solver.PlanningProblem(SMALL, *ONE_KIND), deterministic=value)
