"""The least base times of any schedule of a tiny workload, by a linear programme over every configuration of whole actors.

A configuration is a set of batches of tokens, one per response at most. The order of a response's tokens is left free, which
allows more than any schedule does; with equal loads nothing is lost.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from ortools.linear_solver import pywraplp

Token = tuple[int, int]


def partitions(items: Sequence[Token]) -> Iterator[list[list[Token]]]:
    """Every partition of ``items`` into batches."""
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for k in range(len(rest)):
            yield [*rest[:k], [items[0], *rest[k]], *rest[k + 1 :]]


def least_base_times_s(
    length: Sequence[int], context: Sequence[int], minorant: tuple[float, float, float], left_s: float
) -> float:
    """Base times of all iterations at least, for schedules that decode for ``left_s``; infinite if there is none."""
    a, b, c = minorant
    lp = pywraplp.Solver.CreateSolver("GLOP")
    tokens = {(i, j): lp.Constraint(1.0, lp.infinity()) for i, n in enumerate(length) for j in range(n)}
    time = lp.Constraint(-lp.infinity(), left_s)
    lp.Objective().SetMinimization()
    for choice in itertools.product(*([None, *range(n)] for n in length)):
        running = [(i, j) for i, j in enumerate(choice) if j is not None]
        for batches in partitions(running):
            column = lp.NumVar(0.0, lp.infinity(), "")
            time.SetCoefficient(column, 1.0)
            cost = 0.0
            for batch in batches:
                speed = 1 / (a + sum(b + c * (context[i] + j) for i, j in batch))
                cost += a * speed
                for token in batch:
                    tokens[token].SetCoefficient(column, speed)
            lp.Objective().SetCoefficient(column, cost)
    return float(lp.Objective().Value()) if lp.Solve() == pywraplp.Solver.OPTIMAL else math.inf
