"""What a step left that could not be finished: a trace of its own in the run's folder, which no sum over the run's trace has.

Knows records, rows and folders; nothing of why a step failed, or of how the run goes on.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.executor import StepRecord
from rlhfless.trace import Trace

FOLDER = "unfinished"


def keep_unfinished(folder: Path, meta: Mapping[str, Any], rollouts: pd.DataFrame, record: StepRecord, why: str) -> Path:
    """Write a try at a step; the n-th one of step 3 is the trace ``unfinished/step-000003-n``.

    Args:
        folder: of the run. meta: of its trace.
        rollouts: of the responses that were complete, one at least.
        record: spans, events and what was held until the end.
        why: it could not be finished; ``unfinished`` in the trace's ``meta.json``.

    Returns:
        The trace's folder.

    Raises:
        TraceError: it cannot be written.
    """
    tries = (folder / FOLDER / f"step-{record.step:06d}-{n}" for n in itertools.count(1))
    allocations, spans, events = (pd.DataFrame(rows) for rows in (record.allocations, record.spans, record.events))
    plan = {**record.plan.to_dict(), "step": record.step}
    left = Trace(rollouts, allocations, spans, events, [plan], {**meta, "unfinished": why})
    return left.save(next(one for one in tries if not one.exists()))
