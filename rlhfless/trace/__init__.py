"""Traces: the record of a run in four tables, from which every number and plot is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers import (
    ImportedLog,
    ImportOptions,
    ImportSummary,
    LogWithoutResponses,
    OpenedLog,
    import_log,
    open_log,
    read_log,
    read_scalars,
)
from rlhfless.trace.io import Trace, read_rollouts, read_trace, response_limit
from rlhfless.trace.limits import Limits
from rlhfless.trace.metrics.cross_check import checks_frame
from rlhfless.trace.metrics.decode_capacity import DecodeCapacity, decode_capacity
from rlhfless.trace.metrics.held_time import held_gpu_seconds
from rlhfless.trace.metrics.intervals import interval_union_s, partition_s
from rlhfless.trace.metrics.learning_numbers import learning_numbers, step_table
from rlhfless.trace.metrics.phase_costs import STEP_PHASES, gpu_seconds_if_held, idle_share_if_held, step_costs
from rlhfless.trace.metrics.step_metrics import allocation_metrics, step_metrics
from rlhfless.trace.metrics.step_times import StepTimes, with_step_times
from rlhfless.trace.recording.recorder import Recorder
from rlhfless.trace.schema.tables import PHASES, ROLES, SCHEMA_VERSION, TABLES, Column
from rlhfless.trace.schema.validation import validate
from rlhfless.trace.writer import TraceWriter

if TYPE_CHECKING:
    from rlhfless.trace.recording.trl_callback import TrlRecorder

__all__ = [
    "PHASES",
    "ROLES",
    "SCHEMA_VERSION",
    "STEP_PHASES",
    "TABLES",
    "Column",
    "DecodeCapacity",
    "ImportOptions",
    "ImportSummary",
    "ImportedLog",
    "Limits",
    "LogWithoutResponses",
    "OpenedLog",
    "Recorder",
    "StepTimes",
    "Trace",
    "TraceError",
    "TraceWriter",
    "TrlRecorder",
    "allocation_metrics",
    "checks_frame",
    "decode_capacity",
    "gpu_seconds_if_held",
    "held_gpu_seconds",
    "idle_share_if_held",
    "import_log",
    "interval_union_s",
    "learning_numbers",
    "open_log",
    "partition_s",
    "read_log",
    "read_rollouts",
    "read_scalars",
    "read_trace",
    "response_limit",
    "step_costs",
    "step_metrics",
    "step_table",
    "validate",
    "with_step_times",
]


def __getattr__(name: str) -> Any:
    if name == "TrlRecorder":  # needs transformers
        from rlhfless.trace.recording.trl_callback import TrlRecorder

        return TrlRecorder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
