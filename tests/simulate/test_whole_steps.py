"""Plans of whole steps: made from forecasts, executed as planned, and above the bound."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from error_messages import refused
from whole_step_runs import visited_twice

import solver
from rlhfless.latency import load_profile
from rlhfless.simulate import STRONG, DrawnDrafts, SimulationConfig, WholeStep
from rlhfless.simulate.whole_steps.whole_step import StepVariant
from solver import Objective, PlanningError
from solver.model.step_levers import DRAFTS, LAYOUTS, LEVERS, MEANINGS, SHARED_PREFILL
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
    plan = step.plan(Objective(weight)).plan
    time_s, gpu_s = step.execute(plan)
    record = step.record(plan)
    assert record.end_s == pytest.approx(time_s, rel=1e-9)
    assert sum(len(row["gpu_ids"]) * (row["end_s"] - row["start_s"]) for row in record.allocations) == pytest.approx(gpu_s)
    assert step.bound().gpu_seconds(time_s) <= gpu_s


def test_more_levers_are_never_planned_worse_and_limits_are_met(step: WholeStep) -> None:
    plain, every = step.plain(Objective(0.7), prefix_caching=False), step.plan(Objective(0.7))
    assert not plain.plan.levers
    assert every.time_s**0.7 * every.gpu_seconds**0.3 <= plain.time_s**0.7 * plain.gpu_seconds**0.3
    cheap = step.plan(Objective(deadline_s=plain.time_s))
    assert cheap.time_s <= plain.time_s * 1.01
    assert cheap.gpu_seconds <= plain.gpu_seconds
    assert set(every.saves) == set(every.plan.levers)
    assert all(saved > 0 for saved in every.saves.values())
    assert len(every.lines()) >= len(every.plan.levers)
    assert set(MEANINGS) == set(LEVERS)


@pytest.mark.full
def test_drafts_are_a_lever(step: WholeStep) -> None:
    drafts = DrawnDrafts(STRONG)
    choice = step.plan(Objective(1.0), drafts)
    assert DRAFTS in choice.plan.levers
    with_drafts, without = step.execute(choice.plan), step.execute(choice.without[DRAFTS])
    assert with_drafts[0] < without[0]
    assert step.bound(drafts).gpu_seconds(with_drafts[0]) <= with_drafts[1]
    assert step.bound(drafts).shortest_s() <= step.bound().shortest_s()


def test_a_limit_may_be_a_multiple_of_what_another_plan_takes_in_each_scenario(step: WholeStep) -> None:
    plain = step.plain(Objective(0.7))
    cheap = step.plan(Objective(deadline_s=0.9), relative_to=plain.times_s)
    assert cheap.time_s <= 0.9 * plain.time_s * 1.01
    fast = step.plan(Objective(budget_gpu_s=1.0), relative_to=plain.gpu_s)
    assert fast.time_s < plain.time_s
    assert fast.gpu_seconds <= plain.gpu_seconds * 1.01


def test_dollars_are_gpu_seconds_at_the_price_of_the_gpus(step: WholeStep) -> None:
    with refused(PlanningError, "budget_usd is 1, but the GPUs have no price"):
        step.plan(Objective(budget_usd=1.0))
    setting = step.own.setting
    priced = replace(setting, cluster=replace(setting.cluster, usd_per_gpu_hour=2.0))
    of_price = WholeStep(step.logged, priced, step.own.token_work)
    budget_gpu_s = step.plain(Objective(0.7)).gpu_seconds
    dollars, gpu_s = Objective(budget_usd=budget_gpu_s * 2 / 3600), Objective(budget_gpu_s=budget_gpu_s)
    assert of_price.plan(dollars).time_s == pytest.approx(of_price.plan(gpu_s).time_s)


def test_elastic_plain_with_prefix_caching_is_no_slower_and_uses_nothing_else(step: WholeStep) -> None:
    plain, cached = step.plain(Objective(0.7), prefix_caching=False), step.plain(Objective(0.7))
    assert cached.plan.levers == {SHARED_PREFILL}
    assert cached.plan.generation.plan.policy == plain.plan.generation.plan.policy == "random"
    assert cached.time_s**0.7 * cached.gpu_seconds**0.3 < plain.time_s**0.7 * plain.gpu_seconds**0.3


def test_levers_may_be_named_in_one_text(step: WholeStep) -> None:
    choice = step.plan(Objective(0.7), levers="overlap, learner size")
    assert choice.plan.levers == step.plan(Objective(0.7), levers=("learner size", "overlap")).plan.levers
    assert choice.plan.levers <= {"overlap", "learner size"}


def test_a_step_that_cannot_be_learned_from_on_all_gpus_is_refused(step: WholeStep) -> None:
    """Elastic plain learns on all of them, and every lever is compared with plans without it."""
    impossible = replace(step.own.token_work, charges=Charges((1.0, 1.0, 1.0, math.inf), (0.0,) * 4, (0.0,) * 4))
    with refused(PlanningError, "the charges allow no learner of 4 servers of 2 GPUs"):
        WholeStep(step.logged, step.own.setting, impossible)
    variant = StepVariant(step.own.setting, impossible, frozenset([LAYOUTS]))
    with refused(PlanningError, "give finite charges of 4 servers"):
        WholeStep(step.logged, step.own.setting, step.own.token_work, [variant])
    fewer = replace(impossible, charges=Charges((math.inf, 1.0, math.inf, 1.0), (0.0,) * 4, (0.0,) * 4))
    plan = WholeStep(step.logged, step.own.setting, fewer).plan(Objective(0.7)).plan
    assert plan.learner.servers(len(plan.generation.plan.actors)) in (2, 4)


def test_objectives_and_work_are_checked(step: WholeStep) -> None:
    with refused(PlanningError, "deadline_s and budget_gpu_s are given together"):
        Objective(deadline_s=1.0, budget_gpu_s=1.0)
    with refused(PlanningError, "time_weight is 2.0"):
        Objective(time_weight=2.0)
    with refused(PlanningError, "deadline_s is 0.0"):
        Objective(deadline_s=0.0)
    with refused(PlanningError, "budget_gpu_s is [1.0, -1.0]"):
        Objective(budget_gpu_s=[1.0, -1.0])  # type: ignore[arg-type]
    with refused(PlanningError, "objective is 0.7"):
        step.plan(0.7)  # type: ignore[arg-type]
    with refused(PlanningError, "cvar_alpha is 0.5, but a whole step is planned for the mean"):
        step.plan(Objective(cvar_alpha=0.5))
    with refused(PlanningError, "levers name 'folding'"):
        step.plan(Objective(0.7), levers=("folding",))
    with refused(PlanningError, "unlock 'batch'"):
        TokenWork(1.0, 1.0, "batch")
    with refused(PlanningError, "prepare_per_token_s is -1.0"):
        TokenWork(-1.0, 1.0)
    with refused(PlanningError, "charges is 0.1"):
        TokenWork(1.0, 1.0, charges=0.1)  # type: ignore[arg-type]
    with refused(PlanningError, "own is -1"):
        Learner(-1)
