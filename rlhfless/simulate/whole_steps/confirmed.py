"""Chooses among plans of which some are estimated: those that would be chosen are timed, until all that are chosen are timed.

Plans that fold are estimated at first, as they are executed to be timed, which takes long. Estimates come from one scenario.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

import numpy as np

from rlhfless.simulate.whole_steps.candidates import WholeStepCandidates, WholeStepPlan
from rlhfless.simulate.whole_steps.choice import WholeStepChoice
from solver.model.step_levers import CONSOLIDATION
from solver.model.workload import FloatArray


def choose_confirmed(
    candidates: WholeStepCandidates,
    choose: Callable[[WholeStepCandidates], WholeStepChoice],
    timed: Callable[[WholeStepPlan], FloatArray],
    known: MutableMapping[int, FloatArray],
) -> WholeStepChoice:
    """Return a choice whose plan, and whose best plans without each lever, are all timed.

    Args:
        choose: among candidates. timed: returns (S, 2) seconds and GPU-seconds of a plan that was estimated.
        known: those of plans so far, by their identity (``id``); new ones are added.
    """
    while True:
        choice = choose(_with(candidates, known))
        plan, *others = (one for one in (choice.plan, *choice.without.values()))
        doubtful = [one for one in (plan, *others) if CONSOLIDATION in one.levers and id(one) not in known]
        if not doubtful:
            return choice
        for one in doubtful[:1] if doubtful[0] is plan else doubtful:  # with another plan, others are the best without a lever
            known[id(one)] = timed(one)


def _with(candidates: WholeStepCandidates, known: MutableMapping[int, FloatArray]) -> WholeStepCandidates:
    """Return the candidates with what is known of their seconds and GPU-seconds."""
    numbers = [number for number, plan in enumerate(candidates.plans) if id(plan) in known]
    if not numbers:
        return candidates
    times_s, gpu_s = candidates.times_s.copy(), candidates.gpu_s.copy()
    totals = np.array([known[id(candidates.plans[number])] for number in numbers])
    times_s[numbers], gpu_s[numbers] = totals[:, :, 0], totals[:, :, 1]
    return WholeStepCandidates(candidates.plans, times_s, gpu_s)
