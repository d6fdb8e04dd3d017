"""What is possible at all: the clairvoyant bounds of several steps added up, for generation alone and for whole steps.

Knows bound curves; nothing of policies. A policy's claim is the share of the possible that it takes, so the bound decides what
100 % is: the least ``T^w C^(1-w)`` that any policy can reach which decodes one token per pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from solver.bounds.clairvoyant import ClairvoyantBound
from solver.model.workload import FloatArray

FURTHEST, POINTS = 20.0, 120  # times that are looked at: from the shortest to so many times it, 2.5 % apart
NEVER_S = 1e12


@dataclass(frozen=True)
class Headroom:
    """Sums over steps of what no policy can beat.

    Attributes:
        shortest_s: no policy is faster, at any cost. least_gpu_s: no policy takes fewer GPU-seconds, at any time.
        value: no policy's ``T^w C^(1-w)`` of the sums is smaller (Hölder). time_s, gpu_s: where it is least on the curves.
    """

    shortest_s: float
    least_gpu_s: float
    value: float
    time_s: float
    gpu_s: float


class Curve(NamedTuple):
    """The bound of one step's generation at a grid of times.

    Attributes:
        shortest_s: no policy is faster. never_gpu_s: what is needed however long it takes. time_s, gpu_s: (N,) the curve.
    """

    shortest_s: float
    never_gpu_s: float
    time_s: FloatArray
    gpu_s: FloatArray


def curve_of(bound: ClairvoyantBound, points: int = POINTS, furthest: float = FURTHEST) -> Curve:
    """The curve at so many times, from the shortest to ``furthest`` times it. A finer grid makes the bound of ``possible``
    tighter, never wrong."""
    shortest = bound.shortest_s()
    times = shortest * np.geomspace(1.0, furthest, points)
    costs = np.array([bound.gpu_seconds(t * (1 + 1e-9)) for t in times])
    known = np.isfinite(costs)
    return Curve(shortest, bound.gpu_seconds(NEVER_S), times[known], costs[known])


def possible(curves: Sequence[Curve], weight: float, rest_s: float = 0.0, rest_gpu_s: float = 0.0) -> Headroom:
    """The possible of these steps.

    Between two times of the grid nothing is below the earlier time with the later cost, as cost falls with time.

    Args:
        weight: w. rest_s, rest_gpu_s: of every step outside generation; 0 for generation alone.
    """
    sums = np.zeros(5)
    for curve in curves:
        times, costs, never = curve.time_s + rest_s, curve.gpu_s + rest_gpu_s, curve.never_gpu_s + rest_gpu_s
        later = np.append(costs[1:], never)
        best = int(np.argmin(times**weight * costs ** (1 - weight)))
        least = float((times**weight * later ** (1 - weight)).min())
        sums += (curve.shortest_s + rest_s, never, least, times[best], costs[best])
    return Headroom(*sums.tolist())


def share_of_possible(value: float, of_static: float, least: float) -> float:
    """How much of the way from the naive system to the bound was taken, on a logarithmic scale: 0 none, 1 all of it."""
    return float(np.log(of_static / value) / np.log(of_static / least)) if least < of_static else float("nan")
