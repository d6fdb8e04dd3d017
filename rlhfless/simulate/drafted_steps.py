"""Runs the plans of a log's step that decode with drafts: their engines, and the bound that holds for them."""

from __future__ import annotations

from rlhfless.engine.simulated.accepted_runs import AcceptedRuns
from rlhfless.engine.simulated.drafted import DraftedEngineFactory
from rlhfless.errors import InputError
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from solver.bounds.clairvoyant_drafted import DraftedClairvoyantBound, replayed_clairvoyant_bound
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
    return DraftedEngineFactory(drafting, _runs(setting, logged, plan.policy), remaining)


def bound_with_drafts(setting: SimulationConfig, logged: LoggedStep, plan: Plan) -> DraftedClairvoyantBound:
    """Return the bound of all policies with the drafts that this step accepts, of at most as many tokens as the plan's."""
    assert plan.drafting is not None, "the plan drafts"
    runs = _runs(setting, logged, plan.policy)
    accepted = [runs.of(i, tokens).accepted for i, tokens in enumerate(logged.truth.response_tokens.tolist())]
    most = plan.drafting.max_draft_tokens
    return replayed_clairvoyant_bound(setting.problem(logged.truth), accepted, most, work=setting.bound_work)


def _runs(setting: SimulationConfig, logged: LoggedStep, policy: str) -> AcceptedRuns:
    if setting.drafts is None:
        raise InputError(
            f"policy {policy!r} drafts tokens, but nothing says how many are accepted; drafts in the setting, or --drafts, are "
            "needed, such as --drafts weak"
        )
    return setting.drafts.runs(logged.step, logged.rows)
