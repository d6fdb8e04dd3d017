"""What limits a run, by arithmetic on its log; no GPU, latency profile or simulation is needed."""

from rlhfless.diagnosis.before_run import PlannedRun, before_run
from rlhfless.diagnosis.diagnose import diagnose
from rlhfless.diagnosis.diagnosis import Diagnosis
from rlhfless.diagnosis.logged_run import Stated
from rlhfless.diagnosis.memory import kv_ratio, memory_fit, model_memory
from rlhfless.diagnosis.numbers import EVIDENCE, Finding, Knob, Lever, Number

__all__ = [
    "EVIDENCE",
    "Diagnosis",
    "Finding",
    "Knob",
    "Lever",
    "Number",
    "PlannedRun",
    "Stated",
    "before_run",
    "diagnose",
    "kv_ratio",
    "memory_fit",
    "model_memory",
]


def __dir__() -> list[str]:
    return sorted(__all__)
