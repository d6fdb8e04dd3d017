"""``solver.bound``: which bound it returns, and that no plan, executed step or policy has less than the value that it says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_reference import EveryPlan
from solver_strategies import Instance, instances, l40s, lognormal_workload

import solver
from solver import NonGenerationPhases, Objective, PlanningError, PlanningProblem
from solver.bounds.bound import Bound, LeastBound
from solver.bounds.schedules import ScheduleBound
from solver.model.acceptance import Acceptance
from solver.step.work import Learner, StepWork
from solver.timing.evaluate import admission_of

PHASES = NonGenerationPhases(prepare_s=0.02, learn_s=0.1, learner_gpus=3)
WEAK = Acceptance([0.45, 0.22])
SMALL = PlanningProblem(lognormal_workload(12, 4), solver.Cluster(2, 8, 2), l40s(), phases=PHASES)


def every_step(instance: Instance, phases: NonGenerationPhases) -> list[tuple[float, float]]:
    """Time and GPU-seconds of the step under every plan of a small instance."""
    rule = admission_of(instance.latency, None, instance.admission)
    plans = EveryPlan(instance.workload, instance.cluster, instance.latency, rule).plans
    return [(phases.step_time_s(t), phases.step_gpu_s(t, gpu_s)) for _, t, gpu_s in plans]


@given(
    st.booleans().flatmap(lambda refill: instances(refill=refill)),
    st.sampled_from([NonGenerationPhases(), PHASES]),
    st.sampled_from(["schedules", "plans"]),
    st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_no_plan_has_a_smaller_value_at_any_weight_and_under_any_limit(instance, phases, of, seed):
    problem = PlanningProblem(
        instance.workload, instance.cluster, instance.latency, phases=phases, admission=instance.admission
    )
    bound, steps = solver.bound(problem, of=of, lp_work=0), every_step(instance, phases)
    time_s, gpu_s = steps[seed % len(steps)]
    limits = [Objective(deadline_s=max(time_s, 1e-9)), Objective(budget_gpu_s=max(gpu_s, 1e-9))]
    for objective in [*map(Objective, (0.0, 0.3, 0.7, 1.0)), *limits]:
        least = min(objective.value(*step) for step in steps)
        assert bound.value(objective) <= least * (1 + 1e-9) + 1e-12
    generation_s = time_s - phases.seconds
    assert bound.shortest_s() <= generation_s * (1 + 1e-9) + 1e-9
    assert bound.gpu_seconds(generation_s * (1 + 1e-9) + 1e-9) <= gpu_s - phases.step_gpu_s(generation_s, 0.0) + 1e-9


def test_the_value_is_near_the_least_on_a_fine_curve_and_counts_phases() -> None:
    bound = solver.bound(SMALL)
    times = bound.shortest_s() * np.geomspace(1, 50, 4000)
    gpu_s = np.array([bound.gpu_seconds(t * (1 + 1e-9)) for t in times])
    for weight in (0.2, 0.7, 1.0):
        objective = Objective(weight)
        on_curve = objective.product(times + PHASES.seconds, gpu_s + PHASES.learner_gpus * (times + PHASES.seconds)).min()
        assert 0.97 * on_curve <= bound.value(objective) <= on_curve
    latest_s = 2 * bound.shortest_s()
    under_deadline = bound.value(Objective(deadline_s=latest_s + PHASES.seconds))
    assert bound.gpu_seconds(latest_s) < under_deadline <= bound.gpu_seconds(latest_s) + PHASES.step_gpu_s(latest_s, 0.0)
    assert bound.value(Objective(deadline_s=0.9 * bound.shortest_s())) == math.inf
    within = bound.value(Objective(budget_gpu_s=under_deadline + 1e-6))
    assert within <= latest_s + PHASES.seconds
    assert bound.value(Objective(budget_gpu_s=1e-3)) == math.inf


def test_what_is_given_says_what_is_bounded() -> None:
    """Plans cost most, then schedules, then schedules with drafts; the lengths may be given apart."""
    plain, drafted, plans = solver.bound(SMALL), solver.bound(SMALL, drafts=WEAK), solver.bound(SMALL, of="plans")
    time_s = 1.5 * plans.shortest_s()
    found = [(bound.gpu_seconds(time_s), bound.method(time_s)) for bound in (drafted, plain, plans)]
    assert [method for _, method in found] == ["with drafts", "configuration LP", "late opening"]
    assert found[0][0] < found[1][0] < found[2][0]
    longer = np.minimum(2 * SMALL.workload.response_tokens, 2048)
    other = solver.bound(replace(SMALL, workload=SMALL.workload.with_response_tokens(longer)))
    assert solver.bound(SMALL, lengths=longer).gpu_seconds(3 * time_s) == other.gpu_seconds(3 * time_s) > found[1][0]
    runs = [np.zeros(tokens, dtype=int) for tokens in SMALL.workload.remaining_tokens]
    assert found[0][0] <= solver.bound(SMALL, drafts=runs).gpu_seconds(time_s) <= found[1][0] * (1 + 1e-9)


def test_with_work_the_whole_step_is_bounded_with_any_learner_or_a_given_one() -> None:
    count = len(SMALL.workload)
    work = StepWork(np.full(count, 0.01), np.full(count, 0.05), SMALL.workload.prompt_of, gpus_per_actor=2)
    generation, any_learner = solver.bound(SMALL), solver.bound(SMALL, work=work)
    time_s = 2 * any_learner.shortest_s()
    assert any_learner.method(time_s) == "whole step"
    assert any_learner.shortest_s() > generation.shortest_s()
    assert any_learner.gpu_seconds(time_s) >= generation.gpu_seconds(time_s) + 2 * work.total_s * (1 - 1e-9)
    given = solver.bound(SMALL, work=work, learner=Learner(own=1, grows=False, streams=True, overlaps=True))
    assert given.gpu_seconds(time_s) >= generation.gpu_seconds(time_s) + 2 * work.total_s * (1 - 1e-9)
    drafted = solver.bound(SMALL, drafts=WEAK, work=work)
    assert drafted.gpu_seconds(time_s) < any_learner.gpu_seconds(time_s)
    assert drafted.value(Objective(0.7)) < any_learner.value(Objective(0.7))


def test_the_bound_of_plans_is_below_the_plan_and_near_it() -> None:
    for objective in (Objective(0.3), Objective(0.7), Objective(0.7, cost="usd")):
        problem = replace(SMALL, cluster=replace(SMALL.cluster, usd_per_gpu_hour=2.0), objective=objective)
        plan = solver.plan(problem)
        cost = plan.gpu_seconds if objective.cost == "gpu_s" else plan.cost_usd
        rate = problem.learner_rate(objective.cost)
        time_s = PHASES.step_time_s(plan.makespan_s)
        value = objective.value(time_s, cost + rate * time_s)
        assert 0.9 * value <= solver.bound(problem, of="plans").value(objective) <= value


def test_scenarios_are_bounded_in_the_mean() -> None:
    """No plan over scenarios has a smaller value; equal scenarios have about the bound of their lengths."""
    work, rng = SMALL.workload, np.random.default_rng(1)
    lengths = np.clip(work.response_tokens * rng.lognormal(0, 0.4, (4, len(work))), 1, 2048)
    uncertain = solver.Workload(work.prompt_tokens, work.prompt_of, lengths, max_response_tokens=2048)
    problem = replace(SMALL, workload=uncertain, phases=NonGenerationPhases())
    bound, plan = solver.bound(problem, of="plans"), solver.plan(problem)
    assert bound.shortest_s() <= plan.makespan_s
    assert 0.5 * plan.gpu_seconds <= bound.gpu_seconds(plan.makespan_s) <= plan.gpu_seconds
    taken = solver.evaluate(plan, problem)
    value = Objective(0.7).value_over(taken.makespans_s, taken.gpu_seconds_of)
    assert 0.5 * value <= bound.value(Objective(0.7)) <= value


class _Line(Bound):
    """A bound with little in it."""

    def __init__(self, cost: float, least_s: float) -> None:
        self.length, self.ready_s = np.ones(3), 0.0
        self._cost, self._least_s = cost, least_s

    def gpu_seconds(self, time_s: float) -> float:
        return self._cost if time_s >= self._least_s else math.inf

    def method(self, time_s: float) -> str:
        return f"line at {self._cost:g}"


def test_the_least_of_several_bounds_is_at_every_time_the_least() -> None:
    least = LeastBound([_Line(5.0, 1.0), _Line(3.0, 4.0)])
    assert [least.gpu_seconds(t) for t in (0.5, 1.0, 3.9, 4.0)] == [math.inf, 5.0, 5.0, 3.0]
    assert [least.method(t) for t in (1.0, 4.0)] == ["line at 5", "line at 3"]
    assert least.shortest_s() == pytest.approx(1.0)
    assert least.least_time_s(4.0) == pytest.approx(4.0)
    assert least.least_time_s(2.0) == math.inf
    for weight in (0.0, 0.5, 1.0):
        values = [one.value(Objective(weight)) for one in least.bounds]
        assert least.value(Objective(weight)) == min(values)
    assert "line at 5" in repr(least)


def test_with_passes_no_bound_counts_a_token_per_pass() -> None:
    """Passes of 2.5 tokens take 2.3 s where the bound of one token per pass is longer, so it is refused."""
    workload = solver.Workload([10] * 4, range(4), [100, 200, 300, 400], passes=[40, 80, 120, 160])
    latency = solver.LatencyModel("mine", 1, base_s=0.01, per_response_s=1e-3, max_batch=64)
    problem = PlanningProblem(workload, solver.Cluster(1, 2, 1), latency)
    with refused(PlanningError, "drafts=", "passes"):
        solver.bound(problem)
    plan_s = solver.random_split(problem, actors=2).makespan_s
    assert solver.bound(problem, drafts=Acceptance([0.9, 0.8, 0.7])).shortest_s() <= plan_s
    assert solver.bound(problem, of="plans").shortest_s() <= plan_s


WRONG: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "dollars": (lambda: solver.bound(SMALL).value(Objective(cost="usd")), ("dollars", "gpu_s")),
    "objective": (lambda: solver.bound(SMALL).value(0.7), ("objective", "0.7")),
    "drafts of plans": (lambda: solver.bound(SMALL, of="plans", drafts=WEAK), ("drafts", "plans")),
    "learner": (lambda: solver.bound(SMALL, learner=Learner()), ("learner", "work")),
    "lengths": (lambda: solver.bound(SMALL, lengths=[1, 2]), ("2",)),
    "generation": (lambda: ScheduleBound(SMALL.workload), ("Workload",)),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_one_sentence(case: str) -> None:
    make, named = WRONG[case]
    with refused(PlanningError, *named):
        make()
