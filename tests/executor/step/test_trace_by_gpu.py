"""Several steps as one with a row per GPU: what GPUs were held for stays the same."""

from __future__ import annotations

import pytest

import solver
from rlhfless.engine import Request, SimulatedEngine
from rlhfless.executor import Executor, trace_by_gpu
from rlhfless.latency import load_profile
from rlhfless.trace import held_gpu_seconds


def test_every_gpu_is_one_row_over_all_steps() -> None:
    latency = load_profile("cpu-tiny-qwen2")
    cluster = solver.Cluster(1, 2, 1, "cpu")
    problem = solver.PlanningProblem(solver.Workload.grid([8, 8], [[20, 5], [30, 6]], max_response_tokens=64), cluster, latency)
    plan = solver.random_split(problem, actors=2)
    requests = [Request(i, 8, 64, target_tokens=tokens, prompt=i // 2) for i, tokens in enumerate((20, 5, 30, 6))]
    executor = Executor(SimulatedEngine, cluster, latency=latency)
    records = [executor.run(plan, requests) for _ in range(2)]
    trace = trace_by_gpu(records)
    assert set(trace.allocations["holder"]) == set(trace.spans["holder"]) == {"GPU 0", "GPU 1"}
    assert trace.steps == [0]
    apart = sum(held_gpu_seconds(record.trace)["total"].sum() for record in records)
    assert held_gpu_seconds(trace)["total"].sum() == pytest.approx(apart)
    assert trace.allocations["end_s"].max() == records[-1].end_s
