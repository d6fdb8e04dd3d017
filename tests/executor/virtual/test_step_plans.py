"""Step plans on the virtual clock: the planned period, one holder of a GPU at a time, bytes of transfers, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless import plots
from rlhfless.executor import run_step_plan
from rlhfless.scheduling.published import LayoutProblem, colocated_plan, megatron_plan
from rlhfless.trace import Trace, held_gpu_seconds, read_trace, step_costs, step_metrics
from solver import Cluster, LatencyModel, Workload
from solver.layouts import Call, CallMemory, Layout, StepGeneration, StepPlan, dpo, grpo, missing_share, plan_step, ppo, remax
from solver.model.acceptance import Acceptance
from solver.model.errors import PlanningError
from solver.timing.drafted_latency import drafted

ALGORITHMS = {"ppo": ppo, "grpo": grpo, "remax": remax, "dpo": dpo}
STEPS = 14


class Costs:
    """Seconds of each call by the number of GPUs, with a random factor; whole bytes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def seconds(self, call: Call, layout: Layout) -> float:
        s = layout.strategy
        random = np.random.default_rng([self.seed, sum(map(ord, call.name)), s.dp, s.tp, s.pp]).uniform(0.5, 1.5)
        return float({"generate": 4.0, "inference": 1.0, "train": 5.0}[call.kind] * random / layout.mesh.gpus**0.7)

    def memory(self, call: Call, layout: Layout) -> CallMemory:
        return CallMemory(0.0, 1.0)

    def reallocate(self, role: str, source: Layout, destination: Layout) -> tuple[float, float]:
        near, far = missing_share(source, destination, 4)
        return float((near + 4 * far).max()) * 0.1, float(round((near + far).sum() * 1e9))


def made(name: str, seed: int = 0, planned: bool = False, nodes: int = 1) -> tuple[StepPlan, Cluster, dict[str, Any]]:
    """A plan, its cluster, and what it is run with."""
    rng = np.random.default_rng(seed)
    workload = Workload([20] * 4, np.repeat(np.arange(4), 4), rng.integers(20, 400, 16), max_response_tokens=500)
    latency = {tp: LatencyModel(f"tp{tp}", tp, base_s=4e-3 / tp**0.7, per_response_s=2e-4) for tp in (1, 2)}
    given_ = StepGeneration(workload, latency) if planned else None
    cluster = Cluster(nodes, 4, 1, "h100", usd_per_gpu_hour=3.6)
    plan = plan_step(ALGORITHMS[name](), cluster, Costs(seed), work=4_000, generation=given_)
    return plan, cluster, {"generation": given_} if planned else {"responses": workload}


def period_in(trace: Trace) -> float:
    """Mean seconds from a training's start to the next, over the last six of them: steps repeat after 1, 2 or 3."""
    starts = trace.spans[(trace.spans["call"] == "train_actor") & (trace.spans["phase"] == "learn")]["start_s"].to_numpy()
    return float(starts[-1] - starts[-7]) / 6


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(sorted(ALGORITHMS)), st.integers(0, 10_000), st.booleans(), st.sampled_from([1, 2]))
def test_steps_take_the_planned_period_and_a_gpu_has_one_holder(name: str, seed: int, planned: bool, nodes: int) -> None:
    plan, cluster, given_ = made(name, seed, planned and name != "dpo", nodes)
    executed = run_step_plan(plan, cluster, steps=STEPS, **given_)
    trace = executed.trace  # validation refuses two holders of a GPU at one time
    assert executed.period_s == pytest.approx(plan.period_s, abs=1e-9)
    if executed.periodic:
        assert period_in(trace) == pytest.approx(plan.period_s, abs=1e-9)
    sent = trace.spans[trace.spans["phase"] == "transfer"]
    assert sent["bytes"].sum() == STEPS * sum(call.reallocate_bytes for call in plan.calls)
    assert set(sent["from_actor"]) <= {call.name for call in plan.calls if call.kind == "train"}
    metrics = step_metrics(trace)
    assert metrics["gpu_seconds"].to_numpy() == pytest.approx(np.full(STEPS, plan.gpu_seconds))
    assert metrics["cost_usd"].to_numpy() == pytest.approx(np.full(STEPS, plan.gpu_seconds) * 1e-3)


@pytest.mark.parametrize("order", ["fifo", "longest path"])
def test_plans_of_published_ways_take_their_period_in_their_own_order(order: Any) -> None:
    _, cluster, given_ = made("ppo", nodes=2)
    for plan in (
        megatron_plan(LayoutProblem.of(ppo(), cluster, Costs(5), order=order)),
        colocated_plan(LayoutProblem.of(ppo(), cluster, Costs(5), order=order)),
    ):
        assert plan.order == order
        assert run_step_plan(plan, cluster, steps=3, **given_).period_s == pytest.approx(plan.period_s, abs=1e-9)


def test_every_call_has_allocations_of_its_own_on_its_mesh() -> None:
    plan, cluster, given_ = made("ppo", 2, nodes=2)
    trace = run_step_plan(plan, cluster, steps=3, **given_).trace
    calls = {call.name: call for call in plan.calls}
    for span in trace.spans[trace.spans["phase"] != "transfer"].itertuples():
        rows = trace.allocations[(trace.allocations["holder"] == span.holder) & (trace.allocations["step"] == span.step)]
        rows = rows[(rows["start_s"] == span.start_s) & (rows["end_s"] == span.end_s)]
        mesh = calls[span.call].layout.mesh
        assert sorted(gpu for ids in rows["gpu_ids"] for gpu in ids) == list(range(mesh.first, mesh.last))
        assert all(gpu // 4 == node for ids, node in zip(rows["gpu_ids"], rows["node"], strict=True) for gpu in ids)
    sending = trace.spans[trace.spans["phase"] == "transfer"]["start_s"]
    calling = trace.allocations[~trace.allocations["start_s"].isin(sending)]
    assert dict(zip(calling["holder"], calling["role"], strict=True)) == {
        "generate": "decode", "reward": "reward", "reference": "reference", "values": "critic", "train_critic": "critic",
        "train_actor": "learner",
    }  # fmt: skip


def test_a_call_that_runs_into_the_next_step_keeps_its_step() -> None:
    for seed in range(20):
        plan, cluster, given_ = made("ppo", seed)
        spans = run_step_plan(plan, cluster, steps=4, **given_).trace.spans
        ends = spans[spans["call"] == "train_critic"].groupby("step")["end_s"].max()
        begins = spans[spans["phase"] == "decode"].groupby("step")["start_s"].min()
        if (ends.to_numpy()[:-1] > begins.to_numpy()[1:] + 1e-6).all():
            return
    raise AssertionError("no plan has a training beside the next generation")


def test_actors_give_gpus_back_to_calls_that_do_not_wait() -> None:
    plan, cluster, given_ = made("ppo", 3, planned=True)
    trace = run_step_plan(plan, cluster, **given_).trace
    assert plan.generation is not None
    decoded = trace.allocations[(trace.allocations["role"] == "decode") & (trace.allocations["step"] == 0)]
    begins_s = decoded["start_s"].min()
    call = next(call for call in plan.calls if call.name == "generate")
    held = {gpu: row.end_s - row.start_s for row in decoded.itertuples() for gpu in row.gpu_ids if row.holder != "generate"}
    for gpu, release_s in enumerate(call.release_s, start=call.layout.mesh.first):
        assert held.get(gpu, 0.0) == pytest.approx(release_s, abs=1e-9)
    assert trace.rollouts[trace.rollouts["step"] == 0]["end_s"].max() - begins_s == pytest.approx(call.seconds, abs=1e-9)


def test_generation_with_drafts_is_planned_and_run_by_its_latency_model() -> None:
    plain, cluster, given_ = made("grpo", 1, planned=True)
    generation = given_["generation"]
    latency = {tp: drafted(model, Acceptance([0.5, 0.3])).affine for tp, model in generation.latency.items()}
    fast = replace(generation, latency=latency)
    plan = plan_step(grpo(), cluster, Costs(1), work=4_000, generation=fast)
    assert plan.period_s < plain.period_s
    assert run_step_plan(plan, cluster, generation=fast).period_s == pytest.approx(plan.period_s, abs=1e-9)


def test_true_lengths_may_differ_from_those_that_were_planned_for() -> None:
    plan, cluster, given_ = made("grpo", 1, planned=True)
    generation = given_["generation"]
    longer = replace(generation, workload=generation.workload.with_response_tokens(generation.workload.response_tokens + 90))
    executed = run_step_plan(plan, cluster, generation=longer)
    assert executed.period_s > plan.period_s
    assert executed.trace.rollouts["response_tokens"].mean() == longer.mean_tokens


def test_what_reads_traces_reads_these(tmp_path: Path) -> None:
    for planned in (True, False):
        plan, cluster, given_ = made("ppo", 4, planned)
        trace = run_step_plan(plan, cluster, steps=3, **given_).trace
        saved = read_trace(trace.save(tmp_path / str(planned)))
        assert len(saved.allocations) == len(trace.allocations)
        elastic = step_costs(saved).groupby("step")["elastic_gpu_s"].sum()
        assert elastic.to_numpy() == pytest.approx(step_metrics(saved)["gpu_seconds"].to_numpy())
        assert held_gpu_seconds(saved)["total"].sum() == pytest.approx(step_metrics(saved)["gpu_seconds"].sum())
        assert plots.plot_timeline(saved, step=1).data
        assert plots.plot_steps(saved).data
        assert plots.plot_step_fusion(saved, 1).data


def test_what_cannot_be_run_is_refused() -> None:
    plan, cluster, given_ = made("grpo")
    planned, _, with_generation = made("grpo", planned=True)
    for wrong, cluster_, more, sentence in (
        (plan, Cluster(2, 8, 1), given_, "was made for 4 GPUs in nodes of 4, but the cluster has 16 GPUs in nodes of 8"),
        (plan, 8, given_, "cluster is 8; a Cluster is needed"),
        ("plan", cluster, given_, "plan is 'plan'; a StepPlan"),
        (plan, cluster, {"steps": 0}, "steps is 0; a whole number of 1 or more is needed"),
        (plan, cluster, {"responses": [3]}, "responses is .3.; a Workload is needed"),
        (plan, cluster, with_generation, "generation is given, but the step plan takes its seconds from costs"),
        (planned, cluster, {}, "has generation plans of generate; give the generation that it was planned with"),
    ):
        with pytest.raises(PlanningError, match=sentence):
            run_step_plan(wrong, cluster_, **more)  # type: ignore[arg-type]
    with pytest.raises(PlanningError, match="a trace needs responses"):
        _ = run_step_plan(plan, cluster).trace
    own = with_generation["generation"]
    other = replace(own, latency={tp: own.latency[tp] for tp in own.latency if tp != planned.calls[0].layout.strategy.tp})
    with pytest.raises(PlanningError, match="but the generation has no latency model of it"):
        run_step_plan(planned, cluster, generation=other)
