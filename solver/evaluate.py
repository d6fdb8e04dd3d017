"""The one function that says what a plan takes: time and GPU-seconds of every actor under a latency model.

Knows plans, workloads and latency; nothing of runtime rules (a plan with a rule is evaluated as if the rule never acted).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from solver.admission import Admission
from solver.batching import Timeline, timeline
from solver.errors import PlanningError
from solver.latency import LatencyModel
from solver.objective import StepRest
from solver.plan import Plan
from solver.workload import FloatArray, Workload


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a plan takes: the makespan, GPU-seconds held by actors, and (N,) the time each actor is done."""

    makespan_s: float
    gpu_seconds: float
    done_s: FloatArray


def ready_s(latency: LatencyModel) -> float:
    """Seconds from taking an actor's GPUs until it can decode: start and weight sync."""
    return latency.start_s + latency.sync_s


def admission_of(latency: LatencyModel, max_batch: int | None = None, rule: str = "reserve") -> Admission:
    """Slots and KV memory of an actor of this latency model, with fewer slots when the plan says so."""
    slots = latency.max_batch if max_batch is None else min(max_batch, latency.max_batch)
    return Admission(slots, latency.kv_capacity_tokens, rule)


def actor_timeline(workload: Workload, responses: ArrayLike, latency: LatencyModel, admission: Admission) -> Timeline:
    """The iterations of one actor that generates ``responses`` in this admission order, from when it is ready."""
    chosen = np.asarray(responses, dtype=np.int64)
    return timeline(
        workload.remaining_tokens[chosen],
        workload.context_tokens[chosen],
        workload.reserved_tokens[chosen],
        np.zeros(len(chosen), dtype=bool),
        latency,
        admission,
    )


def held_gpu_s(
    gpus: Sequence[int], start_s: Sequence[float], done_s: ArrayLike, release: Sequence[str], rest: StepRest
) -> float:
    """GPU-seconds of actors that hold ``gpus`` from ``start_s`` until their release."""
    done = np.asarray(done_s, dtype=float)
    makespan = float(done.max(initial=0.0))
    until = {"generation": makespan, "step": makespan + rest.seconds}
    return float(sum(g * (until.get(r, d) - s) for g, s, d, r in zip(gpus, start_s, done, release, strict=True)))


def evaluate(
    plan: Plan,
    workload: Workload,
    latency: LatencyModel,
    rest: StepRest = StepRest(),  # noqa: B008 (frozen)
    *,
    table: bool = False,
    admission: str = "reserve",
) -> Evaluation:
    """What ``plan`` takes on ``workload``.

    Args:
        plan: every response of the workload must be in it exactly once.
        workload: the lengths to evaluate with (predicted ones reproduce the plan's own numbers); with scenarios, every number
            is the mean over them.
        latency: times of an actor.
        table: charge the measured table instead of the affine fit that planning uses.
        admission: ``reserve`` or ``preempt``.

    Raises:
        PlanningError: a response is missing, planned twice or not in the workload.
    """
    planned = np.array([i for a in plan.actors for i in a.responses], dtype=np.int64)
    if unknown := planned[(planned < 0) | (planned >= len(workload))].tolist():
        raise PlanningError(
            f"the plan holds response {unknown[0]}, but the workload has responses 0 to {len(workload) - 1} only"
        )
    counts = np.bincount(planned, minlength=len(workload))
    if np.any(counts != 1):
        wrong = int(np.flatnonzero(counts != 1)[0])
        raise PlanningError(
            f"response {wrong} is in the plan {counts[wrong]} times; "
            f"each of the {len(workload)} responses must be in it exactly once"
        )
    model = latency if table else latency.affine
    cases = [_evaluate_case(plan, case, model, rest, admission) for case in workload.cases()]
    return Evaluation(
        float(np.mean([case.makespan_s for case in cases])),
        float(np.mean([case.gpu_seconds for case in cases])),
        np.asarray(np.mean([case.done_s for case in cases], axis=0)),
    )


def _evaluate_case(plan: Plan, workload: Workload, model: LatencyModel, rest: StepRest, admission: str) -> Evaluation:
    """``evaluate`` for one set of lengths."""
    done = np.array(
        [
            a.start_s
            + ready_s(model)
            + actor_timeline(workload, a.responses, model, admission_of(model, a.max_batch, admission)).busy_s
            for a in plan.actors
        ]
    )
    gpu_s = held_gpu_s(
        [len(a.gpu_ids) for a in plan.actors], [a.start_s for a in plan.actors], done, [a.release for a in plan.actors], rest
    )
    return Evaluation(float(done.max()), gpu_s, done)
