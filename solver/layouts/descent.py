"""Descents over the options of a step's calls, one call at a time, for whatever a search minimises."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from solver.layouts.options import CallOptions, IntArray

LEAST_GAIN = 1e-9  # share by which a change has to be better


def descend(
    options: CallOptions,
    start: IntArray,
    value: float,
    best_of: Callable[[IntArray, float], tuple[IntArray | None, float]],
    goes_on: Callable[[], bool],
) -> None:
    """Change one call at a time to its best option, while a change is better and ``goes_on()``.

    Args:
        start: (K,) option of every call. value: of it; infinite to take the best option of the first call whatever it is.
        best_of: of (P, K) plans and a value, the best plan that may be below that value, with its own; None and infinity where
            none may be. It keeps what it finds.
    """
    plan = start.copy()
    unchanged, call = 0, 0
    while unchanged < len(plan) and goes_on():
        plans = np.repeat(plan[None], len(options.seconds[call]), axis=0)
        plans[:, call] = np.arange(len(plans))
        best, least = best_of(plans, value)
        if best is not None and least < value * (1 - LEAST_GAIN):
            unchanged = 0 if plan[call] != best[call] else unchanged + 1
            plan, value = best, least
        else:
            unchanged += 1
        call = (call + 1) % len(plan)


def perturbed(options: CallOptions, plan: IntArray, changes: int, rng: np.random.Generator) -> IntArray:
    """Return the plan with so many calls at random options."""
    other = plan.copy()
    for call in rng.choice(len(plan), min(changes, len(plan)), replace=False):
        other[call] = rng.integers(len(options.seconds[call]))
    return other
