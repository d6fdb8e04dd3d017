"""The model that OR-Tools solves: which columns are bought at a makespan.

At a makespan M, over the columns c whose risk (mean or conditional value at risk of their seconds over the scenarios) is at
most M:

    z[c] in {0, 1}
    flow    at cut 0 one column begins; at every other cut as many begin as end
    pools   sum of floor(g_c / d) n_c z[c] <= nodes * floor(G / d)    for each actor size d of the pool
    warm    sum of n_c z[c] over prewarmed columns of a pool <= prewarmed
    counts  least <= sum of n_c z[c] <= most
    minimise  the sum of cost[c] z[c]

The flow rows alone are a shortest path, so GLOP's solution is whole or nearly so. Only the pool rows can make it fractional.
Then SCIP chooses among the columns whose reduced cost is small.

GLOP never sees all columns. Given the dual values of the side rows, all columns are priced in a few array operations and a
shortest path (dynamic programming over the cuts) finds the best ones that are missing. They join GLOP's model until the path's
cost, less the duals' price of the sides, shows that no other column would lower its cost (column generation with a Lagrangian
bound). So its solution is that of the whole model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from solver.generation.columns import Columns
from solver.model.ordered_sums import dot
from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray, IntArray
from solver.timing.items import Items
from solver.timing.step_cost import StepObjective

NEAR = 0.03  # of the cost: reduced costs of columns among which SCIP chooses
NODES = 200  # of SCIP's branch and bound
GAP = 1e-3  # relative, at which SCIP stops: prices in cells are coarser
JOINED = 200  # columns that join GLOP's in one round
ROUNDS = 40  # of pricing
PRECISE = 1e-7  # relative, of the linear programme's least cost
SKIPPED = 10.0  # times the cost of a cheapest path, for skipping everything
WHOLE = 1e-6  # values this near to a whole number are whole


@dataclass(frozen=True, eq=False)
class Relaxed:
    """The linear programme at one makespan: its least cost, the columns used with their values, and (C,) reduced costs,
    infinite for the columns that are too slow."""

    cost: float
    columns: IntArray
    values: FloatArray
    reduced: FloatArray


class ColumnModel:
    """Buys columns that cover all items.

    Args:
        cells: number of cells between the cuts.
    """

    def __init__(self, columns: Columns, cells: int, items: Items, problem: PlanningProblem, goal: StepObjective) -> None:
        self.columns, self.cells, self.items, self.goal = columns, cells, items, goal
        self.risk_s = risks(columns.time_s, goal.objective.cvar_alpha)
        self.rows, self.row_low, self.row_high = _side_rows(columns, items, problem)
        self.active: IntArray = np.zeros(0, dtype=np.int64)
        self.begin = np.argsort(columns.first, kind="stable")
        self.begins_at = np.searchsorted(columns.first[self.begin], np.arange(cells + 1))

    def cost_at(self, makespan_s: float) -> FloatArray:
        """Return the (C,) mean cost of the columns; where GPUs are held to the end it depends on the makespan."""
        c, after = self.columns, self.goal.held_after_s
        held = c.held_s.mean(axis=1) if after is None else c.actors * (makespan_s + after)
        return np.asarray(self.items.rate[c.offer] * held)

    def at(self, makespan_s: float) -> Relaxed | None:
        """Return the linear programme's solution; None if no plan keeps the makespan."""
        usable = self.risk_s <= makespan_s * (1 + 1e-9)
        cost = self.cost_at(makespan_s)
        duals = np.zeros(len(self.row_low))
        active = self.active[usable[self.active]]
        solved: tuple[float, FloatArray, FloatArray, float] | None = None
        skip, best_bound, reduced = 0.0, -math.inf, cost
        for _ in range(ROUNDS):
            priced = np.where(usable, cost - dot(duals, self.rows), np.inf)
            least, path = self._shortest_path(priced)
            if path is None:
                return None
            reduced = priced + least[self.columns.last] - least[self.columns.first]
            sides = np.where(duals > 0, self.row_low, self.row_high)
            best_bound = max(best_bound, float(least[0]) + float(dot(duals[duals != 0], sides[duals != 0])))
            if solved is not None and best_bound >= solved[0] - PRECISE * abs(solved[0]):
                break
            joins = np.argpartition(reduced, min(JOINED, len(reduced) - 1))[:JOINED]
            joins = np.setdiff1d(np.append(path, joins[reduced[joins] < np.inf]), active)
            if solved is None:  # a column that skips everything keeps the model solvable while it has too few columns
                skip = SKIPPED * float(cost[path].sum()) + 1.0
            elif not len(joins):
                break
            active = np.union1d(active, joins)
            found = self._solve(active, cost, skip)
            if found is None:
                return None
            solved = found
            duals = solved[2]
        assert solved is not None
        value, values, _, skipped = solved
        used = np.flatnonzero(values > 1e-9)
        self.active = active[used]
        if skipped > WHOLE:
            return None
        return Relaxed(value, active[used], values[used], reduced)

    def whole(self, makespan_s: float, relaxed: Relaxed) -> IntArray | None:
        """Return the chosen columns in their order; SCIP chooses among those of small reduced cost where GLOP's solution is
        fractional. None if it finds none."""
        if np.abs(relaxed.values - np.rint(relaxed.values)).max() < WHOLE:
            chosen = relaxed.columns[relaxed.values > 0.5]
        else:
            which = np.flatnonzero(relaxed.reduced <= NEAR * relaxed.cost)
            which = np.union1d(which, relaxed.columns)
            values = self._solve_whole(which, self.cost_at(makespan_s))
            if values is None:
                return None
            chosen = which[values > 0.5]
        return np.asarray(chosen[np.argsort(self.columns.first[chosen], kind="stable")])

    def value(self, chosen: IntArray, objective: Any = None) -> float:
        """Return the value over the scenarios of buying these columns, by their prices."""
        makespan_s = self.columns.time_s[chosen].max(axis=0)
        held, after = self.columns.held_s[chosen], self.goal.held_after_s
        if after is not None:
            held = self.columns.actors[chosen, None] * (makespan_s + after)
        cost = (self.items.rate[self.columns.offer[chosen], None] * held).sum(axis=0)
        objective = self.goal.objective if objective is None else objective
        return float(objective.value_over(*self.goal.step(makespan_s, cost), self.goal.norms))

    def _shortest_path(self, cost: FloatArray) -> tuple[FloatArray, IntArray | None]:
        """Return the (P+1,) least cost from each cut to the last one without side rows, and the columns of a cheapest path from
        the first cut; None if there is none."""
        least, best = np.full(self.cells + 1, np.inf), np.full(self.cells, -1)
        least[self.cells] = 0.0
        last = self.columns.last
        for p in range(self.cells - 1, -1, -1):
            mine = self.begin[self.begins_at[p] : self.begins_at[p + 1]]
            if len(mine):
                total = cost[mine] + least[last[mine]]
                k = int(np.argmin(total))
                least[p], best[p] = total[k], mine[k]
        if not math.isfinite(least[0]):
            return least, None
        least[~np.isfinite(least)] = least[np.isfinite(least)].max()
        path, p = [], 0
        while p < self.cells:
            path.append(int(best[p]))
            p = int(last[best[p]])
        return least, np.array(path, dtype=np.int64)

    def _proto(self, which: IntArray, cost: FloatArray, skip: float | None) -> Any:
        """Return the model over these columns as arrays, with a last column that skips everything at the cost ``skip``."""
        from ortools.math_opt import model_pb2

        n, rows = len(which), self.cells + len(self.row_low)
        model = model_pb2.ModelProto()
        variables, constraints, matrix = model.variables, model.linear_constraints, model.linear_constraint_matrix
        extra = 0 if skip is None else 1
        variables.ids.extend(range(n + extra))
        variables.lower_bounds.extend([0.0] * (n + extra))
        variables.upper_bounds.extend([1.0] * (n + extra))
        variables.integers.extend([skip is None] * (n + extra))
        model.objective.linear_coefficients.ids.extend(range(n + extra))
        model.objective.linear_coefficients.values.extend([*cost[which].tolist(), *([] if skip is None else [skip])])
        constraints.ids.extend(range(rows))
        flow = [1.0] + [0.0] * (self.cells - 1)
        constraints.lower_bounds.extend([*flow, *self.row_low])
        constraints.upper_bounds.extend([*flow, *self.row_high])
        first, last, at = self.columns.first[which], self.columns.last[which], np.arange(n)
        inner = last < self.cells
        side, column = np.nonzero(self.rows[:, which])
        # skipping everything counts as the least number of actors, so that it is always a solution
        skipped = [0, *(self.cells + k for k, least in enumerate(self.row_low) if least > 0)] * extra
        skips = [1.0, *(least for least in self.row_low if least > 0)] * extra
        row = np.concatenate([first, last[inner], self.cells + side, np.array(skipped, dtype=np.int64)])
        col = np.concatenate([at, at[inner], column, np.full(len(skipped), n)])
        entry = np.concatenate([np.ones(n), -np.ones(int(inner.sum())), self.rows[:, which][side, column], skips])
        order = np.lexsort((col, row))
        matrix.row_ids.extend(row[order].tolist())
        matrix.column_ids.extend(col[order].tolist())
        matrix.coefficients.extend(entry[order].tolist())
        return model

    def _solve(self, which: IntArray, cost: FloatArray, skip: float) -> tuple[float, FloatArray, FloatArray, float] | None:
        """Return GLOP's least cost, its values of these columns, the dual values of the side rows, and how much is skipped.

        None if GLOP finds no solution, though skipping everything is one: its numbers are too far apart then.
        """
        from ortools.math_opt.python import mathopt

        model = mathopt.Model.from_model_proto(self._proto(which, cost, skip))
        sides = list(model.linear_constraints())[self.cells :]
        wanted = mathopt.ModelSolveParameters(
            variable_values_filter=mathopt.VariableFilter(skip_zero_values=True),
            dual_values_filter=mathopt.LinearConstraintFilter(filtered_items=sides),
            reduced_costs_filter=mathopt.VariableFilter(filtered_items=[]),
        )
        result = mathopt.solve(
            model, mathopt.SolverType.GLOP, params=mathopt.SolveParameters(random_seed=0), model_params=wanted
        )
        if not result.has_primal_feasible_solution() or not result.has_dual_feasible_solution():
            return None
        values = np.zeros(len(which) + 1)
        for variable, value in result.variable_values().items():
            values[variable.id] = value
        duals = result.dual_values()
        return float(result.objective_value()), values[:-1], np.array([duals[row] for row in sides]), float(values[-1])

    def _solve_whole(self, which: IntArray, cost: FloatArray) -> FloatArray | None:
        """Return SCIP's values of these columns, 0 or 1; None if it finds no plan."""
        from ortools.math_opt.python import mathopt

        model = mathopt.Model.from_model_proto(self._proto(which, cost, None))
        off = mathopt.Emphasis.OFF  # cuts and presolve take ten times as long as the search itself
        params = mathopt.SolveParameters(
            node_limit=NODES, threads=1, random_seed=0, relative_gap_tolerance=GAP, cuts=off, presolve=off
        )
        result = mathopt.solve(model, mathopt.SolverType.GSCIP, params=params)
        if not result.has_primal_feasible_solution():
            return None
        values = np.zeros(len(which))
        for variable, value in result.variable_values().items():
            values[variable.id] = value
        return values


def risks(seconds: FloatArray, cvar_alpha: float) -> FloatArray:
    """Return the (C,) mean of the worst share of (C, S) seconds, the last of them counted in part (``Objective.risk``)."""
    worst = np.sort(seconds, axis=1)[:, ::-1]
    share = np.clip(cvar_alpha * seconds.shape[1] - np.arange(seconds.shape[1]), 0.0, 1.0)
    return dot(worst, share / share.sum())


def _side_rows(columns: Columns, items: Items, problem: PlanningProblem) -> tuple[FloatArray, list[float], list[float]]:
    """Return the (K, C) coefficients of the pool, prewarmed and count rows, and their sides."""
    n, offer = columns.actors, columns.offer
    gpus, pool_of = items.gpus[offer], items.pool[offer]
    rows: list[FloatArray] = []
    low: list[float] = []
    high: list[float] = []

    def add(weights: Any, least: float, most: float) -> None:
        if np.any(weights):
            rows.append(np.asarray(weights, dtype=float))
            low.append(least)
            high.append(most)

    for i, pool in enumerate(problem.cluster.pools):
        sizes = {1, *items.gpus[items.pool == i].tolist()}
        for size in sorted(sizes):
            add(np.where(pool_of == i, n * (gpus // size), 0), -math.inf, float(pool.nodes * (pool.gpus_per_node // size)))
        if pool.prewarmed:
            add(np.where((pool_of == i) & columns.warm, n, 0), -math.inf, float(pool.prewarmed))
    if problem.needed_actors > 1 or problem.max_actors is not None:
        most = math.inf if problem.max_actors is None else float(problem.max_actors)
        add(n, float(problem.needed_actors), most)
    return np.array(rows).reshape(len(rows), len(columns)), low, high
