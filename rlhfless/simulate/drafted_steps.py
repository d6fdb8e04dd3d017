"""Runs the plans of a log's step that decode with drafts: their engines, and what is accepted."""

from __future__ import annotations

from rlhfless.engine.simulated.accepted_runs import AcceptedRuns
from rlhfless.engine.simulated.drafted import DraftedEngineFactory
from rlhfless.errors import InputError
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from solver.lengths.survival import from_scenarios, known_lengths
from solver.model.plan import Plan


def drafted_engines(setting: SimulationConfig, logged: LoggedStep, plan: Plan, clairvoyant: bool) -> DraftedEngineFactory:
    """Return the engines of a plan that drafts.

    Args:
        clairvoyant: ``critical`` lengths follow true remaining lengths instead of predicted ones.

    Raises:
        InputError: the setting does not say what is accepted.
    """
    drafting = plan.drafting
    assert drafting is not None, "the plan drafts"
    remaining = None
    if drafting.length == "critical":
        remaining = (
            known_lengths(logged.truth) if clairvoyant else logged.forecast.remaining or from_scenarios(logged.predicted)
        )
    return DraftedEngineFactory(drafting, accepted_runs(setting, logged, plan.policy), remaining)


def accepted_runs(setting: SimulationConfig, logged: LoggedStep, policy: str) -> AcceptedRuns:
    """Return how many drafted tokens the step's responses accept, which the setting says.

    Raises:
        InputError: it does not say so.
    """
    if setting.drafts is None:
        raise InputError(
            f"policy {policy!r} drafts tokens, but nothing says how many are accepted; drafts in the setting, or --drafts, are "
            "needed, such as --drafts weak"
        )
    return setting.drafts.runs(logged.step, logged.rows)
