"""Analyses of one run: GPU-seconds and cost by use, and what other schedules and other GPUs would have cost.

Knows traces, logs and simulated results; nothing of plots or pages. All comparisons use the run's own responses.
"""

from rlhfless.analysis.billed_uses import billed_uses
from rlhfless.analysis.calibration import Calibration, calibration, logged_phases, stated_phases
from rlhfless.analysis.configuration_lines import configuration_lines
from rlhfless.analysis.draft_study import DraftStudy, study_drafts
from rlhfless.analysis.executed_run import executed_steps, savings_of_executed
from rlhfless.analysis.framework_defaults import DISPATCHES, FRAMEWORK_DEFAULTS, SHUFFLED, RunSetup, run_setup
from rlhfless.analysis.gpu_counts import GpuCount, gpu_counts
from rlhfless.analysis.gpu_seconds import Account, PhaseSeconds, account
from rlhfless.analysis.log_checks import generation_checks
from rlhfless.analysis.log_texts import text_encoder
from rlhfless.analysis.own_times import (
    ExecutedTimes,
    LoggedTimes,
    OwnTimes,
    ProfileScale,
    evenly,
    executed_times,
    logged_times,
    own_times,
    steps_of_run,
)
from rlhfless.analysis.plan_log import last_visits, plan_every_step
from rlhfless.analysis.savings import generation_s, savings
from rlhfless.analysis.step_plans import compare_step_plans
from rlhfless.analysis.value_of_information import forecasts_of, value_of_information

__all__ = [
    "DISPATCHES",
    "FRAMEWORK_DEFAULTS",
    "SHUFFLED",
    "Account",
    "Calibration",
    "DraftStudy",
    "ExecutedTimes",
    "GpuCount",
    "LoggedTimes",
    "OwnTimes",
    "PhaseSeconds",
    "ProfileScale",
    "RunSetup",
    "account",
    "billed_uses",
    "calibration",
    "compare_step_plans",
    "configuration_lines",
    "evenly",
    "executed_steps",
    "executed_times",
    "forecasts_of",
    "generation_checks",
    "generation_s",
    "gpu_counts",
    "last_visits",
    "logged_phases",
    "logged_times",
    "own_times",
    "plan_every_step",
    "run_setup",
    "savings",
    "savings_of_executed",
    "stated_phases",
    "steps_of_run",
    "study_drafts",
    "text_encoder",
    "value_of_information",
]


def __dir__() -> list[str]:
    return sorted(__all__)
