"""Tables of levers: what is left out, what is added, and how both agree with the executed plans."""

from __future__ import annotations

import math

import pytest

import rlhfless as rl
from rlhfless.simulate import WEAK, DrawnDrafts, WholeStep, lever_savings, lever_stages
from rlhfless.simulate.whole_steps.lever_tables import PLAIN, STAGES
from solver import Objective
from solver.step.charges import Charges
from solver.step.work import TokenWork

WEIGHT = 0.7


@pytest.fixture(scope="module")
def step() -> WholeStep:
    planned = rl.load("data/traces/arithmetic-grpo", 8, "l40s-qwen2.5-3b-tp2", verbose=False).plan()
    token_s = planned.setting.latency.prefill_per_token_s
    return WholeStep(planned.logged, planned.setting, TokenWork(token_s, 4 * token_s, charges=Charges.by_formula(4)))


def value(time_s: float, gpu_s: float) -> float:
    return math.exp(WEIGHT * math.log(time_s) + (1 - WEIGHT) * math.log(gpu_s))


@pytest.mark.full
def test_a_lever_saves_what_the_plan_without_it_takes_more(step: WholeStep) -> None:
    choice, table = step.plan(Objective(WEIGHT)), lever_savings(step, WEIGHT).set_index("lever")
    assert set(table.index[table["used"]]) == set(choice.plan.levers)
    assert choice.plan.levers, "a step where no lever pays says nothing"
    for lever in choice.plan.levers:
        other = value(*step.execute(choice.without[lever]))
        assert table.loc[lever, "saved"] == pytest.approx(1 - value(*step.execute(choice.plan)) / other)
        assert table.loc[lever, "expected"] == choice.saves[lever]
    assert (table.loc[~table["used"], ["expected", "saved"]] == 0).all(axis=None)


def test_stages_begin_with_elastic_plain_and_end_with_all_levers(step: WholeStep) -> None:
    drafts = DrawnDrafts(WEAK)
    table = lever_stages(step, WEIGHT, drafts)
    assert table["stage"].tolist() == [*(name for name in STAGES if name != "actor size and layouts"), "drafts"]
    plain, last = table.set_index("stage").loc[PLAIN], table.iloc[-2]
    assert (plain["time_s"], plain["gpu_s"]) == pytest.approx(
        step.execute(step.plain(Objective(WEIGHT), prefix_caching=False).plan)
    )
    assert (last["time_s"], last["gpu_s"]) == pytest.approx(step.execute(step.plan(Objective(WEIGHT)).plan))
    assert (table["bound_gpu_s"] <= table["gpu_s"] * (1 + 1e-9)).all()


def test_a_trace_has_the_step_and_its_time(step: WholeStep) -> None:
    plan = step.plain(Objective(WEIGHT)).plan
    trace = step.trace(plan)
    assert trace.steps == [step.logged.step]
    ends_s = trace.allocations["end_s"].max()
    assert ends_s == pytest.approx(step.execute(plan)[0])
