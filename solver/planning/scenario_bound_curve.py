"""Computes the bound curve of a front over scenarios: the least mean cost of any plan with a given mean makespan.

Inputs are the bounds of single scenarios, as numbers.

**Statement.** For every scenario s let the makespans that a plan may have there be covered by intervals that begin at t_si, and
let no plan whose makespan there lies in the i-th cost less than c_si there. Then a plan with mean makespan T has a mean cost of
at least ``mean_s min_i (c_si + r t_si) - r T`` for every r >= 0. *Proof.* In s the plan takes some T_s and C_s with
``C_s + r T_s >= c_si + r t_si`` for the interval of T_s, so at least the minimum; take the mean over s. The bound is the
largest of these for many r: the curves of single scenarios made convex and added up (one plan is the same in all of them,
which it leaves aside). It never rises with T, so it holds for all plans up to T.
"""

from __future__ import annotations

import numpy as np

from solver.model.workload import FloatArray

RATES = 256  # values of r


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
