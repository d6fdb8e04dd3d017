"""Plans of whole steps: made from forecasts, executed as planned, above the bound, with levers that earn their place."""

from __future__ import annotations

import numpy as np
import pytest
from error_messages import refused
from whole_step_runs import visited_twice

import solver
from rlhfless.latency import load_profile
from rlhfless.simulate import STRONG, Aim, DrawnDrafts, SimulationConfig, WholeStep
from rlhfless.simulate.whole_steps.candidates import WholeStepCandidates, WholeStepPlan
from rlhfless.simulate.whole_steps.choice import choose
from solver import PlanningError
from solver.model.step_levers import DRAFTS, LEVERS, MEANINGS, SHARED_PREFILL, STREAMING
from solver.step.charges import Charges
from solver.step.work import Learner, TokenWork


@pytest.fixture(scope="module")
def step() -> WholeStep:
    logged = visited_twice(48, 5, 0.8, 900)
    costs = TokenWork(2e-4, 8e-4, charges=Charges.by_formula(4, 2, 0.1, 0.2, 0.1))
    profile = load_profile("l40s-qwen2.5-3b-tp2")
    return WholeStep(logged, SimulationConfig(solver.Cluster(1, 8, 2, kind="l40s"), profile, bound_work=0), costs)


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_a_plan_is_executed_as_its_totals_say_and_is_above_the_bound(step: WholeStep, weight: float) -> None:
    plan = step.plan(Aim(time_weight=weight)).plan
    time_s, gpu_s = step.execute(plan)
    record = step.record(plan)
    assert record.end_s == pytest.approx(time_s, rel=1e-9)
    assert sum(len(row["gpu_ids"]) * (row["end_s"] - row["start_s"]) for row in record.allocations) == pytest.approx(gpu_s)
    assert step.bound().gpu_seconds(time_s) <= gpu_s


def test_more_levers_are_never_planned_worse_and_aims_are_met(step: WholeStep) -> None:
    plain, every = step.plain(0.7, prefix_caching=False), step.plan(Aim(time_weight=0.7))
    assert not plain.plan.levers
    assert every.time_s**0.7 * every.gpu_seconds**0.3 <= plain.time_s**0.7 * plain.gpu_seconds**0.3
    cheap = step.plan(Aim(deadline_s=plain.time_s))
    assert cheap.time_s <= plain.time_s * 1.01
    assert cheap.gpu_seconds <= plain.gpu_seconds
    assert set(every.saves) == set(every.plan.levers)
    assert all(saved > 0 for saved in every.saves.values())
    assert len(every.lines()) >= len(every.plan.levers)
    assert set(MEANINGS) == set(LEVERS)


@pytest.mark.full
def test_drafts_are_a_lever(step: WholeStep) -> None:
    drafts = DrawnDrafts(STRONG)
    choice = step.plan(Aim(time_weight=1.0), drafts)
    assert DRAFTS in choice.plan.levers
    with_drafts, without = step.execute(choice.plan, drafts), step.execute(choice.without[DRAFTS])
    assert with_drafts[0] < without[0]
    assert step.bound(drafts).gpu_seconds(with_drafts[0]) <= with_drafts[1]
    assert step.bound(drafts).shortest_s() <= step.bound().shortest_s()


def test_a_lever_that_helps_on_some_scenarios_only_does_not_earn_its_place() -> None:
    plain = WholeStepPlan(None, Learner(), frozenset())  # type: ignore[arg-type]
    streamed = WholeStepPlan(None, Learner(streams=True), frozenset({STREAMING}))  # type: ignore[arg-type]
    costs = np.ones((2, 8))
    lucky = np.array([[1.0] * 8, [0.2, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1]])
    choice = choose(WholeStepCandidates((plain, streamed), lucky, costs), Aim(time_weight=1.0))
    assert choice.plan is plain
    assert STREAMING in choice.refused
    sure = np.array([[1.0] * 8, [0.9, 0.92] * 4])
    choice = choose(WholeStepCandidates((plain, streamed), sure, costs), Aim(time_weight=1.0))
    assert choice.plan is streamed
    assert choice.saves[STREAMING] == pytest.approx(0.09, abs=0.01)
    assert choice.without[STREAMING] is plain


def test_a_deadline_in_every_scenario_compares_two_plans_where_both_are_slow() -> None:
    plain = WholeStepPlan(None, Learner(), frozenset())  # type: ignore[arg-type]
    streamed = WholeStepPlan(None, Learner(streams=True), frozenset({STREAMING}))  # type: ignore[arg-type]
    other_s = np.array([1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0])
    found = WholeStepCandidates((plain, streamed), np.array([other_s, 0.99 * other_s]), np.array([[1.0] * 8, [0.8] * 8]))
    aim = Aim(deadline_s=other_s)
    assert choose(found, aim).plan is streamed
    assert aim.on(np.array([0, 4])).values(*(np.ones((1, 2)),) * 2).tolist() == [[1.0, 1.0]]
    assert aim.on(np.array([0, 1])).values(np.full((1, 2), 2.0), np.ones((1, 2)))[0, 0] > 1
    assert Aim(time_weight=0.5).on(np.array([0])) == Aim(time_weight=0.5)


def test_elastic_plain_with_prefix_caching_is_no_slower_and_uses_nothing_else(step: WholeStep) -> None:
    plain, cached = step.plain(0.7, prefix_caching=False), step.plain(0.7)
    assert cached.plan.levers == {SHARED_PREFILL}
    assert cached.plan.generation.plan.policy == plain.plan.generation.plan.policy == "random"
    assert cached.time_s**0.7 * cached.gpu_seconds**0.3 < plain.time_s**0.7 * plain.gpu_seconds**0.3


def test_an_aim_is_one_of_three_and_work_is_checked() -> None:
    with refused(PlanningError, "nothing is given"):
        Aim()
    with refused(PlanningError, "time_weight and deadline_s"):
        Aim(time_weight=0.5, deadline_s=1.0)
    with refused(PlanningError, "time_weight is 2.0"):
        Aim(time_weight=2.0)
    with refused(PlanningError, "deadline_s is 0.0"):
        Aim(deadline_s=0.0)
    with refused(PlanningError, "budget_gpu_s is [1.0, -1.0]"):
        Aim(budget_gpu_s=[1.0, -1.0])
    with refused(PlanningError, "unlock 'batch'"):
        TokenWork(1.0, 1.0, "batch")
    with refused(PlanningError, "prepare_per_token_s is -1.0"):
        TokenWork(-1.0, 1.0)
    with refused(PlanningError, "charges is 0.1"):
        TokenWork(1.0, 1.0, charges=0.1)  # type: ignore[arg-type]
    with refused(PlanningError, "own is -1"):
        Learner(-1)
