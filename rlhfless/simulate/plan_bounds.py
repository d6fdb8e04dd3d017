"""The lower bound beside an executed plan: on every schedule of its step with its drafts and its sizes of actors."""

from __future__ import annotations

import numpy as np

from rlhfless.simulate.drafted_steps import accepted_runs
from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from solver.bounds.bound import Bound, LeastBound
from solver.bounds.drafts import DraftedBound
from solver.model.plan import Plan


def bound_of_plan(setting: SimulationConfig, logged: LoggedStep, plan: Plan) -> Bound | None:
    """Return the bound on generating a step with actors of any one of the setting's sizes, without drafts; None where the plan
    mixes sizes. What mixes sizes may be below it.
    """
    if len({len(actor.gpu_ids) for actor in plan.actors}) > 1:
        return None
    own, *others = (logged.bound(one) for one in setting.each_size)
    return LeastBound((own, *others)) if others else own


def bound_with_drafts(setting: SimulationConfig, logged: LoggedStep, plan: Plan) -> DraftedBound:
    """Return the bound of every schedule with the drafts that this step accepts, of at most as many tokens as the plan's."""
    assert plan.drafting is not None, "the plan drafts"
    runs = accepted_runs(setting, logged, plan.policy)
    most = plan.drafting.max_draft_tokens
    accepted = [np.minimum(runs.of(i, tokens).accepted, most) for i, tokens in enumerate(logged.truth.response_tokens.tolist())]
    return DraftedBound(setting.problem(logged.truth), accepted, lp_work=setting.bound_work)
