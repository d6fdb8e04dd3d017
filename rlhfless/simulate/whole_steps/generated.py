"""Executes the generation of a plan on simulated engines, and reads completions and releases for the rest of the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.simulated.requests import Requests
from rlhfless.executor import EngineFactory, StepRecord, WorkItem, run_step
from rlhfless.executor.step.record import holder_of
from rlhfless.simulate.steps import SimulationConfig
from solver.model.latency import LatencyModel
from solver.model.plan import Plan
from solver.model.workload import Workload
from solver.step.follow import Generated


def executed_record(
    plan: Plan, requests: Sequence[Request], setting: SimulationConfig, latency: LatencyModel, engines: EngineFactory,
    work: Sequence[WorkItem] = (), *, run: str = "step", step: int = 0,
) -> StepRecord:  # fmt: skip
    """Return the record of a plan that is executed on simulated engines, with work items where they are given.

    Args:
        run, step: names in the record.
    """
    return run_step(
        plan, requests, engines, latency, setting.cluster, run=run, step=step, start_s=0.0, work=work,
        admission=setting.admission, migration=setting.migration,
    )  # fmt: skip


def executed(
    plan: Plan, requests: Sequence[Request], setting: SimulationConfig, latency: LatencyModel | None = None,
    engines: EngineFactory = SimulatedEngine,
) -> Generated:  # fmt: skip
    """Return the generation of a plan that is executed on simulated engines.

    Args:
        latency: of the engines, that of the setting when None.
    """
    record = executed_record(plan, requests, setting, setting.latency if latency is None else latency, engines)
    completions = record.completions
    completion_s = np.array([completions[i].time_s for i in range(len(requests))], dtype=float)
    free_s, gpu_s = np.zeros(len(plan.actors)), 0.0
    number_of = {holder_of(number): number for number in range(len(plan.actors))}
    for row in record.allocations:
        number = number_of[row["holder"]]
        free_s[number] = max(free_s[number], row["end_s"])
        gpu_s += len(row["gpu_ids"]) * (row["end_s"] - row["start_s"])
    return Generated(completion_s, free_s, gpu_s)


def requests_of(workload: Workload) -> Requests:
    """Return one request per response of a workload, for simulated engines that decode its lengths."""
    prompts, owners = workload.prompt_tokens.tolist(), workload.prompt_of.tolist()
    limit = workload.max_response_tokens
    return Requests(
        Request(i, prompts[owner], limit, target_tokens=tokens, target_finish="stop", prompt=owner)
        for i, (owner, tokens) in enumerate(zip(owners, workload.response_tokens.tolist(), strict=True))
    )
