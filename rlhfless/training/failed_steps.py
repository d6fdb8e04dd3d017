"""Writes the completed responses of a step that could not be finished to a separate trace in the run's folder.

That trace is not part of the run's own trace, so no sum over the run counts it.
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


def keep_unfinished(folder: Path, meta: Mapping[str, Any], rollouts: pd.DataFrame, record: StepRecord, reason: str) -> Path:
    """Write one failed attempt at a step; attempt n at step 3 becomes the trace ``unfinished/step-000003-n``.

    Args:
        folder: of the run. meta: of its trace.
        rollouts: the responses that were complete, at least one.
        record: spans, events and allocations until the failure.
        reason: the reason of the failure; stored as ``unfinished`` in the trace's ``meta.json``.

    Returns:
        The folder of the new trace.

    Raises:
        TraceError: it cannot be written.
    """
    tries = (folder / FOLDER / f"step-{record.step:06d}-{n}" for n in itertools.count(1))
    allocations, spans, events = (pd.DataFrame(rows) for rows in (record.allocations, record.spans, record.events))
    plan = {**record.plan.to_dict(), "step": record.step}
    left = Trace(rollouts, allocations, spans, events, [plan], {**meta, "unfinished": reason})
    return left.save(next(path for path in tries if not path.exists()))
