"""The trace of one executed step: its four tables and its plan, with the prompts of its requests."""

from __future__ import annotations

import numpy as np
import pytest
from executor_samples import plan_of, uniform_step

from rlhfless.engine import SimulatedEngine
from rlhfless.executor import Executor, StepRecord, run_step
from rlhfless.trace import Trace, TraceError, read_trace, step_metrics


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
