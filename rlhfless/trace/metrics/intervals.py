"""Computes how many seconds intervals cover: together, or divided among labels so that each second counts once."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike


def interval_union_s(starts: ArrayLike, ends: ArrayLike) -> float:
    """Return the seconds covered by at least one of the intervals.

    Args:
        starts, ends: (N,) seconds, in any order; an interval that ends before it starts covers nothing.
    """
    start, end = np.asarray(starts, dtype=float), np.asarray(ends, dtype=float)
    if not len(start):
        return 0.0
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    covered_until = np.concatenate([[-np.inf], np.maximum.accumulate(end)[:-1]])
    return float(np.maximum(end - np.maximum(start, covered_until), 0.0).sum())


def partition_s(
    labels: ArrayLike,
    starts: ArrayLike,
    ends: ArrayLike,
    order: Iterable[str],
    window: tuple[float, float] = (-math.inf, math.inf),
) -> dict[str, float]:
    """Return the seconds of a window by label: each second counts for the first label of ``order`` that covers it.

    Args:
        labels, starts, ends: (N,) intervals, in any order; the same label may occur many times.
        order: labels, the first wins. Intervals with other labels count for nothing.
        window: start and end of the seconds that count.

    Returns:
        Seconds of each label of ``order``. They add up to the seconds that intervals of these labels cover; the rest of the
        window is idle.
    """
    label = np.asarray(labels, dtype=object)
    start = np.maximum(np.asarray(starts, dtype=float), window[0])
    end = np.minimum(np.asarray(ends, dtype=float), window[1])
    seconds: dict[str, float] = {}
    covered_s, counted = 0.0, np.zeros(len(label), dtype=bool)
    for name in dict.fromkeys(order):
        counted |= label == name
        now_s = interval_union_s(start[counted], end[counted])
        seconds[name], covered_s = max(0.0, now_s - covered_s), now_s
    return seconds
