"""Chooses among plans that are estimated at first: those that would be chosen are timed again, until all of these are timed so.

Two kinds of plans are estimated. Plans that fold are executed on one scenario only. Plans of a large step are timed on a part
of it, which lacks the longest of many more responses, and the actor whose responses need the most KV memory. Estimates of both
are low rather than high, so timing those that are chosen finds what is best.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

import numpy as np

from rlhfless.simulate.whole_steps.candidates import WholeStepCandidates, WholeStepPlan
from rlhfless.simulate.whole_steps.choice import WholeStepChoice
from solver.model.step_levers import FOLDING
from solver.model.workload import FloatArray


def is_estimated(plan: WholeStepPlan) -> bool:
    """Return whether the times of a candidate are estimated."""
    return plan.of_part is not None or FOLDING in plan.levers


def choose_confirmed(
    candidates: WholeStepCandidates,
    choose: Callable[[WholeStepCandidates], WholeStepChoice],
    timed: Callable[[WholeStepPlan], FloatArray],
    known: MutableMapping[int, FloatArray],
) -> WholeStepChoice:
    """Return a choice whose plan, and whose best plans without each lever, are all timed.

    Args:
        choose: among candidates. timed: returns (S, 2) seconds and GPU-seconds of a plan that was estimated.
        known: those of plans so far, by their identity; further ones are entered.
    """
    while True:
        choice = choose(_with(candidates, known))
        plan, *others = (one for one in (choice.plan, *choice.without.values()))
        doubtful = [one for one in (plan, *others) if is_estimated(one) and id(one) not in known]
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
