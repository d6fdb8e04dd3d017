"""Splits allocated GPU-seconds by purpose: start-up, weight sync, work, idle.

Every second of an allocation belongs to exactly one of the four.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from rlhfless.trace.io import Trace
from rlhfless.trace.metrics.step_metrics import interval_union_s

PARTS = ("start", "sync", "work", "hold")


def held_gpu_seconds(trace: Trace) -> pd.DataFrame:
    """Return allocated GPU-seconds by purpose.

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
        covered, parts = 0.0, {}
        for count, part in enumerate(PARTS[:3], start=1):
            these = span_indices[np.isin(purpose[span_indices], PARTS[:count])]
            now = interval_union_s(np.maximum(start[these], allocation.start_s), np.minimum(end[these], allocation.end_s))
            parts[part], covered = now - covered, now
        duration = allocation.end_s - allocation.start_s
        parts |= {"hold": duration - covered, "total": duration}
        gpus = len(allocation.gpu_ids)
        rows.append(
            {"run": allocation.run, "step": allocation.step, "role": allocation.role}
            | {name: gpus * s for name, s in parts.items()}
        )
    keys = ["run", "step", "role"]
    frame = pd.DataFrame(rows, columns=[*keys, *PARTS, "total"])
    return frame.groupby(keys, sort=False, as_index=False).sum()
