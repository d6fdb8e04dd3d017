"""Splits the steps of a trace into generation, which a schedule changes, and everything else, which none does.

Input is the trace of an executed run, or of a logged run that was completed into one (``analysis.complete``). Generation is
what decode and prefill actors do, from the first GPU that one of them was allocated to the last span of any. Everything else is
as in the trace: the seconds of a step outside generation, and the GPU-seconds of all other holders. One part of those depends
on the schedule: GPUs of other holders that are allocated during generation without a span wait for it. Their GPU-seconds change
with the duration of generation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from rlhfless.analysis.gpu_seconds import GENERATES, foreground_of_holders, generation_of, spans_of_generation
from rlhfless.trace import Trace
from rlhfless.trace.metrics.intervals import interval_union_s

COLUMNS = ["step", "time_s", "gpu_s", "generation_s", "generation_gpu_s", "working_s", "fixed_s", "fixed_gpu_s", "waiting_gpus"]


def step_parts(trace: Trace) -> pd.DataFrame:
    """Return time and GPU-seconds of every step with generation, split into generation and the rest.

    Returns:
        One row per step: ``step, time_s, gpu_s`` (billed), ``generation_s, generation_gpu_s`` (billed to actors), ``working_s``
        (the longest time of an actor from its first prefill or decode span to its last), ``fixed_s`` (the step without
        generation), ``fixed_gpu_s`` (other holders, without the waiting GPUs), ``waiting_gpus`` (GPUs of other holders that
        were allocated but idle during generation, averaged over it).
    """
    of_holder = foreground_of_holders(trace)
    rows = []
    for step, of_step in trace.allocations.groupby("step", sort=True):
        generation = generation_of(of_step, of_holder)
        if generation is None:
            continue
        begin, end = generation
        generating = of_step["role"].isin(GENERATES).to_numpy()
        seconds = (of_step["end_s"] - of_step["start_s"]).to_numpy(dtype=float)
        gpus = np.array([len(ids) for ids in of_step["gpu_ids"]])
        waiting = 0.0
        for allocation in of_step[~generating].itertuples():
            since, until = max(begin, allocation.start_s), min(end, allocation.end_s)
            if until > since:
                its = of_holder.get((step, allocation.holder))
                busy = 0.0
                if its is not None:
                    busy = interval_union_s(np.maximum(its["start_s"], since), np.minimum(its["end_s"], until))
                waiting += len(allocation.gpu_ids) * (until - since - busy)
        actors = [spans_of_generation(of_holder.get((step, name))) for name in of_step[generating]["holder"].unique()]
        time_s = float(of_step["end_s"].max() - of_step["start_s"].min())
        rows.append(
            {
                "step": int(step), "time_s": time_s, "gpu_s": float(gpus @ seconds), "generation_s": end - begin,
                "generation_gpu_s": float((gpus * seconds)[generating].sum()),
                "working_s": _working_s([spans for spans in actors if spans is not None]),
                "fixed_s": time_s - (end - begin), "fixed_gpu_s": float((gpus * seconds)[~generating].sum()) - waiting,
                "waiting_gpus": waiting / (end - begin) if end > begin else 0.0,
            }
        )  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def generating_parts(trace: Trace) -> pd.DataFrame:
    """Return ``step_parts`` of the steps whose generation took time on GPUs; in other steps nothing can be saved."""
    parts = step_parts(trace)
    return parts[(parts["generation_s"] > 0) & (parts["gpu_s"] > 0)]


def _working_s(actors: Sequence[pd.DataFrame]) -> float:
    works = [spans[spans["phase"].isin(["prefill", "decode"])] for spans in actors]
    return max((float(spans["end_s"].max() - spans["start_s"].min()) for spans in works if len(spans)), default=float("nan"))
