"""Splits the cost of executed steps by phase, as billed (elastic) and as if every GPU had been held all the time (serverful).

Elastic: every billed second belongs to the phase of its span, or to its holder's role where no span covers it. Serverful: the
same step with the same duration, but all GPUs held from start to end. A serverful second belongs to the first of these that
applies: learning, if the learner works; generation, if an actor generates; preparation; sync. Starts and waits belong to
generation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.io import Trace
from rlhfless.trace.metrics.intervals import partition_s
from rlhfless.trace.schema.prices import dollars

STEP_PHASES = ("generation", "preparation", "learning", "sync")

SPAN_PHASES = {"learning": ("learn",), "generation": ("prefill", "transfer", "decode", "migrate"), "preparation": ("prepare",),
               "sync": ("sync",)}  # fmt: skip
"""Phases of spans by phase of a step; a second that several cover is the first's."""

STEP_PHASE = {span: name for name, spans in SPAN_PHASES.items() for span in spans}

_OF_ROLE = {"learner": "learning", "prepare": "preparation", "reference": "preparation", "reward": "preparation",
            "critic": "preparation"}  # fmt: skip


def step_costs(trace: Trace, gpus: int | None = None) -> pd.DataFrame:
    """Return GPU-seconds and dollars of every step by phase.

    Args:
        gpus: number of GPUs of the serverful baseline, which holds all GPUs throughout; None: those of the step's cluster in
            ``meta.json``, plus GPUs that were allocated outside it.

    Returns:
        A frame with ``run, step, phase`` (one of ``STEP_PHASES``); ``time_s`` of the step's time line, ``elastic_gpu_s``,
        ``elastic_usd``, ``serverful_gpu_s``, ``serverful_usd``. Over phases, times add up to the step's duration and elastic
        GPU-seconds to its allocations. Dollars are NaN where GPUs have no price.

    Raises:
        TraceError: nothing was executed, the trace does not name a cluster, or GPUs have several prices.
    """
    allocations, spans = trace.allocations, trace.spans[~trace.spans["background"].to_numpy(dtype=bool)]
    source = trace.source or "the trace"
    if allocations.empty:
        raise TraceError(f"{source}: has no allocations, so its cost is unknown; an executed run is needed")
    prices = sorted(allocations["usd_per_gpu_s"].unique())
    if len(prices) > 1:
        raise TraceError(
            f"{source}: GPUs have {len(prices)} different prices; all GPUs must have the same price to compute a serverful cost"
        )
    held = gpus_by_step(trace, source) if gpus is None else dict.fromkeys(trace.steps, gpus)
    rows: list[dict[str, Any]] = []
    at = spans.groupby(["run", "step", "holder"], sort=False).indices if len(spans) else {}
    steps_at = spans.groupby(["run", "step"], sort=False).indices if len(spans) else {}
    start, end, phase = (spans[name].to_numpy() for name in ("start_s", "end_s", "phase"))
    for (run, step), of_step in allocations.groupby(["run", "step"], sort=False):
        elastic = dict.fromkeys(STEP_PHASES, 0.0)
        for allocation in of_step.itertuples():
            its = at.get((run, step, allocation.holder), np.zeros(0, dtype=np.int64))
            parts = _partition(
                start[its],
                end[its],
                phase[its],
                allocation.start_s,
                allocation.end_s,
                _OF_ROLE.get(allocation.role, "generation"),
            )
            for name, seconds in parts.items():
                elastic[name] += len(allocation.gpu_ids) * seconds
        its = steps_at.get((run, step), np.zeros(0, dtype=np.int64))
        times = _partition(start[its], end[its], phase[its], of_step["start_s"].min(), of_step["end_s"].max(), "generation")
        for name in STEP_PHASES:
            rows.append(
                {
                    "run": run, "step": step, "phase": name, "time_s": times[name], "elastic_gpu_s": elastic[name],
                    "serverful_gpu_s": times[name] * held[step],
                }
            )  # fmt: skip
    costs = pd.DataFrame(rows)
    for system in ("elastic", "serverful"):
        costs[f"{system}_usd"] = dollars(costs[f"{system}_gpu_s"], np.full(len(costs), prices[0]))
    return costs[["run", "step", "phase", "time_s", "elastic_gpu_s", "elastic_usd", "serverful_gpu_s", "serverful_usd"]]


def _partition(
    start_s: np.ndarray, end_s: np.ndarray, phase: np.ndarray, from_s: float, to_s: float, otherwise: str
) -> dict[str, float]:
    """Return the seconds of ``from_s`` to ``to_s`` by phase: each is of the first of ``SPAN_PHASES`` that covers it, or
    ``otherwise``."""
    of_step = np.array([STEP_PHASE.get(name, "") for name in phase])
    parts = partition_s(of_step, start_s, end_s, SPAN_PHASES, (from_s, to_s))
    parts[otherwise] += max(0.0, to_s - from_s - sum(parts.values()))
    return parts


def gpus_by_step(trace: Trace, source: str = "the trace") -> dict[int, int]:
    """Return by step: GPUs of its cluster, plus GPUs outside the cluster that were allocated while the run was on it.

    A run that was resumed on another cluster has ``earlier_clusters``, each with ``before_step``, the first step after it.

    Raises:
        TraceError: the trace does not name a cluster of one kind of GPU.
    """
    earlier, now = trace.meta.get("earlier_clusters") or [], trace.meta.get("cluster") or {}
    clusters = [*earlier, {**now, "before_step": None}]
    if not all({"nodes", "gpus_per_node", "before_step"} <= set(cluster) for cluster in clusters):
        raise TraceError(
            f"{source}: meta.json has no cluster with one GPU kind; pass gpus, the number of GPUs of the serverful system"
        )
    gpus: dict[int, int] = {}
    for cluster in clusters:
        before = math.inf if cluster["before_step"] is None else cluster["before_step"]
        same_cluster = [step for step in trace.steps if step < before and step not in gpus]
        held = trace.allocations.loc[trace.allocations["step"].isin(same_cluster), "gpu_ids"]
        last = max((int(max(ids, default=-1)) for ids in held), default=-1)
        gpus |= dict.fromkeys(same_cluster, max(int(cluster["nodes"]) * int(cluster["gpus_per_node"]), last + 1))
    return gpus


def gpu_seconds_if_held(trace: Trace) -> float:
    """Return the GPU-seconds of an executed run, had it held all GPUs of its cluster from the start to the end of every step.

    They are the serverful GPU-seconds of ``step_costs``; NaN where the trace does not name its cluster.
    """
    try:
        gpus = gpus_by_step(trace)
    except TraceError:
        return math.nan
    steps = trace.allocations.groupby("step")
    time_s = steps["end_s"].max() - steps["start_s"].min()
    return float(sum(gpus[int(step)] * seconds for step, seconds in time_s.items()))


def idle_share_if_held(gpu_s: float, idle_gpu_s: float, held_gpu_s: float) -> float:
    """Return the share of GPU-seconds without work, had a run held all its GPUs throughout; NaN where these are unknown.

    A run that releases GPUs can be busy on all that it has, while most of those that somebody rents for it have no work.

    Args:
        gpu_s, idle_gpu_s: allocated, and of these without work. held_gpu_s: of all GPUs of the cluster throughout every step.

    Example:
        >>> idle_share_if_held(gpu_s=2.0, idle_gpu_s=0.0, held_gpu_s=8.0)
        0.75
    """
    return 1.0 - (gpu_s - idle_gpu_s) / held_gpu_s if held_gpu_s > 0 else math.nan
