"""Shows several steps as one with a row for each GPU, whichever actor holds it: how long GPUs were held between the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlhfless.executor.step.record import StepRecord

if TYPE_CHECKING:
    from rlhfless.trace import Trace


def trace_by_gpu(records: Sequence[StepRecord]) -> Trace:
    """Return the records as a trace of one step whose holders are GPUs, to plot them by GPU; every actor must have one GPU.

    Args:
        records: of one run, in order; at least one.
    """
    import pandas as pd

    from rlhfless.trace import Trace

    traces = [record.trace for record in records]

    def by_gpu(trace: Trace, table: pd.DataFrame) -> pd.DataFrame:
        gpu_of = {held.holder: f"GPU {held.gpu_ids[0]}" for held in trace.allocations.itertuples()}
        return table.assign(step=traces[0].steps[0], holder=table["holder"].map(gpu_of))

    tables = [pd.concat([by_gpu(trace, getattr(trace, name)) for trace in traces]) for name in ("allocations", "spans")]
    held, did = (table.sort_values(["holder", "start_s"], ignore_index=True) for table in tables)
    return Trace(traces[0].rollouts, held.assign(role="decode"), did)
