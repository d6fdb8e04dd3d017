"""The configuration linear programme of whole actors, solved by column generation: prices per token for the exact bound.

A configuration is a set of batches that decode at the same time. Along the axis of loads (longest responses first) a batch is a
segment. One of load ``x`` takes ``1 + x`` seconds per iteration (units of ``solver.bounds.load_axis``). The programme chooses
for how long each configuration runs. Every response gets its tokens within ``time``, and as few iterations as possible are run.
Speeds of the longest responses must weakly majorise what they need, as responses of equal price can change places.

Its dual has a price per token and load, falling along the axis, and a potential per boundary between cells:

    max  sum_k length_k (P_{k+1} - P_k) - time f_G    with   f_j - f_i >= (P_j - P_i - 1) / (1 + w_j - w_i)  for all i < j ,

f rising from 0, P concave from 0 (its slope is the price). The column of a segment (i, j) is a row with four numbers here.
Segments are added where they are violated; columns stay for the next time, as they do not depend on it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from solver.bounds.load_axis import LoadAxis
from solver.model.workload import FloatArray

ROUNDS = 4  # of added columns per time
SEGMENT_GROWTH = 1.4  # of the lengths of the first segments
MIN_VIOLATION = 1e-4  # of the dual's value per second
MAX_PRICE = 1e5  # price per load that the programme may ask for


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
