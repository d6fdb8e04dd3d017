"""A plan depends on the problem and the seed, never on the clock or the process (``test_canonical_order``: nor on
the order of the rows)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from error_messages import refused
from planning_problems import facts, over_scenarios, several_kinds
from solver_strategies import l40s, lognormal_workload

import solver

SMALL = lognormal_workload(16, 4, seed=3)
SMALLEST = lognormal_workload(4, 3, seed=3)
SCENARIOS = over_scenarios(SMALL, 4)
FEW = solver.Cluster(1, 6, 2), l40s(max_batch=32)
ONE_KIND = solver.Cluster(2, 8, 2), l40s(max_batch=32)
MIXED = several_kinds(16)
REST = solver.NonGenerationPhases(prepare_s=1.0, learn_s=2.0, learner_gpus=2)
DEADLINE, COST = solver.Objective(deadline_s=18.0), solver.Objective(0.5, cost="usd")
TOGETHER = {"keep_together": True}
PROBLEMS = {
    "one kind": (SMALL, *ONE_KIND),
    "few items": (SMALLEST, *FEW),
    "together": (SMALL, *ONE_KIND, TOGETHER),
    "scenarios": (SCENARIOS, *ONE_KIND),
    "the worst scenarios": (SCENARIOS, *ONE_KIND, {"objective": solver.Objective(cvar_alpha=0.5)}),
    "a deadline": (SMALL, *ONE_KIND, {"objective": DEADLINE}),
    "a budget and the rest of the step": (
        SMALL,
        *ONE_KIND,
        {"objective": solver.Objective(budget_gpu_s=400.0), "phases": REST},
    ),
    "several kinds": (SMALL, *MIXED, {"objective": COST}),
    "several kinds, shared prefill": (SMALL, *MIXED, {"share_prefill": True}),
    "several kinds, a deadline over scenarios": (SCENARIOS, *MIXED, {"objective": DEADLINE}),
}


def planned(name: str, *, quick: bool = False) -> str:
    """The facts of a plan."""
    workload, cluster, latency, *options = PROBLEMS[name]
    return facts(
        solver.plan(solver.PlanningProblem(workload, cluster, latency, **(options[0] if options else {})), quick=quick)
    )


@contextmanager
def racing_clock() -> Iterator[None]:
    """A clock of which a thousand seconds pass at every look."""
    now = iter(range(0, 1 << 60, 1000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.perf_counter", lambda: float(next(now)))
        yield


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_same_problem_gives_the_same_plan_whatever_the_clock_shows(name, quick):
    first = planned(name, quick=quick)
    with racing_clock():
        assert planned(name, quick=quick) == first


def test_another_process_plans_the_same():
    names = ("few items", "scenarios", "several kinds")
    code = (
        "import sys; sys.path[:0] = ['tests/support', 'tests/solver/generation']\n"
        "from test_deterministic import planned\n"
        f"for name in {names}: print(planned(name))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [planned(name) for name in names]


@pytest.mark.parametrize("objective", [solver.Objective(deadline_s=3.0), solver.Objective(budget_gpu_s=5.0)])
@pytest.mark.parametrize("workload", [SMALL, SCENARIOS], ids=["lengths", "scenarios"])
@pytest.mark.parametrize("where", [ONE_KIND, MIXED], ids=["one kind", "several kinds"])
def test_a_refusal_says_the_same(where, workload, objective):
    problem = solver.PlanningProblem(workload, *where, objective)
    with refused(solver.PlanningError, "no plan found") as first:
        solver.plan(problem, quick=True)
    with racing_clock(), refused(solver.PlanningError, "no plan found") as again:
        solver.plan(problem, quick=True)
    assert str(again.value) == str(first.value)


@pytest.mark.parametrize("workload", [SMALL, SCENARIOS], ids=["lengths", "scenarios"])
@pytest.mark.parametrize("where", [ONE_KIND, MIXED], ids=["one kind", "several kinds"])
def test_a_front_does_not_depend_on_the_clock(workload, where):
    def front() -> tuple[list[str], list[float]]:
        found = solver.pareto_front(solver.PlanningProblem(workload, *where), points=8)
        return [facts(plan) for plan in found.plans], np.concatenate([found.bound_makespan_s, found.bound_cost]).tolist()

    first = front()
    with racing_clock():
        assert front() == first
