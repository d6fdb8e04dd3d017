"""Step plans with levers on the virtual clock: the planned period, one holder of a GPU at a time, parts in the trace."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from error_messages import refused

from rlhfless.executor import run_step_plan
from rlhfless.trace import step_metrics
from solver import Cluster, LatencyModel, Workload
from solver.layouts import Call, CallMemory, Layout, StepGeneration, StepPlan, WithLevers, grpo, plan_step, ppo
from solver.model.acceptance import Acceptance
from solver.model.errors import PlanningError

CLUSTER = Cluster(1, 4, 1)
STEPS = 6


class Costs:
    """Calls that scale with their GPUs, with a long generation beside them."""

    def seconds(self, call: Call, layout: Layout) -> float:
        s = layout.strategy
        loss = 1.05 ** (s.tp - 1) * 1.1 ** (s.pp - 1)
        return {"generate": 1.0, "inference": 1.5, "train": 6.0}[call.kind] * loss / layout.mesh.gpus

    def memory(self, call: Call, layout: Layout) -> CallMemory:
        return CallMemory(0.0, 1.0)

    def reallocate(self, role: str, source: Layout, destination: Layout) -> tuple[float, float]:
        return (0.0, 0.0) if source == destination else (0.02, 1000.0)

    def updates(self, call: Call, layout: Layout) -> tuple[int, float]:
        return 2, 0.02


def generation(prompts: int = 8, samples: int = 4) -> StepGeneration:
    rng = np.random.default_rng(4)
    tokens = np.minimum(rng.lognormal(5, 1.0, prompts * samples).astype(int) + 1, 1500)
    workload = Workload([50] * prompts, np.repeat(np.arange(prompts), samples), tokens, max_response_tokens=2000)
    latency = {1: LatencyModel("tp1", 1, base_s=4e-3, per_response_s=2e-4)}
    return StepGeneration(workload, latency, drafts=Acceptance([0.5, 0.3]))


def planned(graph: Any, levers: str = "all") -> tuple[StepPlan, StepGeneration]:
    given = generation()
    return plan_step(graph(), CLUSTER, Costs(), generation=WithLevers(given, levers), work=20_000), given


@pytest.mark.parametrize(("graph", "levers"), [(grpo, "all"), pytest.param(ppo, "overlap,streaming", marks=pytest.mark.full)])
def test_steps_with_levers_take_the_planned_period(graph: Any, levers: str) -> None:
    plan, given = planned(graph, levers)
    assert any(call.parts is not None for call in plan.calls)
    executed = run_step_plan(plan, CLUSTER, generation=given, steps=STEPS)
    trace = executed.trace  # validation refuses two holders of a GPU at one time
    assert executed.periodic
    assert executed.period_s == pytest.approx(plan.period_s, abs=1e-9)
    assert executed.period_s >= plan.lower_bound_s
    assert step_metrics(trace)["gpu_seconds"].to_numpy() == pytest.approx(np.full(STEPS, plan.gpu_seconds))
    for call in plan.calls:
        if call.parts is None:
            continue
        spans = trace.spans[(trace.spans["call"] == call.name) & (trace.spans["phase"] != "transfer")]
        details = [json.loads(detail) for detail in spans["detail"]]
        prompts = [detail["prompt"] for detail in details if "prompt" in detail]
        assert sorted(prompts) == sorted([*range(8)] * STEPS)
        assert sum("update" in detail for detail in details) == STEPS * call.parts.updates


def test_plans_with_levers_run_with_their_own_generation_alone() -> None:
    plan, given = planned(grpo, "overlap,streaming")
    with refused(PlanningError, "parts of 8 prompts", "16 prompts"):
        run_step_plan(plan, CLUSTER, generation=generation(16, 2))
    drafted, _ = planned(grpo, "drafts")
    assert drafted.uses("drafts")
    with refused(PlanningError, "has no drafts"):
        run_step_plan(drafted, CLUSTER, generation=replace(given, drafts=None))
    assert run_step_plan(drafted, CLUSTER, generation=given).period_s == pytest.approx(drafted.period_s, abs=1e-9)
