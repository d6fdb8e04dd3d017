"""Lower bounds on the period of a plan's steps, for every order of its tasks.

**GPU-seconds.** In a steady state every task runs once per period, and no GPU runs two at once. So the period times the number
of GPUs is at least the sum over tasks of GPUs times seconds.

**Chains.** Take tasks of which no two ever run at the same time, in whatever steps they are. Each runs once per period, so the
period is at least the sum of their seconds. Two tasks never run together if they share a GPU, or if the graph orders them
within a step and the later one before the next step's earlier one. Reallocations are tasks like calls.

**Generate calls that give GPUs back early** (``CallOptions.freed_early``) count with lower bounds, so the period is bounded for
every generation plan. No GPU is held twice at once, and the call holds its GPUs for at least ``least_gpu_s`` per period: these
are in the sum of GPU-seconds. The call lasts ``least_s`` at least, and other calls may run on its GPUs meanwhile. So sharing a
GPU with it keeps no call apart, and only the graph does. ``CallOptions.bounding`` are relaxed options whose bounds are below.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from solver.layouts.options import CallOptions, FloatArray, IntArray

BoolArray = NDArray[np.bool_]


def period_bound_s(options: CallOptions, plans: IntArray) -> FloatArray:
    """Return (P,) lower bounds on the period of each plan, for any order."""
    seconds = options.durations(plans)
    meet, gpus = options.meeting(plans)
    gpu_s = seconds * gpus
    for call, freed in options.freed_early.items():
        seconds[:, call], gpu_s[:, call] = freed.least_s[plans[:, call]], freed.least_gpu_s[plans[:, call]]
        meet[:, call, :] = meet[:, :, call] = False
    bits = never_together_bits(options) | (meet * (1 << np.arange(options.tasks))).sum(axis=2)
    return np.asarray(np.maximum(gpu_s.sum(axis=1) / options.gpus, best_within(seconds, bits)[:, -1]))


def never_together_bits(options: CallOptions) -> IntArray:
    """Return (T,) ``never_together`` as bit masks."""
    return np.asarray((never_together(options) * (1 << np.arange(options.tasks))).sum(axis=1))


def never_together(options: CallOptions) -> BoolArray:
    """Return (T, T) whether the graph alone keeps two tasks apart, whatever their steps and GPUs.

    Tasks i and j of one step are ordered, and the later one also ends before the earlier one of the next step starts. By
    induction each then ends before the other starts, whatever their steps.
    """
    same, before, _ = options.task_graph
    count = options.tasks
    precedes = np.zeros((count, count), bool)  # [i, j]: i of a step ends before j of the same step starts
    direct_next = np.zeros((count, count), bool)
    for task in range(count):
        precedes[list(same[task]), task] = True
        direct_next[list(before[task]), task] = True
    for via in range(count):
        precedes |= precedes[:, via, None] & precedes[None, via, :]
    reaches = precedes | np.eye(count, dtype=bool)
    precedes_next = (reaches.astype(int) @ direct_next @ reaches) > 0
    ordered = precedes & precedes_next.T
    return np.asarray(ordered | ordered.T)


def best_within(
    seconds: FloatArray, bits: IntArray, with_both: Mapping[int, tuple[int, int]] = MappingProxyType({})
) -> FloatArray:
    """Return (P, 2^T) the most seconds of tasks that are pairwise apart, among the tasks of every bit mask.

    Args:
        seconds: (P, T). bits: (P, T) bit masks of the tasks that are apart from each; a task's own bit is not read.
        with_both: tasks that count only together with two earlier ones.
    """
    plans, tasks = seconds.shape
    best = np.zeros((plans, 1 << tasks))
    for task in range(tasks):  # masks whose highest task is this one
        lower = 1 << task
        rest, bonus = bits[:, task, None] & np.arange(lower), seconds[:, task, None]
        if task in with_both:
            one, other = with_both[task]
            apart = bits[:, one] >> other & 1 == 1
            bonus = np.where(apart, (seconds[:, [one, other]].sum(axis=1) + seconds[:, task]), -np.inf)[:, None]
            bonus = bonus + np.where(rest >> one & rest >> other & 1, 0.0, -np.inf)
            rest = rest & (bits[:, one] & bits[:, other] & ~(1 << one) & ~(1 << other))[:, None]
        with_it = bonus + np.take_along_axis(best, rest, axis=1)
        best[:, lower : 2 * lower] = np.maximum(best[:, :lower], with_it)
    return best
