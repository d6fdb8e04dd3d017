"""What prices per token can earn per second at most, over all configurations of whole actors: the slope of a dual bound.

Units are those of ``solver.bounds.load_axis``; a batch of load U takes 1 + U seconds per iteration.

**Prices.** A concave, rising curve zeta (``PriceCurve``) and a number lam_i per response, falling along the axis, price a token
of relative load r at ``lam_i zeta(r / lam_i)`` per unit of the response's mean load. A batch S earns, per second, ``F = (sum of
its tokens' prices - 1) / (1 + U)``. Let ``psi_i(F)`` be the largest of ``lam_i zeta(r / lam_i) - F r`` over the loads r that
tokens of i can have. Then ``sum_S psi_i(F) >= 1 + F``. So mu, the most that a configuration earns, has an upper bound. It is at
most the largest sum of F over batches that share no response and keep this inequality.

**Segments are enough.** For intervals of r / lam_i whose both ends rise along the axis, psi_i(F) / psi_k(F) rises with F for i
before k. Proof: the maximum is at s, the unconstrained maximiser clipped to the interval, so s rises along the axis; ``-d log
psi / dF = s / (zeta(s) - F s) = 1 / (zeta(s) / s - F)`` rises with s, because zeta(s) / s falls. Batches may take shares of
responses (a relaxation). Let the batch with smaller F hold a share of i, and the one with larger F a share of k. Exchange the
shares so that the former keeps its sum: that does not lower the sum of the latter. So segments of the axis, F falling along it,
earn the most. Ends that do not rise are moved outwards first, which allows more loads.

**Boundaries.** psi is linear between two points of a grid of F here, a chord above the convex psi; both properties stay. For a
segment from x to y, F(x, y) solves ``sum psi = 1 + F``. Within a cell of width d, psi per load and the greatest load r are
constant. The second derivative of F in y is at least ``-2 r psi / (1 + least loads)^2``, and so it is in x. Round every
boundary to an end of its cell at random so that its mean stays (one draw per cell): the expected sum is at least the sum of F
less ``d^2 r psi / (4 (1 + least loads)^2)`` per boundary. So the best sum over segments between cells, each with this added, is
at least mu. Segments inside one cell never gain by it where ``d^2 r psi <= 1``; elsewhere what they can earn, ``d psi - 1``, is
added. Where all responses weigh the same no batch takes a share of one, so a cell of one response needs none of this.
"""

from __future__ import annotations

import numpy as np

from solver.bounds.load_axis import LoadAxis
from solver.model.ordered_sums import dot
from solver.model.workload import FloatArray, IntArray

GRID = 48  # values of F
MIN_GAIN = 1e-2
FLUID_LINES = 48  # lines of the fluid curve


class PriceCurve:
    """The least of several lines ``intercept + slope * s``: a concave, rising, piecewise linear function of s >= 0."""

    def __init__(self, intercept: FloatArray, slope: FloatArray) -> None:
        order = np.lexsort((slope, intercept))
        lines, kinks = [int(order[0])], [0.0]
        while True:
            line = lines[-1]
            flatter = np.flatnonzero(slope < slope[line])
            if not len(flatter):
                break
            cross = (intercept[flatter] - intercept[line]) / (slope[line] - slope[flatter])
            best = int(np.lexsort((slope[flatter], cross))[0])
            lines.append(int(flatter[best]))
            kinks.append(max(float(cross[best]), kinks[-1]))
        self._intercept, self._slope, self._kinks = intercept[lines], slope[lines], np.array([*kinks[1:], np.inf])

    @classmethod
    def fluid(cls) -> PriceCurve:
        """Return tangents of ``1 + 2 sqrt(s)``, the curve that the closed form's prices follow."""
        load = np.geomspace(0.02, 50.0, FLUID_LINES)
        return cls(1 + load, 1 / load)

    def at(self, s: FloatArray) -> FloatArray:
        """Return the value at ``s``."""
        line = np.searchsorted(self._kinks[:-1], s, side="right")
        return np.asarray(self._intercept[line] + self._slope[line] * s)

    def maximiser(self, gain: FloatArray) -> FloatArray:
        """Return where the curve less ``gain * s`` is largest; infinite where it rises for ever."""
        steeper = np.searchsorted(-self._slope, -gain, side="left")
        return np.asarray(np.append(0.0, self._kinks)[steeper])

    def multipliers(self, price: FloatArray) -> FloatArray:
        """Return lam with ``lam * curve(1 / lam) = price``, as far as lam >= 0 allows."""
        return np.asarray(np.maximum((price[:, None] - self._slope) / self._intercept, 0.0).max(axis=1))


def max_earnings_per_s(axis: LoadAxis, curve: PriceCurve, lam: FloatArray, loads: tuple[FloatArray, FloatArray]) -> float:
    """Return an upper bound on what a configuration earns per second.

    Args:
        lam: (G,) positive, falling. loads: (G,) least and (G,) largest relative load of a token.
    """
    low = np.minimum.accumulate((loads[0] / lam)[::-1])[::-1]
    high = np.maximum.accumulate(loads[1] / lam)
    width, cells = axis.width, len(axis.width)
    max_psi = lam * (curve.at(high) + high)  # psi at F = -1, where it is largest
    heaviest = lam * high
    grid = np.concatenate(
        [[-1.0, -0.4, -0.1, 0.0], np.geomspace(MIN_GAIN, max(2 * MIN_GAIN, float(dot(max_psi, width))) * 1.001, GRID)]
    )
    load = np.clip(curve.maximiser(grid)[:, None], low, high)
    psi = np.maximum(lam * (curve.at(load) - grid[:, None] * load), 0.0)
    total = np.concatenate([np.zeros((len(grid), 1)), np.cumsum(psi * width, axis=1)], axis=1)
    bend = np.where(axis.indivisible, 0.0, width**2 * heaviest * max_psi)
    rounding_gain = np.maximum(np.append(bend, 0.0), np.insert(bend, 0, 0.0)) / 4
    load_before = np.append(0.0, np.cumsum(width * lam * low))
    cell_load = np.maximum(np.append(width * lam * low, 0.0), np.insert(width * lam * low, 0, 0.0))
    first, last = np.triu_indices(cells, 1, cells + 1)  # of every segment, those of one first boundary after the other
    gain = _gain_per_s(total, grid, first, last)
    seconds = np.maximum(1.0, 1 + load_before[last] - load_before[first] - cell_load[last] - cell_load[first])
    gain += (rounding_gain[last] + rounding_gain[first]) / seconds**2
    best, begin = np.zeros(cells + 1), 0
    for i in range(cells):
        if i:
            best[i] = max(best[i], best[i - 1])
        end = begin + cells - i
        np.maximum(best[i + 1 :], best[i] + gain[begin:end], out=best[i + 1 :])
        begin = end
    inside_cells = np.where(bend > 1, np.maximum(width * max_psi - 1, 0.0), 0.0)
    return float(max(best[-1], best[-2]) + inside_cells.sum())


def _gain_per_s(total: FloatArray, grid: FloatArray, first: IntArray, last: IntArray) -> FloatArray:
    """Return F of segments: where their sum of psi is ``1 + F``, between two values of the grid.

    Args:
        total: (F, G + 1) sums of psi up to every boundary. grid: (F,) rising. first, last: (S,) boundaries of the segments.
    """
    boundaries = total.shape[1]
    reached = np.stack([row.searchsorted(row + 1 + value) for row, value in zip(total, grid.tolist(), strict=True)])
    enough = np.arange(boundaries) * (boundaries + 1) + reached  # the nearest last boundary, for each value and first one
    count = np.bincount(enough.ravel(), minlength=boundaries * (boundaries + 1)).reshape(boundaries, boundaries + 1)
    cell = np.clip(np.cumsum(count, axis=1)[first, last] - 1, 0, len(grid) - 2)
    at, after = (total[k, last] - total[k, first] - (1 + grid)[k] for k in (cell, cell + 1))
    return np.asarray(grid[cell] + (grid[cell + 1] - grid[cell]) * at / np.maximum(at - after, 1e-300))
