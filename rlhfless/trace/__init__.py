"""Traces: the record of a run in four tables, from which every number and plot is computed."""

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers import ImportedLog, ImportOptions, ImportSummary, OpenedLog, import_log, open_log, read_scalars
from rlhfless.trace.io import Trace, read_rollouts, read_trace
from rlhfless.trace.limits import Limits
from rlhfless.trace.metrics.decode_capacity import DecodeCapacity, decode_capacity
from rlhfless.trace.metrics.held_time import held_gpu_seconds
from rlhfless.trace.metrics.phase_costs import STEP_PHASES, step_costs
from rlhfless.trace.metrics.step_metrics import allocation_metrics, interval_union_s, step_metrics
from rlhfless.trace.metrics.step_times import StepTimes, with_step_times
from rlhfless.trace.recording.recorder import Recorder
from rlhfless.trace.schema.tables import PHASES, ROLES, SCHEMA_VERSION, TABLES, Column, sorted_prompt_ids
from rlhfless.trace.schema.validation import validate
from rlhfless.trace.writer import TraceWriter

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
    "OpenedLog",
    "Recorder",
    "StepTimes",
    "Trace",
    "TraceError",
    "TraceWriter",
    "allocation_metrics",
    "decode_capacity",
    "held_gpu_seconds",
    "import_log",
    "interval_union_s",
    "open_log",
    "read_rollouts",
    "read_scalars",
    "read_trace",
    "sorted_prompt_ids",
    "step_costs",
    "step_metrics",
    "validate",
    "with_step_times",
]
