"""Where a run's GPU-seconds and money went, and what another schedule, size or price would have made of the same responses."""

from rlhfless.accounting.account import Account, Rest, account
from rlhfless.accounting.advice import Advice, Size, advise, configuration_lines
from rlhfless.accounting.executed import calibrated_by_spans, executed_steps, savings_of_executed
from rlhfless.accounting.log_checks import generation_checks, log_checks
from rlhfless.accounting.measured import Calibration, calibration, logged_rest, stated_rest
from rlhfless.accounting.per_step import last_visits, plan_every_step
from rlhfless.accounting.run_setup import DISPATCHES, HABITS, SHUFFLED, RunSetup, run_setup
from rlhfless.accounting.savings import generation_s, savings
from rlhfless.accounting.what_if import Variant, prices_of, variants, what_if

__all__ = [
    "DISPATCHES",
    "HABITS",
    "SHUFFLED",
    "Account",
    "Advice",
    "Calibration",
    "Rest",
    "RunSetup",
    "Size",
    "Variant",
    "account",
    "advise",
    "calibrated_by_spans",
    "calibration",
    "configuration_lines",
    "executed_steps",
    "generation_checks",
    "generation_s",
    "last_visits",
    "log_checks",
    "logged_rest",
    "plan_every_step",
    "prices_of",
    "run_setup",
    "savings",
    "savings_of_executed",
    "stated_rest",
    "variants",
    "what_if",
]
