"""Times of following steps, for many plans side by side: when every task of every step runs, and the period of steps.

Tasks are scheduled one by one. A task can start once everything that it waits for has ended and its GPUs are free. Among all
tasks the one that can start first is next. Where several can start first, the one with the longest remaining path is next: the
seconds until the last step ends if nothing ever waited for GPUs. The released code of ReaL runs tasks in the order in which
they became ready instead, and so does ``order="fifo"``.

Schedules repeat after a few steps: every task starts a fixed time after its start 1, 2 or 3 steps before. The period is that
time per step, read from the last two windows of steps in which it holds. A schedule without such windows is not periodic yet;
its period is the mean over the last half of the steps but the last one, which no step follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from solver.dataflow.options import CallOptions, FloatArray, IntArray

Order = Literal["longest path", "fifo"]
STEPS = 8  # that are unrolled
MORE_STEPS = 32  # where fewer do not repeat
CYCLES = (1, 2, 3)  # steps after which schedules are tried for a repetition
EQUAL = 1e-9  # relative difference of equal times


@dataclass(frozen=True, eq=False)
class UnrolledTimes:
    """Times of P plans.

    Attributes:
        start_s, end_s: (P, T, S) of every task in each of S steps.
        period_s: (P,) seconds per step in the steady state.
    """

    start_s: FloatArray
    end_s: FloatArray

    @property
    def step_end_s(self) -> FloatArray:
        """(P, S) when the last task of each step ends."""
        return np.asarray(self.end_s.max(axis=1))

    @property
    def periodic(self) -> NDArray[np.bool_]:
        """(P,) whether the schedule repeats within these steps."""
        return np.asarray(~np.isnan(self._cycle_s))

    @property
    def period_s(self) -> FloatArray:
        """(P,) seconds per step in the steady state, an estimate where the schedule is not periodic."""
        half = self.start_s.shape[2] // 2 - 1
        mean_s = (self.start_s[:, :, -2] - self.start_s[:, :, -2 - half]).max(axis=1) / half
        return np.asarray(np.where(self.periodic, self._cycle_s, mean_s))

    @cached_property
    def _cycle_s(self) -> FloatArray:
        """(P,) seconds per step by which all tasks of two consecutive steps follow those ``CYCLES`` steps before, or NaN."""
        found = np.full(len(self.start_s), np.nan)
        for steps in CYCLES:
            apart_s = self.start_s[:, :, steps:] - self.start_s[:, :, :-steps]
            first_s = apart_s[:, :1]
            same = (np.abs(apart_s - first_s) <= EQUAL * (1 + first_s)).all(axis=1)
            again = np.abs(np.diff(first_s[:, 0], axis=1)) <= EQUAL * (1 + first_s[:, 0, 1:])
            repeats = (same[:, 1:] & same[:, :-1] & again)[:, 1:-1]  # neither the first steps nor the last one
            last = repeats.shape[1] - 1 - repeats[:, ::-1].argmax(axis=1)
            cycle_s = np.take_along_axis(first_s[:, 0, 2:], last[:, None], axis=1)[:, 0] / steps
            found = np.where(np.isnan(found) & repeats.any(axis=1), cycle_s, found)
        return found


def step_times(options: CallOptions, plans: IntArray, order: Order = "longest path", steps: int = STEPS) -> UnrolledTimes:
    """Return when every task runs.

    Args:
        plans: (P, K) option of every call. steps: that follow each other.
    """
    seconds = options.durations(plans)
    return _Unrolled(options, seconds, options.holds_s(plans), order, steps).run()


def periods_s(options: CallOptions, plans: IntArray, order: Order = "longest path") -> FloatArray:
    """Return (P,) periods of (P, K) plans; more steps are unrolled where a schedule is not periodic."""
    times = step_times(options, plans, order)
    period_s, open_ = times.period_s, ~times.periodic
    if open_.any():
        period_s[open_] = step_times(options, plans[open_], order, MORE_STEPS).period_s
    return period_s


class _Unrolled:
    """State of P plans: what has been scheduled, and from when each task could run."""

    def __init__(self, options: CallOptions, seconds: FloatArray, holds_s: FloatArray, order: Order, steps: int) -> None:
        self.plans, self.tasks = seconds.shape
        self.steps, self.order = steps, order
        self.seconds, self.holds_s = seconds, holds_s
        self.follows = np.zeros((len(options.task_graph), self.tasks, self.tasks), bool)  # [steps later, task, its follower]
        self.missing = np.zeros((self.plans, self.tasks, steps + len(self.follows)), np.int16)
        for later, waits in enumerate(options.task_graph):
            for task, waited in enumerate(waits):
                self.follows[later, list(waited), task] = True
            self.missing[:, :, later:] += self.follows[later].sum(axis=0)[None, :, None].astype(np.int16)
        self.ready_s = np.zeros(self.missing.shape)
        self.left_s = self._remaining_paths()

    def _remaining_paths(self) -> FloatArray:
        """Return (P, T, S) seconds of the longest path from the start of a task to the end of the last step."""
        left = np.zeros(self.missing.shape)
        tasks = sorted(range(self.tasks), key=lambda task: self._depth(task))
        for step in range(self.steps - 1, -1, -1):
            for task in tasks:
                tails = [left[:, followers, step + later] for later, followers in enumerate(self.follows[:, task])]
                left[:, task, step] = self.seconds[:, task] + np.concatenate(tails, axis=1).max(axis=1, initial=0.0)
        return left

    def _depth(self, task: int) -> int:
        """Return the number of tasks on the longest path that follows a task in its step."""
        return max((1 + self._depth(int(after)) for after in np.flatnonzero(self.follows[0, task])), default=0)

    def run(self) -> UnrolledTimes:
        """Schedule one task of every plan at a time."""
        plan = np.arange(self.plans)
        start_s = np.zeros((self.plans, self.tasks, self.steps))
        end_s = np.zeros_like(start_s)
        step_of = np.zeros((self.plans, self.tasks), np.int64)
        free_s = np.zeros((self.plans, self.tasks))
        for _ in range(self.tasks * self.steps):
            at = step_of[:, :, None]
            ready = np.take_along_axis(self.ready_s, at, axis=2)[:, :, 0]
            waits = (np.take_along_axis(self.missing, at, axis=2)[:, :, 0] > 0) | (step_of == self.steps)
            can_start = np.where(waits, np.inf, np.maximum(ready, free_s))
            first = can_start if self.order == "longest path" else np.where(waits, np.inf, ready)
            path = np.take_along_axis(self.left_s, at, axis=2)[:, :, 0]
            least = first.min(axis=1)
            task = np.where(first <= least[:, None], path, -np.inf).argmax(axis=1)
            step = step_of[plan, task]
            begins = can_start[plan, task]
            ends = begins + self.seconds[plan, task]
            start_s[plan, task, step], end_s[plan, task, step] = begins, ends
            step_of[plan, task] += 1
            free_s = np.maximum(free_s, begins[:, None] + self.holds_s[plan, task])
            for later, follows in enumerate(self.follows):
                after = follows[task]
                self.missing[plan, :, step + later] -= after
                now = self.ready_s[plan, :, step + later]
                self.ready_s[plan, :, step + later] = np.maximum(now, np.where(after, ends[:, None], 0.0))
        return UnrolledTimes(start_s, end_s)
