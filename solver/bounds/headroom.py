"""Adds up the clairvoyant bounds of several steps, for generation alone or for whole steps, and computes shares of the
headroom.

The headroom is the distance from a static system to the bound. The bound is the least ``T^w C^(1-w)`` that any policy can reach
which decodes one token per pass. A policy that reaches it has taken 100 % of the headroom.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from solver.bounds.clairvoyant import ClairvoyantBound
from solver.model.objective import Objective
from solver.model.workload import FloatArray

MAX_TIME_FACTOR, GRID_POINTS = 20.0, 120  # of the grid of times: from the shortest to so many times it, 2.5 % apart
ANY_TIME_S = 1e12


@dataclass(frozen=True)
class SummedBounds:
    """Lower bounds summed over steps: where the headroom ends, not how large it is.

    Attributes:
        shortest_s: no policy is faster, at any cost. min_gpu_s: no policy takes fewer GPU-seconds, at any time.
        value: no policy's ``T^w C^(1-w)`` of the sums is smaller (Hölder). time_s, gpu_s: where it is least on the curves.
    """

    shortest_s: float
    min_gpu_s: float
    value: float
    time_s: float
    gpu_s: float


class Curve(NamedTuple):
    """The bound of one step at a grid of times.

    Attributes:
        shortest_s: no policy is faster. min_gpu_s: the least GPU-seconds at any time. time_s, gpu_s: (N,) the curve.
    """

    shortest_s: float
    min_gpu_s: float
    time_s: FloatArray
    gpu_s: FloatArray


def curve_of(bound: ClairvoyantBound, points: int = GRID_POINTS, furthest: float = MAX_TIME_FACTOR) -> Curve:
    """Return the curve of the bound on one step's generation; arguments are those of ``curve``."""
    return curve(bound.shortest_s(), bound.gpu_seconds, points, furthest)


def curve(
    shortest_s: float,
    gpu_seconds: Callable[[float], float],
    points: int = GRID_POINTS,
    furthest: float = MAX_TIME_FACTOR,
) -> Curve:
    """Return a bound at ``points`` times, from the shortest to ``furthest`` times it.

    A finer grid makes the bound of ``summed_bounds`` tighter; it is valid at any grid.

    Args:
        shortest_s: no schedule is faster. gpu_seconds: lower bound on the GPU-seconds within a time, which falls with it.
    """
    times = shortest_s * np.geomspace(1.0, furthest, points)
    costs = np.array([gpu_seconds(t * (1 + 1e-9)) for t in times])
    feasible = np.isfinite(costs)
    return Curve(shortest_s, gpu_seconds(ANY_TIME_S), times[feasible], costs[feasible])


def summed_bounds(curves: Sequence[Curve], weight: float, phases_s: float = 0.0, phases_gpu_s: float = 0.0) -> SummedBounds:
    """Return the summed bounds of these steps.

    Cost falls with time, so between two times of the grid no policy is below the earlier time with the later cost.

    Args:
        weight: w. phases_s, phases_gpu_s: of every step outside generation; 0 for generation alone.
    """
    product, sums = Objective(weight).product, np.zeros(5)
    for curve in curves:
        times, costs, min_cost = curve.time_s + phases_s, curve.gpu_s + phases_gpu_s, curve.min_gpu_s + phases_gpu_s
        next_cost = np.append(costs[1:], min_cost)
        best = int(np.argmin(product(times, costs)))
        value = float(product(times, next_cost).min())
        sums += (curve.shortest_s + phases_s, min_cost, value, times[best], costs[best])
    return SummedBounds(*sums.tolist())


def share_of_headroom(value: float, of_static: float, least: float) -> float:
    """Return the share of the headroom that a policy took, on a logarithmic scale: 0 at the static system, 1 at the bound."""
    return float(np.log(of_static / value) / np.log(of_static / least)) if least < of_static else float("nan")
