"""Splits allocated GPU-seconds by purpose: start-up, weight sync, work, idle.

Every second of an allocation belongs to exactly one of the four.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from rlhfless.trace.io import Trace
from rlhfless.trace.metrics.intervals import partition_s

PARTS = ("start", "sync", "work", "hold")


def held_gpu_seconds(trace: Trace) -> pd.DataFrame:
    """Return the allocated GPU-seconds by use: start-up, weight sync, work and idle time.

    Returns:
        A frame with ``run, step, role`` and, of its allocations, the GPU-seconds ``start`` (process start-up, prewarming
        included), ``sync`` (weight sync), ``work`` (any other foreground span), ``hold`` (idle: no foreground span covers it)
        and ``total``, their sum. Where spans overlap, a second counts for the first of these purposes that applies.
    """
    spans = trace.spans[~trace.spans["background"].to_numpy(dtype=bool)]
    at = spans.groupby(["run", "step", "holder"], sort=False).indices if len(spans) else {}
    start, end, phase = (spans[name].to_numpy() for name in ("start_s", "end_s", "phase"))
    purpose = np.where(np.isin(phase, PARTS), phase, "work")
    rows = []
    for allocation in trace.allocations.itertuples():
        span_indices = at.get((allocation.run, allocation.step, allocation.holder), np.zeros(0, dtype=np.int64))
        held = (allocation.start_s, allocation.end_s)
        parts = partition_s(purpose[span_indices], start[span_indices], end[span_indices], PARTS[:3], held)
        duration = allocation.end_s - allocation.start_s
        parts |= {"hold": max(0.0, duration - sum(parts.values())), "total": duration}
        gpus = len(allocation.gpu_ids)
        rows.append(
            {"run": allocation.run, "step": allocation.step, "role": allocation.role}
            | {name: gpus * s for name, s in parts.items()}
        )
    keys = ["run", "step", "role"]
    frame = pd.DataFrame(rows, columns=[*keys, *PARTS, "total"])
    return frame.groupby(keys, sort=False, as_index=False).sum()
