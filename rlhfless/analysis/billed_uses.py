"""Splits billed GPU-seconds and dollars by use, with the two kinds of waste apart: idle GPUs, and empty slots of batches.

Input is a trace with allocations. Every second of an allocation counts once.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from rlhfless.analysis.gpu_seconds import WORK
from rlhfless.trace import Trace
from rlhfless.trace.metrics.step_metrics import interval_union_s
from rlhfless.trace.schema.prices import dollars

IN_USE, EMPTY, HELD = "decoding, slots in use", "decoding, empty slots", "idle GPUs"
USES = {
    **{phase: use for phase, use in WORK.items() if phase not in ("decode", "migrate")},
    "migrate": WORK["transfer"], "prepare": "preparation", "learn": "learning",
}  # fmt: skip
COLUMNS = ["use", "kind", "gpu_s", "usd", "share"]


def billed_uses(trace: Trace) -> pd.DataFrame:
    """Return the GPU-seconds of a trace's allocations by use.

    Returns:
        One row per use: ``use, kind`` (``work``, ``empty slots`` or ``idle``), ``gpu_s, usd, share`` (of all GPU-seconds);
        work first, each kind in descending order. Slots count as in use where the trace does not record them.
    """
    spans = trace.spans[~trace.spans["background"].to_numpy(dtype=bool)]
    at = spans.groupby(["run", "step", "holder"], sort=False).indices if len(spans) else {}
    start, end, phase = (spans[name].to_numpy() for name in ("start_s", "end_s", "phase"))
    in_use = spans["batch_mean"].to_numpy(dtype=float) / spans["slots"].to_numpy(dtype=float, na_value=np.nan)
    empty = np.where(np.isnan(in_use), 0.0, 1.0 - in_use)
    seconds: dict[str, float] = {}
    paid: dict[str, float] = {}
    for held in trace.allocations.itertuples():
        indices = at.get((held.run, held.step, held.holder), np.zeros(0, dtype=np.int64))
        begin, until = np.maximum(start[indices], held.start_s), np.minimum(end[indices], held.end_s)
        parts = _parts(phase[indices], begin, until, empty[indices], held.end_s - held.start_s)
        for use, share_s in parts.items():
            gpu_s = len(held.gpu_ids) * share_s
            seconds[use] = seconds.get(use, 0.0) + gpu_s
            paid[use] = paid.get(use, 0.0) + float(dollars(gpu_s, held.usd_per_gpu_s))
    kinds = {EMPTY: "empty slots", HELD: "idle"}
    return _table([(use, kinds.get(use, "work"), gpu_s, paid[use]) for use, gpu_s in seconds.items()])


def _parts(phase: np.ndarray, begin: np.ndarray, until: np.ndarray, empty: np.ndarray, lasts_s: float) -> dict[str, float]:
    """Return the seconds of one allocation by use; where spans overlap, a second counts for the first phase in their order."""
    parts: dict[str, float] = {}
    covered, chosen = 0.0, np.zeros(len(phase), dtype=bool)
    for name in dict.fromkeys([*USES, *phase]):
        chosen |= phase == name
        now = interval_union_s(begin[chosen], until[chosen])
        gained, covered = now - covered, now
        if name == "decode" and gained > 0:
            these = phase == "decode"
            width = np.maximum(until[these] - begin[these], 0.0)
            share = float(width @ empty[these] / width.sum()) if width.sum() > 0 else 0.0
            parts |= {IN_USE: gained * (1 - share), EMPTY: gained * share}
        elif gained > 0:
            use = USES.get(name, name)
            parts[use] = parts.get(use, 0.0) + gained
    parts[HELD] = max(0.0, lasts_s - covered)
    return parts


def _table(rows: list[tuple[str, str, float, float]]) -> pd.DataFrame:
    table = pd.DataFrame([row for row in rows if row[2] > 0], columns=COLUMNS[:-1])
    total = float(table["gpu_s"].sum())
    table["share"] = table["gpu_s"] / total if total else 0.0
    rank = table["kind"].map({"work": 0, "empty slots": 1, "idle": 2})
    return table.assign(rank=rank).sort_values(["rank", "gpu_s"], ascending=[True, False], kind="stable", ignore_index=True)[
        COLUMNS
    ]
