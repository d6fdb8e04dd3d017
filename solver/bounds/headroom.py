"""Adds up the bounds of several steps, for generation alone or for whole steps, and computes shares of the headroom.

The headroom is the distance from a static system to the bound. The bound is the least ``T^w C^(1-w)`` that any policy can reach
which decodes one token per pass. A policy that reaches it has taken 100 % of the headroom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.bounds.bound import Curve
from solver.model.objective import Objective


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


def summed_bounds(curves: Sequence[Curve], weight: float, phases_s: float = 0.0, phases_gpu_s: float = 0.0) -> SummedBounds:
    """Return the summed bounds of these steps.

    Args:
        curves: ``Bound.curve()`` of each step.
        weight: w. phases_s, phases_gpu_s: of every step outside its curve; 0 for generation alone.
    """
    objective, sums = Objective(weight), np.zeros(5)
    for curve in curves:
        times, costs = curve.time_s + phases_s, curve.gpu_s + phases_gpu_s
        best = int(np.argmin(objective.product(times, costs)))
        value = float(curve.values(objective, phases_s, phases_gpu_s).min())
        sums += (curve.shortest_s + phases_s, curve.min_gpu_s + phases_gpu_s, value, times[best], costs[best])
    return SummedBounds(*sums.tolist())


def share_of_headroom(value: float, of_static: float, least: float) -> float:
    """Return the share of the headroom that a policy took, on a logarithmic scale: 0 at the static system, 1 at the bound."""
    return float(np.log(of_static / value) / np.log(of_static / least)) if least < of_static else float("nan")
