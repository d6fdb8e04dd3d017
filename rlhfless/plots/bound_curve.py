"""Lower bound of several steps together: least GPU-seconds at a given total time, from the bounds of the steps.

The inputs are functions of one number, one per step. Let C_s be the bound of step s. The least total cost at the total time T
is the minimum of ``sum C_s(T_s)`` over all ways to share T among the steps. For any price p of a second it is bounded:

    min over T_s with sum T_s = T of  sum C_s(T_s)  >=  sum over s of  min over t of (C_s(t) + p t)  -  p T .

The largest right-hand side over a grid of prices is a bound, too. On a grid of times ``t_0 < t_1 < ...`` a falling C_s gives
``C_s(t) + p t >= C_s(t_k+1) + p t_k`` between two of them. So the inner minimum is never taken too large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Bound = Callable[[float], float]
"""GPU-seconds that nothing can undercut within a time; falls with the time, infinite where nothing is that fast."""

TIMES, MULTIPLIERS, FOREVER_S = 1200, 160, 1e12
FLAT = 1e-3  # of the cost: between two times that differ less, the cost of the later one is a bound that is close enough


def bound_of_sum(bounds: Sequence[Bound], total_time_s: ArrayLike) -> NDArray[np.float64]:
    """Return (T,) least GPU-seconds of all steps together at each total time; for a single step, its own bound."""
    total = np.asarray(total_time_s, dtype=float)
    if len(bounds) == 1:
        return np.array([bounds[0](float(t)) for t in total])
    longest = float(total.max(initial=1e-9))
    grid = np.geomspace(longest * 1e-3, longest, TIMES)
    cost = np.array([_falling(bound, [*grid.tolist(), FOREVER_S]) for bound in bounds])  # (S, T + 1)
    time_s = np.concatenate([[0.0], grid])  # a cost is that from this time on: below grid[0], at time 0 at the earliest
    with np.errstate(invalid="ignore"):
        slopes = (
            -np.diff(cost, axis=1) / np.diff(time_s)
        ).ravel()  # at the best shares of the time, all slopes equal the price
    slopes = slopes[np.isfinite(slopes) & (slopes > 0)]
    multipliers = np.concatenate([[0.0], np.quantile(slopes, np.linspace(0, 1, MULTIPLIERS)) if len(slopes) else []])
    min_cost = sum((row[:, None] + np.outer(time_s, multipliers)).min(axis=0) for row in cost)  # (P,)
    return np.asarray((min_cost[None, :] - total[:, None] * multipliers[None, :]).max(axis=1))


def _falling(bound: Bound, times_s: Sequence[float]) -> NDArray[np.float64]:
    """Return (T,) lower bounds on a falling bound at rising times: exact where it falls, less than ``FLAT`` below elsewhere."""
    cost = np.full(len(times_s), np.inf)
    cost[0], cost[-1] = bound(times_s[0]), bound(times_s[-1])
    between = [(0, len(times_s) - 1)]
    while between:
        first, last = between.pop()
        if cost[first] <= (1.0 + FLAT) * cost[last]:  # also where nothing is as fast as the later one
            cost[first + 1 : last] = cost[last]
        elif last - first > 1:
            middle = (first + last) // 2
            cost[middle] = bound(times_s[middle])
            between += [(first, middle), (middle, last)]
    return cost
