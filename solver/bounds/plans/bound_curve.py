"""Computes the bound curve of a front: the least cost of any plan up to a makespan, or of their means over scenarios.

Inputs are the bounds of single scenarios.

**Statement.** Let intervals that begin at t_si cover the makespans that a plan may have in scenario s. Let no plan whose
makespan there lies in the i-th interval cost less than c_si there. Then a plan with mean makespan T has a mean cost of at least
``mean_s min_i (c_si + r t_si) - r T`` for every r >= 0. *Proof.* In s the plan takes some T_s and C_s with ``C_s + r T_s >=
c_si + r t_si`` for the interval of T_s, so at least the minimum. Take the mean over s. The bound is the largest of these for
many r: the curves of single scenarios made convex and added up. That one plan is the same in all scenarios is not used. It
never rises with T, so it holds for all plans up to T.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from solver.bounds.plans.cost_bound import CostBound
from solver.model.workload import FloatArray

RATES = 256  # values of r


def bound_curve(
    bounds: Sequence[CostBound], points: int, up_to_s: float = math.inf, case_points: int | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return ``points`` makespans and, up to each, the least cost of generation of any plan: for one set of lengths, or as
    means over scenarios.

    Args:
        bounds: one for every set of lengths.
        up_to_s: the makespans are dense up to here; the last one is that of everything on one actor in any case.
        case_points: makespans for every scenario, if there are several; ``points`` when None.
    """
    several = len(bounds) > 1
    grids = [makespan_grid(bound, case_points or points if several else points, up_to_s) for bound in bounds]
    begins = [np.concatenate([[bound.shortest_makespan_s], grid[:-1]]) for bound, grid in zip(bounds, grids, strict=True)]
    costs = []
    for bound, begin, grid in zip(bounds, begins, grids, strict=True):
        costs.append([bound.at(high, low_s=low) for low, high in zip(begin.tolist(), grid.tolist(), strict=True)])
    if not several:
        return grids[0], np.array(costs[0])
    grid = np.geomspace(np.mean([g[0] for g in grids]), np.mean([g[-1] for g in grids]), points)
    return grid, mean_curve(np.array(begins), np.array(costs), grid)


def makespan_grid(bound: CostBound, points: int, up_to_s: float = math.inf) -> FloatArray:
    """Return makespans from the least possible one to that of everything on one actor, dense up to ``up_to_s``."""
    first_s = max(bound.shortest_makespan_s, 1e-12)  # 0 when every response is complete already
    last_s = max(first_s, bound.longest_makespan_s)
    if up_to_s >= last_s:
        return np.geomspace(first_s, last_s, points)
    return np.append(np.geomspace(first_s, max(first_s, up_to_s), max(points - 1, 1)), last_s)


def mean_curve(begin_s: FloatArray, cost: FloatArray, makespan_s: FloatArray) -> FloatArray:
    """Return (G,) lower bounds of the mean cost of plans with a mean makespan of up to ``makespan_s``; infinite if no
    plan is that fast.

    Args:
        begin_s, cost: (S, B) of the intervals of each scenario, rising in time; an infinite cost means no plan.
        makespan_s: (G,) mean makespans.
    """
    possible = np.isfinite(cost)
    if not possible.any(axis=1).all():
        return np.full(len(makespan_s), np.inf)
    least_s = float(np.where(possible, begin_s, np.inf).min(axis=1).mean())
    falls = np.where(possible[:, 1:] & possible[:, :-1], -np.diff(np.where(possible, cost, 0.0), axis=1), 0.0)
    slopes = falls / np.maximum(np.diff(begin_s, axis=1), 1e-300)
    steep = slopes[(falls > 0) & (np.diff(begin_s, axis=1) > 0)]
    rates = np.concatenate([[0.0], np.geomspace(steep.min(), steep.max(), RATES)]) if len(steep) else np.zeros(1)
    least = np.min(np.where(possible, cost, np.inf)[:, :, None] + begin_s[:, :, None] * rates, axis=1).mean(axis=0)
    bound = (least - rates * makespan_s[:, None]).max(axis=1)
    return np.asarray(np.where(makespan_s < least_s * (1 - 1e-12), np.inf, bound * (1 - 1e-9)))
