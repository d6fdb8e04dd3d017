"""What each lever brings to one whole step: left out one at a time, and added one after another."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from rlhfless.simulate.drafts import SimulatedDrafts
from rlhfless.simulate.whole_steps.whole_step import WholeStep, WholeStepChoice
from solver.model.objective import TIME_WEIGHT, Objective
from solver.model.step_levers import (
    ACTOR_SIZE,
    ASSIGNMENT,
    CONSOLIDATION,
    CUT,
    DRAFTS,
    LAYOUTS,
    LEARNER,
    MEANINGS,
    OVERLAP,
    PREWARMING,
    SHARED_PREFILL,
    STREAMING,
)
from solver.step.choose import compared_by

PLAIN = "elastic plain"
STAGES: Mapping[str, frozenset[str]] = {
    PLAIN: frozenset(),
    "prefix caching": frozenset({SHARED_PREFILL}),
    "actor size and layouts": frozenset({ACTOR_SIZE, LAYOUTS}),
    "assignment": frozenset({ASSIGNMENT}),
    "cut and consolidation": frozenset({CUT, CONSOLIDATION}),
    "learner size": frozenset({LEARNER}),
    "overlap": frozenset({OVERLAP, PREWARMING}),
    "streaming": frozenset({STREAMING}),
}
"""Levers that each stage adds to those before it, if the step offers them. Drafts come last."""


def lever_savings(step: WholeStep, time_weight: float = TIME_WEIGHT, drafts: SimulatedDrafts | None = None) -> pd.DataFrame:
    """Return the share of ``T^w C^(1-w)`` that every optimisation saves, compared with the best plan without it.

    See ``savings_of``.

    Args:
        drafts: what drafted tokens are accepted; None: nothing is drafted.
    """
    objective = Objective(time_weight)
    return savings_of(step, step.plan(objective, drafts), objective, drafts)


def savings_of(
    step: WholeStep, choice: WholeStepChoice, objective: Objective, drafts: SimulatedDrafts | None = None
) -> pd.DataFrame:
    """Return the share that every optimisation saves, compared with the best plan without it.

    It is a share of what is minimised, without a penalty for a missed limit. Where the plan is expected to miss its limit, it
    is a share of what is limited (``solver.step.choose.compared_by``).

    Args:
        choice: the chosen plan of the step, for this objective.
        drafts: which drafted tokens are accepted; None: no speculative decoding.

    Returns:
        One row per optimisation: ``lever, meaning, used, expected`` (mean over the forecast's scenarios) and ``saved``
        (executed with the true lengths). Both are 0 if the plan does not use it. A negative saving is a loss. ``expected`` is
        NaN where the plan keeps the limit and the one without the optimisation does not; ``saved`` is so where both are true
        of the executed plans, too.
    """
    objective = objective.in_gpu_s(step.own.setting.cluster.usd_per_gpu_s)
    expected, chosen, rows = (choice.time_s, choice.gpu_seconds), step.execute(choice.plan), []
    for lever in step.levers(drafts):
        without = choice.without.get(lever)
        saved = 0.0
        if without is not None:
            other = step.execute(step.fitted(without, objective))
            needed = math.isnan(choice.saves[lever])
            by = compared_by(objective, chosen, other) if needed else compared_by(objective, expected, expected)
            saved = math.nan if by is None else 1 - by.value(*chosen, reference=other)
        rows.append(
            {"lever": lever, "meaning": MEANINGS[lever], "used": without is not None,
             "expected": choice.saves.get(lever, 0.0), "saved": saved}
        )  # fmt: skip
    return pd.DataFrame(rows)


def lever_stages(step: WholeStep, time_weight: float = TIME_WEIGHT, drafts: SimulatedDrafts | None = None) -> pd.DataFrame:
    """Return time and cost of the step as optimisations are added one by one.

    Each plan minimises ``T^w C^(1-w)`` on the length forecast, and is executed with the true lengths.

    Returns:
        One row per stage: ``stage, time_s, gpu_s, bound_gpu_s``. The first is the baseline ("elastic plain") without prefix
        caching. The bound is a lower bound on the GPU-seconds of any policy that takes the row's time; in the last row with
        drafts, if they are given.
    """
    objective, levers, rows = Objective(time_weight), frozenset[str](), []
    bound = step.bound()
    for stage, added in STAGES.items():
        if added and not added & set(step.levers()):
            continue
        levers |= added
        time_s, gpu_s = step.execute(step.plan(objective, levers=levers).plan)
        rows.append((stage, time_s, gpu_s, bound.gpu_seconds(time_s * (1 + 1e-9))))
    if drafts is not None:
        time_s, gpu_s = step.execute(step.plan(objective, drafts).plan)
        rows.append((DRAFTS, time_s, gpu_s, step.bound(drafts).gpu_seconds(time_s * (1 + 1e-9))))
    return pd.DataFrame(rows, columns=["stage", "time_s", "gpu_s", "bound_gpu_s"])
