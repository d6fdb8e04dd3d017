"""The configuration linear programme of whole actors, solved by column generation: prices per token for the bound.

Units here: one second is the base time ``a`` of an iteration, and one token is the longest response's length. A token with
context k has the load ``(b + c k) / a``. A response has the mean load of its tokens; relative loads are multiples of that mean.
Responses lie along an axis of their loads, the longest first, which is cut into cells of similar length (``LoadAxis``).

A configuration is a set of batches that decode at the same time. Along the axis a batch is a segment. One of load ``x`` takes
``1 + x`` seconds per iteration. The programme chooses for how long each configuration runs. Every response gets its tokens
within ``time``, and as few iterations as possible are run. Speeds of the longest responses must weakly majorise what they need,
as responses of equal price can change places.

Its dual has a price per token and load, falling along the axis, and a potential per boundary between cells:

    max  sum_k length_k (P_{k+1} - P_k) - time f_G    with   f_j - f_i >= (P_j - P_i - 1) / (1 + w_j - w_i)  for all i < j ,

f rising from 0, P concave from 0 (its slope is the price). The column of a segment (i, j) is a row with four numbers here.
Segments are added where they are violated; columns stay for the next time, as they do not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solver.model.workload import FloatArray

LEVELS = 12  # relative loads at which prices of a cell's tokens are read
MIN_WIDTH, WIDTH_PER_LOAD, WIDEST_FROM_LOAD = 0.003, 0.03, 2.0  # a cell at load w: MIN + PER_LOAD * min(w, WIDEST_FROM)
CELLS_PER_E_FOLD = 12.0  # cells while lengths fall by a factor of e
MAX_CELLS, MAX_CELLS_PER_RESPONSE = 110, 8  # cells at most, in all and per response
ROUNDS = 4  # of added columns of the programme per time
SEGMENT_GROWTH = 1.4  # of the lengths of the first segments
MIN_VIOLATION = 1e-4  # of the dual's value per second
MAX_PRICE = 1e5  # price per load that the programme may ask for


@dataclass(frozen=True, eq=False)
class LoadAxis:
    """Responses of similar length in cells, the longest first.

    Attributes:
        width: (G,) sum of the responses' mean loads. length: (G,) their mean length, weighted by load.
        tokens: (G, ``LEVELS``) tokens times mean load, split over the relative loads ``level`` so that a concave price is
            never read too high. level: (G, ``LEVELS``).
        indivisible: (G,) cells of one response of which no batch takes a share, because all responses have the same load.
        start, pieces: (C,) first response of C <= G groups, and into how many cells of equal width each is cut.
        mean, first, lengths: (N,) mean load, load of the first token and length of every response. growth: of a load, per unit
            of length. token: one token in the unit of lengths.
        work: the load of all tokens.
    """

    width: FloatArray
    length: FloatArray
    tokens: FloatArray
    level: FloatArray
    indivisible: NDArray[np.bool_]
    start: NDArray[np.int64]
    pieces: NDArray[np.int64]
    mean: FloatArray
    first: FloatArray
    growth: float
    lengths: FloatArray
    token: float
    work: float

    @classmethod
    def of(cls, length: FloatArray, context: FloatArray, minorant: tuple[float, float, float], finer: float = 1) -> LoadAxis:
        """Return the axis of (N,) positive lengths and contexts for ``minorant`` (a, b, c); loads must be above 0. Cells are
        ``finer`` times as many."""
        a, b, c = minorant
        order = np.lexsort((context, -length))
        length, context = length[order], context[order]
        first, last = (b + c * context) / a, (b + c * (context + length - 1)) / a
        mean = (first + last) / 2
        cells = min(MAX_CELLS * finer, MAX_CELLS_PER_RESPONSE * len(mean))
        starts = _groups(mean, length, cells, finer)
        count = np.diff(np.append(starts, len(mean)))
        group = np.repeat(np.arange(len(starts)), count)
        low, high = np.minimum.reduceat(first / mean, starts), np.maximum.reduceat(last / mean, starts)
        level = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, LEVELS)
        tokens = np.zeros_like(level)
        np.add.at(tokens, group, _split(first / mean, c / a / mean, length, level[group]) * (mean / length[0])[:, None])
        width, group_load = np.add.reduceat(mean, starts), np.add.reduceat(mean * length, starts) / length[0]
        indivisible = (count == 1) & bool(last.max() - first.min() <= 1e-12 * last.max())
        load_before = np.cumsum(width) - width
        cells_wanted = width / (MIN_WIDTH + WIDTH_PER_LOAD * np.minimum(load_before, WIDEST_FROM_LOAD)) * finer
        pieces = np.where(indivisible, 1, np.maximum(np.rint(cells_wanted * min(1.0, cells / cells_wanted.sum())), 1)).astype(
            np.int64
        )
        return cls(
            np.repeat(width / pieces, pieces), np.repeat(group_load / width, pieces),
            np.repeat(tokens / pieces[:, None], pieces, axis=0), np.repeat(level, pieces, axis=0),
            np.repeat(indivisible, pieces), starts, pieces, mean, first, c / a * float(length[0]),
            length / length[0], 1 / float(length[0]), float(group_load.sum()),
        )  # fmt: skip

    def relative_loads(
        self, begin_s: float = 0.0, end_s: float = np.inf, max_s: float = np.inf
    ) -> tuple[FloatArray, FloatArray]:
        """Return the least and largest relative load, (G,) each, of a token that is decoded between two moments. The schedule
        takes at most ``max_s``.

        A response has decoded at most ``end / (1 + first load)`` tokens by then, and the rest still has to fit into the time
        left.
        """
        rate, all_but_one = 1 / (1 + self.first), self.lengths - self.token
        earliest = np.clip(all_but_one - (max_s - begin_s) * rate, 0.0, None) if np.isfinite(max_s) else 0.0 * rate
        latest = np.minimum(all_but_one, end_s * rate)
        low, high = (self.first + self.growth * tokens for tokens in (earliest, np.maximum(latest, earliest)))
        min_load, max_load = np.minimum.reduceat(low / self.mean, self.start), np.maximum.reduceat(high / self.mean, self.start)
        return np.repeat(min_load, self.pieces), np.repeat(max_load, self.pieces)


def _groups(mean: FloatArray, length: FloatArray, cells: float, finer: float) -> NDArray[np.int64]:
    """Return the first response of each group."""
    load_before = np.cumsum(mean) - mean
    capped = np.minimum(load_before, WIDEST_FROM_LOAD)
    measure = np.log1p(capped * WIDTH_PER_LOAD / MIN_WIDTH) / WIDTH_PER_LOAD + (load_before - capped) / (
        MIN_WIDTH + WIDTH_PER_LOAD * WIDEST_FROM_LOAD
    )
    measure = finer * (measure + CELLS_PER_E_FOLD * np.log(length[0] / length))
    cell = np.floor(measure / max(1.0, (measure[-1] + 1) / cells))
    return np.flatnonzero(np.append(True, np.diff(cell) > 0))


def _split(first: FloatArray, growth: FloatArray, length: FloatArray, level: FloatArray) -> FloatArray:
    """Return (N, ``LEVELS``) weights of each response's tokens, of relative loads ``first + growth * j``, on the levels around
    them: what linear interpolation between levels gives to each."""
    width = (level[:, -1] - level[:, 0])[:, None] / (LEVELS - 1)
    tokens = length[:, None]
    flat = width <= 1e-12
    steps = np.where(growth > 0, growth, 1.0)[:, None]
    begin = np.clip(np.ceil((level - first[:, None]) / steps), 0, tokens)
    above = (tokens - begin) * (first[:, None] - level) + growth[:, None] * (tokens - begin) * (begin + tokens - 1) / 2
    falls = np.diff(above, axis=1) / np.where(flat, 1.0, width)
    weights = np.diff(np.concatenate([-tokens, falls, np.zeros_like(tokens)], axis=1), axis=1)
    flat_weights = np.zeros_like(weights)
    flat_weights[:, 0] = length
    return np.where(flat, flat_weights, weights)


class Prices(NamedTuple):
    """A solution of the dual.

    Attributes:
        price: (G,) per token and mean load, falling. batches: (B, 2) seconds of an iteration, and gain per second of it, of
            the batches that the primal runs. optimum: of the programme over the segments that it holds.
        iterations: of the simplex method, all rounds.
    """

    price: FloatArray
    batches: FloatArray
    optimum: float
    iterations: int


class ConfigurationLP:
    """The configuration LP on one load axis, solved by GLOP of OR-Tools. Solving it for increasing times reuses the basis."""

    def __init__(self, axis: LoadAxis) -> None:
        from ortools.linear_solver import pywraplp

        self._axis = axis
        self._lp: Any = pywraplp.Solver.CreateSolver("GLOP")
        self._optimal = pywraplp.Solver.OPTIMAL
        cells, width = len(axis.width), axis.width
        boundary = np.concatenate([[0.0], np.cumsum(width)])
        self._forward = np.triu(np.ones((cells + 1, cells + 1), dtype=bool), 1)
        self._seconds = np.where(self._forward, 1 + boundary[None, :] - boundary[:, None], np.inf)
        self._has_segment = ~self._forward
        self._segments: list[tuple[int, int]] = []
        self._columns: list[Any] = []
        infinity = self._lp.infinity()
        self._total = [self._lp.NumVar(0.0, infinity if k else 0.0, "") for k in range(cells + 1)]
        self._potential = [self._lp.NumVar(0.0, infinity if k else 0.0, "") for k in range(cells + 1)]
        self._total[1].SetUb(MAX_PRICE * float(width[0]))
        for k in range(cells):
            self._add_constraint(0.0, [(self._potential[k + 1], 1.0), (self._potential[k], -1.0)])
            if k + 1 < cells:
                next_weight, previous_weight = (float(x / max(width[k], width[k + 1])) for x in (width[k + 1], width[k]))
                self._add_constraint(
                    0.0,
                    [
                        (self._total[k + 1], next_weight + previous_weight),
                        (self._total[k], -next_weight),
                        (self._total[k + 2], -previous_weight),
                    ],
                )
        self._add_constraint(0.0, [(self._total[cells], 1.0), (self._total[cells - 1], -1.0)])
        for i in range(cells):
            cells_ahead = 1
            while i + cells_ahead < cells:
                self._add_segment(i, i + cells_ahead)
                cells_ahead = max(cells_ahead + 1, int(cells_ahead * SEGMENT_GROWTH))
            self._add_segment(i, cells)

    def _add_constraint(self, lower_bound: float, terms: list[tuple[Any, float]]) -> Any:
        row = self._lp.Constraint(lower_bound, self._lp.infinity())
        for variable, factor in terms:
            row.SetCoefficient(variable, factor)
        return row

    def _add_segment(self, i: int, j: int) -> None:
        seconds = float(self._seconds[i, j])
        terms = [(self._potential[j], seconds), (self._potential[i], -seconds), (self._total[j], -1.0), (self._total[i], 1.0)]
        self._has_segment[i, j] = True
        self._segments.append((i, j))
        self._columns.append(self._add_constraint(-1.0, terms))

    def solve(self, time: float, rounds: int = ROUNDS) -> Prices | None:
        """Return prices for ``time``; None where GLOP finds none."""
        length = self._axis.length
        value = np.append(0.0, length) - np.append(length, 0.0)
        objective = self._lp.Objective()
        for variable, factor in zip(self._total, value.tolist(), strict=True):
            objective.SetCoefficient(variable, factor)
        objective.SetCoefficient(self._potential[-1], -time)
        objective.SetMaximization()
        iterations = 0
        for k in range(rounds):
            if self._lp.Solve() != self._optimal:
                return None
            iterations += self._lp.iterations()
            total, potential = (np.array([v.solution_value() for v in x]) for x in (self._total, self._potential))
            violated = self._violated(total, potential)
            if k + 1 == rounds or not violated:
                break
            for i, j in violated:
                self._add_segment(i, j)
        used = np.abs([column.dual_value() for column in self._columns]) > 1e-9 * time
        i, j = np.array(self._segments)[used].T
        batches = np.stack([self._seconds[i, j], np.maximum(potential[j] - potential[i], 1e-9)], axis=1)
        steps = np.maximum(np.diff(total) / self._axis.width, 0.0)
        return Prices(np.maximum.accumulate(steps[::-1])[::-1], batches, float(objective.Value()), iterations)

    def _violated(self, total: FloatArray, potential: FloatArray) -> list[tuple[int, int]]:
        """Return the most violated segment into and out of each boundary."""
        violated = (total[None, :] - total[:, None] - 1) / self._seconds - (potential[None, :] - potential[:, None])
        violated[self._has_segment] = -np.inf
        min_violation = MIN_VIOLATION * max(float(potential[-1]), 1e-3)
        entering = {(int(i), j) for j, i in enumerate(violated.argmax(axis=0))}
        segments = sorted(entering | {(i, int(j)) for i, j in enumerate(violated.argmax(axis=1))})
        return [(i, j) for i, j in segments if violated[i, j] > min_violation]
