"""Solves a linear programme whose coefficients are affine in one parameter, for many values of it, with OR-Tools' GLOP.

The returned bound is valid however imprecise the solver is: any multipliers
y of the rows, with the sign that each row's sides allow, prove

    c x  >=  sum_i (y_i > 0 ? y_i * low_i : y_i * high_i) + sum_j min over [l_j, u_j] of (c - y A)_j x_j

for every x within its bounds and rows (weak duality). The solver's multipliers are used, the sums are done here in floating
point, and 1e-9 of the terms' sizes is taken off for their rounding. So every column needs finite bounds.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from solver.model.workload import FloatArray
from solver.planning.work_budget import WorkBudget

ROUNDING = 1e-9
INFINITE = math.inf
MOST_ITERATIONS = 20000
ENTRY_S, ITERATION_S = 2e-6, 4e-5  # what an entry takes to hand over, and an iteration (see ``work_budget``)


@dataclass(frozen=True, eq=False)
class Solved:
    """A proved lower bound of the programme, and the (columns,) values that the solver found (zeros if it found none)."""

    bound: float
    values: FloatArray


def load() -> None:
    """Load OR-Tools, which takes a while the first time."""
    from ortools.linear_solver import pywraplp  # noqa: F401


class LinearModel:
    """A linear programme. Add rows and columns first; ``solve`` may be called repeatedly with other bounds,
    parameters and new rows."""

    def __init__(self, work_budget: WorkBudget | None = None) -> None:
        self.work_budget = work_budget or WorkBudget()
        self._low: list[float] = []
        self._high: list[float] = []
        self._cost: list[float] = []
        self._row_low: list[float] = []
        self._row_high: list[float] = []
        self._entries: list[tuple[int, int, float, float]] = []
        self._solver: Any = None
        self._columns: list[Any] = []
        self._rows: list[Any] = []
        self._frozen: tuple[Any, ...] | None = None

    def column(self, low: float, high: float, cost: float = 0.0) -> int:
        """Add a column with finite bounds and return its index."""
        self._low.append(low)
        self._high.append(high)
        self._cost.append(cost)
        self._frozen = None
        return len(self._low) - 1

    def row(self, low: float, high: float, entries: list[tuple[int, float, float]]) -> int:
        """Add a row low <= sum (fixed + slope * parameter) * column <= high and return its index; entries are
        (column, fixed, slope)."""
        index = len(self._row_low)
        self._row_low.append(low)
        self._row_high.append(high)
        self._entries.extend((index, column, fixed, slope) for column, fixed, slope in entries)
        self._frozen = None
        return index

    def set_row(self, row: int, low: float, high: float) -> None:
        """Change the sides of a row."""
        self._row_low[row], self._row_high[row] = low, high

    def sides(self, row: int) -> tuple[float, float]:
        """Return the sides of a row."""
        return self._row_low[row], self._row_high[row]

    def set_column(self, column: int, low: float, high: float) -> None:
        """Change the bounds of a column."""
        self._low[column], self._high[column] = low, high

    def set_cost(self, column: int, cost: float) -> None:
        """Change the cost of a column."""
        self._cost[column] = cost

    def _load(self) -> None:
        """Pass new rows and columns to the solver."""
        from ortools.linear_solver import pywraplp

        if self._solver is None:
            self._solver = pywraplp.Solver.CreateSolver("GLOP")
            self._solver.Objective().SetMinimization()
            self._known = [np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0)]
            self._coefficient = np.zeros(0)
        for j in range(len(self._columns), len(self._low)):
            self._columns.append(self._solver.NumVar(self._low[j], self._high[j], ""))
        for _ in range(len(self._rows), len(self._row_low)):
            self._rows.append(self._solver.Constraint(-INFINITE, INFINITE))
        entries = self._entries
        self._frozen = (
            np.array([e[0] for e in entries], dtype=np.int64),
            np.array([e[1] for e in entries], dtype=np.int64),
            np.array([e[2] for e in entries]),
            np.array([e[3] for e in entries]),
        )

    def solve(self, parameter: float) -> Solved:
        """Minimise at ``parameter``, starting from the previous basis, within the iterations that the work budget has left.

        Without a solution the bound follows from the columns' own bounds alone.
        """
        if self._frozen is None:
            self._load()
        assert self._frozen is not None
        row_of, column_of, fixed, slope = self._frozen
        coefficient = fixed + slope * parameter
        known = np.full(len(coefficient), np.nan)
        known[: len(self._coefficient)] = self._coefficient
        for e in np.flatnonzero(coefficient != known).tolist():
            self._rows[row_of[e]].SetCoefficient(self._columns[column_of[e]], float(coefficient[e]))
        self._coefficient = coefficient
        low, high, cost = np.array(self._low), np.array(self._high), np.array(self._cost)
        row_low, row_high = np.array(self._row_low), np.array(self._row_high)
        changed = [_changed(new, old) for new, old in zip((low, high, cost, row_low, row_high), self._known, strict=True)]
        for j in np.union1d(changed[0], changed[1]).tolist():
            self._columns[j].SetBounds(float(low[j]), float(high[j]))
        objective = self._solver.Objective()
        for j in changed[2].tolist():
            objective.SetCoefficient(self._columns[j], float(cost[j]))
        for i in np.union1d(changed[3], changed[4]).tolist():
            self._rows[i].SetBounds(float(row_low[i]), float(row_high[i]))
        self._known = [low, high, cost, row_low, row_high]
        self.work_budget.spend(ENTRY_S * len(coefficient))
        most = int(max(1, min(MOST_ITERATIONS, self.work_budget.left_s / ITERATION_S)))
        seconds = max(1e-3, self.work_budget.stop_at - time.perf_counter())
        self._solver.SetSolverSpecificParametersAsString(f"max_number_of_iterations: {most} max_time_in_seconds: {seconds}")
        status = self._solver.Solve()
        self.work_budget.spend(ITERATION_S * int(self._solver.iterations()))
        if status not in (0, 1):  # optimal, feasible
            bound = float(np.minimum(cost * low, cost * high).sum())
            return Solved(bound, np.zeros(len(low)))
        y = np.array([row.dual_value() for row in self._rows])
        values = np.array([column.solution_value() for column in self._columns])
        y = np.where(row_low == -INFINITE, np.minimum(y, 0.0), y)
        y = np.where(row_high == INFINITE, np.maximum(y, 0.0), y)
        sides = np.where(y > 0, y * np.where(y > 0, row_low, 0.0), y * np.where(y < 0, row_high, 0.0))
        reduced = cost - np.bincount(column_of, coefficient * y[row_of], minlength=len(cost))
        rests = np.minimum(reduced * low, reduced * high)
        size = float(np.abs(sides).sum() + np.abs(rests).sum())
        return Solved(float(sides.sum() + rests.sum()) - ROUNDING * size, values)


def _changed(new: FloatArray, old: FloatArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the indices at which ``new`` differs from the shorter ``old``."""
    before = np.full(len(new), np.nan)
    before[: len(old)] = old
    return np.flatnonzero(new != before)
