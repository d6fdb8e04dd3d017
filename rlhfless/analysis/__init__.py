"""Analyses of one run: GPU-seconds and cost by use, and what another schedule, actor size or price would have cost.

Knows traces, logs and simulated results; nothing of plots or pages. All comparisons use the run's own responses.
"""

from rlhfless.analysis.billed_uses import billed_uses, uses_of_account
from rlhfless.analysis.calibration import Calibration, calibration, logged_phases, stated_phases
from rlhfless.analysis.changes import Change, ranked
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
)
from rlhfless.analysis.plan_log import last_visits, plan_every_step
from rlhfless.analysis.recommendation import Advice, Size, advise, configuration_lines
from rlhfless.analysis.run_cost import RunCost, run_cost, steps_of_run
from rlhfless.analysis.savings import generation_s, savings
from rlhfless.analysis.step_plans import compare_step_plans
from rlhfless.analysis.value_of_information import forecasts_of, value_of_information
from rlhfless.analysis.what_if import Variant, prices_of, variants, what_if

__all__ = [
    "DISPATCHES",
    "FRAMEWORK_DEFAULTS",
    "SHUFFLED",
    "Account",
    "Advice",
    "Calibration",
    "Change",
    "DraftStudy",
    "ExecutedTimes",
    "GpuCount",
    "LoggedTimes",
    "OwnTimes",
    "PhaseSeconds",
    "ProfileScale",
    "RunCost",
    "RunSetup",
    "Size",
    "Variant",
    "account",
    "advise",
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
    "prices_of",
    "ranked",
    "run_cost",
    "run_setup",
    "savings",
    "savings_of_executed",
    "stated_phases",
    "steps_of_run",
    "study_drafts",
    "text_encoder",
    "uses_of_account",
    "value_of_information",
    "variants",
    "what_if",
]


def __dir__() -> list[str]:
    return sorted(__all__)
