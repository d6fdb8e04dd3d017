"""What each lever brings to one whole step: left out one at a time, and added one after another."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from rlhfless.simulate.drafts import SimulatedDrafts
from rlhfless.simulate.whole_steps.aim import Aim
from rlhfless.simulate.whole_steps.levers import (
    ASSIGNMENT,
    CUT,
    DRAFTS,
    FOLDING,
    LEARNER,
    LEVERS,
    MEANINGS,
    OVERLAP,
    PREWARMING,
    SHARED_PREFILL,
    STREAMING,
)
from rlhfless.simulate.whole_steps.published import Totals
from rlhfless.simulate.whole_steps.whole_step import WholeStep

PLAIN = "elastic plain"
STAGES: Mapping[str, frozenset[str]] = {
    PLAIN: frozenset(),
    "prefix caching": frozenset({SHARED_PREFILL}),
    "assignment": frozenset({ASSIGNMENT}),
    "cut and folding": frozenset({CUT, FOLDING}),
    "learner size": frozenset({LEARNER}),
    "overlap": frozenset({OVERLAP, PREWARMING}),
    "streaming": frozenset({STREAMING}),
}
"""Levers that each stage adds to those before it. Drafts come last."""


def log_value(totals: Totals, time_weight: float) -> float:
    """Return the logarithm of ``T^w C^(1-w)``."""
    return time_weight * math.log(totals[0]) + (1 - time_weight) * math.log(totals[1])


def lever_savings(step: WholeStep, time_weight: float = 0.7, drafts: SimulatedDrafts | None = None) -> pd.DataFrame:
    """Return what every lever saves of ``T^w C^(1-w)`` beside the best plan without it.

    Args:
        drafts: what drafted tokens are accepted; None: nothing is drafted.

    Returns:
        One row per lever: ``lever, meaning, used, expected`` (of the forecast's scenarios) and ``saved`` (executed on the true
        lengths). Both are 0 for a lever that the plan does not use. A saving below 0 is a loss.
    """
    choice = step.plan(Aim(time_weight=time_weight), drafts)
    value = log_value(step.execute(choice.plan, drafts), time_weight)
    rows = []
    for lever in LEVERS:
        if lever == DRAFTS and drafts is None:
            continue
        without = choice.without.get(lever)
        saved = 0.0
        if without is not None:
            saved = 1 - math.exp(value - log_value(step.execute(without, drafts), time_weight))
        rows.append(
            {"lever": lever, "meaning": MEANINGS[lever], "used": without is not None,
             "expected": choice.saves.get(lever, 0.0), "saved": saved}
        )  # fmt: skip
    return pd.DataFrame(rows)


def lever_stages(step: WholeStep, time_weight: float = 0.7, drafts: SimulatedDrafts | None = None) -> pd.DataFrame:
    """Return the step as levers are added: planned from forecasts for ``T^w C^(1-w)``, executed on the true lengths.

    Returns:
        One row per stage: ``stage, time_s, gpu_s, bound_gpu_s``. The first is elastic plain. The bound is of the GPU-seconds in
        the row's time, with drafts in the last row where they are given.
    """
    aim, levers, rows = Aim(time_weight=time_weight), frozenset[str](), []
    bound = step.bound()
    for stage, added in STAGES.items():
        levers |= added
        time_s, gpu_s = step.execute(step.plan(aim, levers=levers).plan)
        rows.append((stage, time_s, gpu_s, bound.gpu_seconds(time_s * (1 + 1e-9))))
    if drafts is not None:
        time_s, gpu_s = step.execute(step.plan(aim, drafts).plan, drafts)
        rows.append((DRAFTS, time_s, gpu_s, step.bound(drafts).gpu_seconds(time_s * (1 + 1e-9))))
    return pd.DataFrame(rows, columns=["stage", "time_s", "gpu_s", "bound_gpu_s"])
