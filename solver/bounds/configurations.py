"""Lower bound on the iterations of any schedule, with whole actors: the configuration bound.

Assumptions are those of ``solver.bounds.schedules``. Slots and KV memory are left out, so the closed form there may be larger,
and results take the larger one. Inside this file units are those of the programme (``solver.bounds.configuration_lp``): one
second is the base time ``a``, one token the longest response, and a batch of load U takes 1 + U seconds per iteration.
``iterations_s`` converts.

**Bound.** Give every token a price. In any schedule, batches that decode at the same moment share no response, and together
they earn at most mu per second. A batch earns ``(sum of its tokens' prices - 1) / (seconds of its iteration)``, as an iteration
costs one base time. Integrated over a schedule that decodes for X, what is earned is all prices less all base times, so

    base times >= sum of all prices - mu X .

That holds for any prices, so the bound can be read whenever the search for better ones stops. It is a line in X, and a bound
curve is the largest of several lines. The best prices of the family below are near the dual of the configuration programme,
which knows one load per response. They are also near the prices of the closed form, under which every way to share the
responses earns the same. Both and one between are tried (``candidate_prices``).

**Phases.** What a response weighs while it decodes depends on how far it is. Take two moments of a schedule that decodes for at
most X. Between them it has decoded at most all it could until then, and at least what no longer fits after. So X is cut into
phases, each with a mu of its own. Such a line holds for schedules up to X only.

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

import itertools
import math
from dataclasses import dataclass

import numpy as np

from solver.bounds.configuration_lp import ConfigurationLP, LoadAxis, Prices
from solver.model.ordered_sums import dot
from solver.model.workload import FloatArray, IntArray

FIRST_SPARES = (1.0, 0.1, 4.0, 0.3, 0.03, 0.01, 0.003)  # the first times: longest response alone, plus so many times its time
TOLERANCE = 0.01  # of all base times and loads: largest gap between two times that is left
PHASES = 4
BLEND = 0.5  # weight of the programme's prices beside the closed form's
DEFAULT_WORK = 60_000_000  # counted: additions while pricing, and rows times iterations of the simplex method
ROUNDING_MARGIN = 1e-9  # of everything that is added up: far above the rounding of doubles
MIN_LAM, MIN_SPARE = 1e-9, 1e-4
PRICING_ADDITIONS = 35  # additions per pair of cells
GRID = 48  # values of F, the gain per second of a batch
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


def candidate_prices(axis: LoadAxis, dual: Prices, time: float, equal_loads: bool) -> list[tuple[PriceCurve, FloatArray]]:
    """Return curves with (G,) prices at mean load: the programme's at ``time``, the closed form's, and one between.

    Args:
        equal_loads: every token of a response weighs the same; then the programme's own prices are the best.
    """
    own = (PriceCurve(dual.batches[:, 0], dual.batches[:, 1]), dual.price)
    if equal_loads:
        return [own]
    spare = 1 / np.maximum(time / axis.length - 1, MIN_SPARE)
    closed_form, fluid = (1 + spare) ** 2 - 1, PriceCurve.fluid()
    return [own, *((fluid, share * dual.price + (1 - share) * closed_form) for share in (0.0, BLEND, 1.0))]


def falling_multipliers(curve: PriceCurve, price: FloatArray) -> FloatArray:
    """Return (G,) positive lam that fall along the axis and price a token of mean load at ``price`` or more, near it."""
    lam = np.maximum.accumulate(curve.multipliers(price)[::-1])[::-1]
    return np.asarray(np.maximum(lam, MIN_LAM * max(float(lam[0]), MIN_LAM)))


@dataclass(frozen=True)
class Line:
    """A lower bound on base times that one choice of prices proves: ``prices`` less the earnings of every phase.

    It holds for decoding times up to ``longest``. Phases are equally long, and ``slopes`` are their earnings per second."""

    prices: float
    slopes: tuple[float, ...]
    longest: float

    def at(self, time: float) -> float:
        """Return the bound for a decoding time of at most ``longest``."""
        if len(self.slopes) == 1:
            earned = self.slopes[0] * time
        else:
            phase = self.longest / len(self.slopes)
            earned = sum(slope * min(max(time - k * phase, 0.0), phase) for k, slope in enumerate(self.slopes))
        return self.prices * (1 - ROUNDING_MARGIN) - earned * (1 + ROUNDING_MARGIN)


@dataclass(frozen=True)
class ConfigurationBound:
    """Lower bound on the base times of all iterations, as a function of the time left to decode.

    Attributes:
        lines: of all prices that were tried. unit_s: base time times the longest response, in seconds.
        work: counted; finished: whether all times were examined within the work that was granted.
    """

    lines: tuple[Line, ...]
    unit_s: float
    work: int
    finished: bool

    def iterations_s(self, left_s: float) -> float:
        """Return the least base time of all iterations together of a schedule that decodes for at most ``left_s``."""
        time = left_s / self.unit_s
        return self.unit_s * max((line.at(time) for line in self.lines if time <= line.longest), default=0.0)


def configuration_bound(
    length: FloatArray, context: FloatArray, minorant: tuple[float, float, float], work: int = DEFAULT_WORK
) -> ConfigurationBound | None:
    """Return the bound of (N,) lengths and contexts for iterations of at least ``a + b B + c K``.

    The same input gives the same bound: work is counted, not timed, and the search stops between two times when it is used up.

    Args:
        minorant: a, b, c. work: the counted work that is granted; with 0 there is no bound.

    Returns:
        None where there is nothing to bound: no base time, no load, no tokens, or no work granted.
    """
    a, b, c = minorant
    working = length > 0
    if work <= 0 or not working.any() or a <= 0 or float((b + c * context[working]).min()) <= 1e-9 * a:
        return None
    axis = LoadAxis.of(length[working], context[working], minorant)
    program, search = ConfigurationLP(axis), _Search(axis)
    longest_alone = float((axis.lengths * (1 + axis.mean)).max())
    finished = False
    times = [longest_alone * (1 + spare) for spare in FIRST_SPARES]
    while search.work < work and not finished:
        time = times.pop(0) if times else search.next_time(longest_alone)
        finished = time is None
        if time is not None:
            search.add_lines_at(program, time)
    return ConfigurationBound(tuple(search.lines), a * float(length.max()), search.work, finished)


class _Search:
    """The lines that are proved so far, and the work that they took."""

    def __init__(self, axis: LoadAxis) -> None:
        self._axis = axis
        self._loads = axis.relative_loads()
        self._equal = bool(np.all(self._loads[1] - self._loads[0] <= 1e-9))
        self._values: dict[float, float] = {}
        self.lines = [Line(1.0, (0.0,), math.inf)]  # the longest response alone: its iterations are in different batches
        self.work = 0

    def add_lines_at(self, program: ConfigurationLP, time: float) -> None:
        """Add the lines of the programme's prices at ``time`` and of those around them."""
        dual = program.solve(time)
        if dual is None:
            self._values[time] = self._bound_at(time)
            return
        self.work += dual.iterations * 4 * len(self._axis.width)
        candidates = candidate_prices(self._axis, dual, time, self._equal)
        values = [self._add_line(curve, price, None).at(time) for curve, price in candidates]
        if not self._equal:
            values.append(self._add_line(*candidates[int(np.argmax(values))], time).at(time))
        self._values[time] = max(values)

    def next_time(self, longest_alone: float) -> float | None:
        """Return the time between two neighbours where the lines are furthest below the straight line between the values at
        both. None where they are near everywhere. The best bound is convex in time, so it is nowhere above that line."""
        best: tuple[float, float | None] = (TOLERANCE, None)
        for (early, early_value), (late, late_value) in itertools.pairwise(sorted(self._values.items())):
            time = longest_alone + math.sqrt((early - longest_alone) * (late - longest_alone))
            reached = self._bound_at(time)
            straight = early_value + (late_value - early_value) * (time - early) / (late - early)
            best = max(best, ((straight - reached) / (self._axis.work + reached), time), key=lambda gap: gap[0])
        return best[1]

    def _bound_at(self, time: float) -> float:
        return max(line.at(time) for line in self.lines if time <= line.longest)

    def _add_line(self, curve: PriceCurve, price: FloatArray, longest: float | None) -> Line:
        """Add and return the line of these prices, in phases up to ``longest`` if that is given."""
        axis = self._axis
        lam = falling_multipliers(curve, price)
        prices = float((axis.tokens * lam[:, None] * curve.at(axis.level / lam[:, None])).sum())
        loads = [self._loads]
        if longest is not None:
            edges = longest * np.arange(PHASES + 1) / PHASES
            loads = [axis.relative_loads(begin, end, longest) for begin, end in itertools.pairwise(edges.tolist())]
        slopes = tuple(max_earnings_per_s(axis, curve, lam, phase) for phase in loads)
        self.work += len(slopes) * PRICING_ADDITIONS * len(axis.width) ** 2
        line = Line(prices, slopes, math.inf if longest is None else longest)
        self.lines.append(line)
        return line
