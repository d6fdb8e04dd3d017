"""The trace of one executed step: its four tables and its plan, with the prompts of its requests."""

from __future__ import annotations

import numpy as np
import pytest
from executor_samples import plan_of, uniform_step

from rlhfless.engine import SimulatedEngine
from rlhfless.executor import Executor, StepRecord, run_step
from rlhfless.executor.step.step_trace import executed_with
from rlhfless.latency import load_profile
from rlhfless.trace import Trace, TraceError, read_trace, step_metrics
from rlhfless.trace.metrics.phase_costs import step_costs
from solver.model.cluster import Cluster, GpuPool, MixedCluster


def executed() -> StepRecord:
    step = uniform_step([5, 9, 7, 3])
    with Executor(SimulatedEngine, step.cluster, latency=step.latency) as executor:
        executor.run_name = "mine"
        return executor.run(plan_of([[0, 1], [2, 3]]), step.requests())


def test_a_record_is_a_trace_without_a_folder(tmp_path) -> None:
    record = executed()
    trace = record.trace
    assert isinstance(trace, Trace)
    assert (trace.runs, trace.steps) == (["mine"], [0])
    assert trace.rollouts["response_tokens"].tolist() == [5, 9, 7, 3]
    assert trace.rollouts["actor"].tolist() == ["actor-0", "actor-0", "actor-1", "actor-1"]
    assert trace.rollouts["prompt_tokens"].tolist() == [r.prompt_tokens for r in record.requests]
    assert trace.plans[0]["step"] == 0
    held = sum((row["end_s"] - row["start_s"]) * len(row["gpu_ids"]) for row in record.allocations)
    assert step_metrics(trace)["gpu_seconds"].tolist() == pytest.approx([held])
    again = read_trace(trace.save(tmp_path / "trace"))
    assert again.rollouts.equals(trace.rollouts)


def test_a_saved_trace_says_what_it_was_executed_with(tmp_path) -> None:
    """Cluster, profile, policy and clock are in its meta.json, so a reader assumes none of them."""
    step, latency = uniform_step([5, 9, 7, 3]), load_profile("cpu-tiny-qwen2")
    record = run_step(plan_of([[0, 1], [2, 3]]), step.requests(), SimulatedEngine, latency, step.cluster)
    trace = read_trace(record.trace.save(tmp_path / "trace"))
    said = {name: trace.meta[name] for name in ("profile", "policy", "clock", "charging", "device")}
    assert said == {
        "profile": "cpu-tiny-qwen2", "policy": record.plan.policy, "clock": "virtual", "charging": "profile", "device": None,
    }  # fmt: skip
    assert Cluster(**trace.meta["cluster"]) == step.cluster
    assert step_costs(trace)["time_s"].sum() > 0, "the serverful system has the cluster's GPUs"


def test_a_latency_model_of_ones_own_is_no_profile() -> None:
    assert "profile" not in executed().trace.meta


def test_with_several_kinds_of_actors_the_trace_names_the_policy_and_no_cluster() -> None:
    step = uniform_step([5])
    several = MixedCluster([GpuPool("cpu", 1, 2), GpuPool("l40s", 1, 2)])
    meta = executed_with(plan_of([[0]]), {("cpu", 1): step.latency}, several)
    assert meta == {"policy": plan_of([[0]]).policy}


def test_samples_of_a_prompt_are_counted() -> None:
    rollouts = executed().trace.rollouts
    prompts = np.array([str(p) for p in rollouts["prompt_id"]])
    for prompt in set(prompts):
        assert rollouts["sample"][prompts == prompt].tolist() == list(range((prompts == prompt).sum()))


def test_a_record_without_a_response_is_no_trace() -> None:
    with pytest.raises(TraceError):
        _ = StepRecord("run", 0, plan_of([[0]]), 0.0).trace
    step = uniform_step([4])
    assert run_step(plan_of([[0]]), step.requests(), SimulatedEngine, step.latency, step.cluster).trace.steps == [0]
