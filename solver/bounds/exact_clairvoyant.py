"""Lower bound on the iterations of any schedule that knows the true lengths, with whole actors: the configuration bound.

Assumptions are those of ``solver.bounds.clairvoyant``. Slots and KV memory are left out, so the closed form there may be
larger, and results take the larger one. Inside this file one second is the base time ``a``, one token the longest response
(``solver.bounds.load_axis``); ``iterations_s`` converts.

**Bound.** Give every token a price. In any schedule, batches that decode at the same moment share no response, and together
they earn at most mu per second. A batch earns ``(sum of its tokens' prices - 1) / (seconds of its iteration)``, as an iteration
costs one base time. Integrated over a schedule that decodes for X, what is earned is all prices less all base times, so

    base times >= sum of all prices - mu X .

That holds for any prices, so the bound can be read whenever the search for better ones stops. It is a line in X, and a bound
curve is the largest of several lines. ``solver.bounds.pricing`` proves an upper bound on mu for prices of one family. Their
best members are near the dual of the configuration linear programme (``solver.bounds.configuration_lp``), which knows one load
per response. They are also near the prices of the closed form, under which every way to share the responses earns the same.
Both and one between are tried.

**Phases.** What a response weighs while it decodes depends on how far it is. Take two moments of a schedule that decodes for at
most X. Between them it has decoded at most all it could until then, and at least what no longer fits after. So X is cut into
phases, each with a mu of its own. Such a line holds for schedules up to X only.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from solver.bounds.configuration_lp import ConfigurationLP
from solver.bounds.load_axis import LoadAxis
from solver.bounds.pricing import PriceCurve, max_earnings_per_s
from solver.model.workload import FloatArray

FIRST_SPARES = (1.0, 0.1, 4.0, 0.3, 0.03, 0.01, 0.003)  # the first times: longest response alone, plus so many times its time
TOLERANCE = 0.01  # of all base times and loads: largest gap between two times that is left
PHASES = 4
BLEND = 0.5  # weight of the programme's prices beside the closed form's
DEFAULT_WORK = 60_000_000  # counted: additions while pricing, and rows times iterations of the simplex method
ROUNDING_MARGIN = 1e-9  # of everything that is added up: far above the rounding of doubles
MIN_LAM, MIN_SPARE = 1e-9, 1e-4
PRICING_ADDITIONS = 35  # additions per pair of cells


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
        optima: (time in seconds, base times in seconds) of the programme, which knows one load per response, at each time.
    """

    lines: tuple[Line, ...]
    unit_s: float
    work: int
    finished: bool
    optima: tuple[tuple[float, float], ...]

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
    optima: dict[float, float] = {}
    finished = False
    times = [longest_alone * (1 + spare) for spare in FIRST_SPARES]
    while search.work < work and not finished:
        time = times.pop(0) if times else search.next_time(longest_alone)
        finished = time is None
        if time is not None:
            optima[time] = search.add_lines_at(program, time)
    unit_s = a * float(length.max())
    return ConfigurationBound(
        tuple(search.lines), unit_s, search.work, finished, tuple((t * unit_s, v * unit_s) for t, v in optima.items())
    )


class _Search:
    """The lines that are proved so far, and the work that they took."""

    def __init__(self, axis: LoadAxis) -> None:
        self._axis = axis
        self._loads = axis.relative_loads()
        self._equal = bool(np.all(self._loads[1] - self._loads[0] <= 1e-9))
        self._values: dict[float, float] = {}
        self.lines = [Line(1.0, (0.0,), math.inf)]  # the longest response alone: its iterations are in different batches
        self.work = 0

    def add_lines_at(self, program: ConfigurationLP, time: float) -> float:
        """Add the lines of the programme's prices at ``time`` and of those around them; return the programme's optimum."""
        dual = program.solve(time)
        if dual is None:
            self._values[time] = self._bound_at(time)
            return math.nan
        self.work += dual.iterations * 4 * len(self._axis.width)
        dual_curve = PriceCurve(dual.batches[:, 0], dual.batches[:, 1])
        candidates = [(dual_curve, dual.price)]
        if not self._equal:  # where every token of a response weighs the same, the programme's own prices are the best
            spare = 1 / np.maximum(time / self._axis.length - 1, MIN_SPARE)
            closed_form, fluid = (1 + spare) ** 2 - 1, PriceCurve.fluid()
            candidates += [(fluid, share * dual.price + (1 - share) * closed_form) for share in (0.0, BLEND, 1.0)]
        values = [self._add_line(curve, price, None).at(time) for curve, price in candidates]
        if not self._equal:
            values.append(self._add_line(*candidates[int(np.argmax(values))], time).at(time))
        self._values[time] = max(values)
        return dual.optimum

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
        lam = np.maximum.accumulate(curve.multipliers(price)[::-1])[::-1]
        lam = np.maximum(lam, MIN_LAM * max(float(lam[0]), MIN_LAM))
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
