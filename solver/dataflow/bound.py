"""Lower bounds on the period of a plan's steps, for every order of its tasks.

**GPU-seconds.** In a steady state every task runs once per period, and no GPU runs two at once. So the period times the number
of GPUs is at least the sum over tasks of GPUs times seconds.

**Chains.** Take tasks of which no two ever run at the same time, in whatever steps they are. Each runs once per period, so the
period is at least the sum of their seconds. Two tasks never run together if they share a GPU, or if the graph orders them
within a step and the later one before the next step's earlier one. Reallocations are tasks like calls.

**Generate calls that give GPUs back early** (``CallOptions.freed_early``) count with lower bounds, so the period is bounded for
every generation plan. Both arguments stay true. No GPU is held twice at once, and the call holds its GPUs for at least
``least_gpu_s`` GPU-seconds per period. The call lasts ``least_s`` at least, and another call may run on its GPUs meanwhile. So
sharing a GPU no longer keeps the two apart, and only the graph does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from solver.dataflow.options import CallOptions, FloatArray, IntArray

BoolArray = NDArray[np.bool_]


def period_bound_s(options: CallOptions, plans: IntArray) -> FloatArray:
    """Return (P,) lower bounds on the period of each plan, for any order."""
    seconds = options.durations(plans)
    gpu_s = seconds * options.blocks(plans).sum(axis=2)
    for call in options.freed_early:
        seconds[:, call], gpu_s[:, call] = (least[plans[:, call]] for least in options.least[call])
    apart = apart_on_gpus(options, options.overlaps(plans)) | never_together(options)
    return np.asarray(np.maximum(gpu_s.sum(axis=1) / options.gpus, heaviest_chain_s(seconds, apart)))


def apart_on_gpus(options: CallOptions, overlaps: BoolArray) -> BoolArray:
    """Return (P, T, T) whether two tasks never run at once because they share a GPU, by (P, T, T) whether they share one."""
    freed = list(options.freed_early)
    if not freed:
        return overlaps
    apart = overlaps.copy()
    apart[:, freed, :] = False
    apart[:, :, freed] = False
    return apart


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


def heaviest_chain_s(seconds: FloatArray, apart: BoolArray) -> FloatArray:
    """Return (P,) the most seconds of a set of tasks that are pairwise ``apart``, by (P, T) seconds and (P, T, T) pairs."""
    return np.asarray(chains_s(seconds, apart).max(axis=1))


def chains_s(seconds: FloatArray, apart: BoolArray) -> FloatArray:
    """Return (P, 2^T) the seconds of every set of tasks, 0 where they are not pairwise ``apart``; a set is a bit mask."""
    plans, tasks = seconds.shape
    bits = 1 << np.arange(tasks)
    beside = (apart * bits).sum(axis=2)  # (P, T) as a bit mask
    total = np.full((plans, 1 << tasks), -np.inf)
    total[:, 0] = 0.0
    for task in range(tasks):  # sets whose highest task is this one
        rest = np.arange(1 << task)
        fits = (beside[:, task, None] & rest) == rest
        total[:, bits[task] : 2 * bits[task]] = np.where(fits, total[:, : bits[task]] + seconds[:, task, None], -np.inf)
    return np.maximum(total, 0.0)
