"""A simulated log with drafts: counts in the trace, the bound with drafts, faults, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from error_messages import refused
from test_simulate import LATENCY, SETTING, log

from rlhfless.engine import SimulatedEngine
from rlhfless.errors import InputError
from rlhfless.executor import run_step
from rlhfless.latency.effects import Effects, Outages
from rlhfless.scheduling import make_policy
from rlhfless.simulate import STRONG, WEAK, Comparison, DrawnDrafts, logged_steps, simulate
from rlhfless.trace import Trace, read_trace
from solver import PlanningError
from solver.model.acceptance import Acceptance

DRAFTED = replace(SETTING, drafts=DrawnDrafts(STRONG, seed=3))
POLICIES = ["static", "random", "spec", "spec+fold", "spec+critical", "spec-fixed-2"]


@pytest.fixture(scope="module")
def result() -> Comparison:
    return simulate(log(2), DRAFTED, POLICIES)


@pytest.mark.full
def test_comparisons_say_how_many_tokens_each_policy_drafts(result: Comparison) -> None:
    table = result.summary().set_index("policy")
    assert table["drafts"].to_dict() == {
        "static": "-", "random": "-", "spec": "adaptive", "spec+fold": "adaptive", "spec+critical": "critical",
        "spec-fixed-2": "2",
    }  # fmt: skip
    assert (table["bound_method"] == "with drafts").to_dict() == {name: name.startswith("spec") for name in POLICIES}
    assert table["speedup_vs_static"]["static"] == 1
    assert "drafts" not in simulate(log(1), SETTING, ["static"]).summary(False).columns


def test_no_policy_costs_less_than_its_bound(result: Comparison) -> None:
    assert (result.table["bound_gpu_seconds"] <= result.table["gpu_seconds"] * (1 + 1e-9)).all()
    with_drafts = result.table[result.table["policy"] == "spec"].set_index("step")
    without = {step.step: bound for step, bound in zip(result.logged, result.bounds, strict=True)}
    for step, row in with_drafts.iterrows():
        assert row["bound_gpu_seconds"] <= without[step].gpu_seconds(row["time_s"]) * (1 + 1e-9)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name.startswith("spec")])
def test_traces_count_passes_and_drafts(result: Comparison, policy: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    result.traces[policy].save(tmp_path / "trace")
    trace: Trace = read_trace(tmp_path / "trace")
    rows = trace.rollouts
    assert (rows["passes"] + rows["accepted_tokens"] == rows["response_tokens"]).all()
    assert (rows["accepted_tokens"] <= rows["drafted_tokens"]).all()
    assert rows["accepted_tokens"].sum() > 0
    decode = trace.spans[trace.spans["phase"] == "decode"]
    detail = [json.loads(text) for text in decode["detail"]]
    assert decode["tokens"].sum() == rows["response_tokens"].sum()
    assert sum(d["drafted"] for d in detail) == rows["drafted_tokens"].sum()
    assert sum(d["accepted"] for d in detail) == rows["accepted_tokens"].sum()
    assert sum(d["fed_tokens"] for d in detail) == rows["passes"].sum() + rows["drafted_tokens"].sum()
    assert {plan["drafting"]["length"] for plan in trace.plans} == {make_policy(policy).drafting.length}  # type: ignore[attr-defined]
    assert "passes" not in result.traces["random"].rollouts.columns


@pytest.mark.full
def test_drafts_are_the_same_under_every_policy_and_again(result: Comparison) -> None:
    again = simulate(log(2), DRAFTED, ["spec-fixed-2"])
    columns = ["step", "prompt_id", "sample", "passes", "drafted_tokens", "accepted_tokens"]
    assert again.traces["spec-fixed-2"].rollouts[columns].equals(result.traces["spec-fixed-2"].rollouts[columns])
    other = simulate(log(2), replace(SETTING, drafts=DrawnDrafts(STRONG, seed=4)), ["spec-fixed-2"])
    assert not other.traces["spec-fixed-2"].rollouts[columns].equals(again.traces["spec-fixed-2"].rollouts[columns])


@pytest.mark.full
def test_strong_drafts_save_time_and_drafts_without_a_chance_are_switched_off(result: Comparison) -> None:
    steps = result.table.groupby("policy")["time_s"].sum()
    assert steps["spec"] < steps["random"]
    never = simulate(log(2), replace(SETTING, drafts=DrawnDrafts(Acceptance([0.0] * 8))), ["random", "spec"]).table
    time_s = never.groupby("policy")["time_s"].sum()
    assert time_s["spec"] < 1.5 * time_s["random"]


def test_drafts_go_on_after_outages() -> None:
    setting = replace(SETTING, effects=Effects(outages=Outages(per_gpu_hour=600.0, down_s=0.2)), drafts=DrawnDrafts(WEAK))
    rows = simulate(log(1), setting, ["spec"]).traces["spec"].rollouts
    assert (rows["passes"] + rows["accepted_tokens"] == rows["response_tokens"]).all()


def test_drafts_that_nobody_says_are_accepted_are_refused() -> None:
    with refused(InputError, "'spec'", "--drafts"):
        simulate(log(1), SETTING, ["spec"])
    with refused(InputError, "drafts", "0.7"):
        replace(SETTING, drafts=0.7)


def test_engines_without_drafts_refuse_a_plan_with_them() -> None:
    [logged, *_] = logged_steps(log(1), max_response_tokens=600)
    plan = make_policy("spec").plan(*logged.inputs(DRAFTED))
    with refused(PlanningError, "'spec'", "SimulatedEngine"):
        run_step(plan, logged.requests(), SimulatedEngine, LATENCY, SETTING.cluster)
