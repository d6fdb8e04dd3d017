"""Analyses of one run: GPU-seconds and cost by use, and time and cost under other schedules and on other GPUs.

All comparisons use the run's own responses. The package knows traces, logs and simulated results, but not plots or pages.
"""

from rlhfless.analysis.assumptions import Assumptions
from rlhfless.analysis.calibration import Calibration, calibration, logged_phases, stated_phases
from rlhfless.analysis.complete import complete, completed
from rlhfless.analysis.configuration_lines import configuration_lines
from rlhfless.analysis.draft_study import DraftStudy, study_drafts
from rlhfless.analysis.framework_defaults import DISPATCHES, FRAMEWORK_DEFAULTS, SHUFFLED, RunSetup, run_setup
from rlhfless.analysis.gpu_counts import counts_frame, gpu_counts
from rlhfless.analysis.gpu_seconds import Account, PhaseSeconds, account
from rlhfless.analysis.log_checks import generation_checks
from rlhfless.analysis.log_texts import text_encoder
from rlhfless.analysis.own_times import OwnTimes, ProfileScale, evenly, own_times, steps_of_run
from rlhfless.analysis.plan_log import last_visits, plan_every_step
from rlhfless.analysis.savings import savings
from rlhfless.analysis.step_parts import generating_parts, step_parts
from rlhfless.analysis.step_plans import compare_step_plans
from rlhfless.analysis.value_of_information import forecasts_of, value_of_information

__all__ = [
    "DISPATCHES",
    "FRAMEWORK_DEFAULTS",
    "SHUFFLED",
    "Account",
    "Assumptions",
    "Calibration",
    "DraftStudy",
    "OwnTimes",
    "PhaseSeconds",
    "ProfileScale",
    "RunSetup",
    "account",
    "calibration",
    "compare_step_plans",
    "complete",
    "completed",
    "configuration_lines",
    "counts_frame",
    "evenly",
    "forecasts_of",
    "generating_parts",
    "generation_checks",
    "gpu_counts",
    "last_visits",
    "logged_phases",
    "own_times",
    "plan_every_step",
    "run_setup",
    "savings",
    "stated_phases",
    "step_parts",
    "steps_of_run",
    "study_drafts",
    "text_encoder",
    "value_of_information",
]


def __dir__() -> list[str]:
    return sorted(__all__)
