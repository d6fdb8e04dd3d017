"""When every model call runs, in steps that follow each other: a list schedule of many plans at once, and its period.

Tasks are scheduled one by one. A task can start once everything that it waits for has ended and its GPUs are free. A task of no
seconds needs none, such as a reallocation where nothing is missing. Among all tasks the one that can start first is next. Where
several can start first, the one with the longest remaining path is next: the seconds until the last step ends if nothing ever
waited for GPUs. The released code of ReaL runs tasks in the order in which they became ready instead, and so does
``order="fifo"``.

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

from solver.layouts.costs import CallOptions, FloatArray, IntArray

Order = Literal["longest path", "fifo"]
ORDERS: tuple[Order, ...] = ("longest path", "fifo")  # of calls that are ready
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
            same = np.asarray((np.abs(apart_s - first_s) <= EQUAL * (1 + first_s)).all(axis=1))
            again = np.abs(np.diff(first_s[:, 0], axis=1)) <= EQUAL * (1 + first_s[:, 0, 1:])
            repeats = np.asarray(same[:, 1:] & same[:, :-1] & again)[:, 1:-1]  # neither the first steps nor the last one
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
    return _Unrolled(options, seconds, options.holds_s(plans, seconds), order, steps).run()


def periods_s(options: CallOptions, plans: IntArray, order: Order = "longest path") -> FloatArray:
    """Return (P,) periods of (P, K) plans; more steps are unrolled where a schedule is not periodic."""
    times = step_times(options, plans, order)
    period_s, open_ = times.period_s, ~times.periodic
    if open_.any():
        period_s[open_] = step_times(options, plans[open_], order, MORE_STEPS).period_s
    return period_s


class _Unrolled:
    """State of P plans: what has been scheduled, and from when each task could run.

    Arrays by plan, task and step are flat; ``at`` (P, T) is where the next step of each task is in them. Steps that are not
    unrolled wait for ever.
    """

    def __init__(self, options: CallOptions, seconds: FloatArray, holds_s: FloatArray, order: Order, steps: int) -> None:
        self.plans, self.tasks = seconds.shape
        self.steps, self.order = steps, order
        self.seconds, self.holds_s = seconds, holds_s.reshape(-1, self.tasks)
        waits = options.task_graph
        self.width = steps + len(waits)
        follows = np.zeros((len(waits), self.tasks, self.tasks), bool)  # [steps later, task, its follower]
        missing = np.zeros((self.tasks + 1, self.width), np.int16)
        for later, of_tasks in enumerate(waits):
            for task, waited in enumerate(of_tasks):
                follows[later, list(waited), task] = True
                missing[task, later:] += len(waited)
        missing[:, steps:] = np.iinfo(np.int16).max
        self.missing = np.tile(missing.reshape(-1), self.plans)
        self.ready_s = np.zeros(len(self.missing))
        self.left_s = self._remaining_paths(follows)
        self.followers = self._followers(follows)

    def _followers(self, follows: NDArray[np.bool_]) -> IntArray:
        """Return (T, F) how far the followers of a task are behind the first step of task 0, less its own step; padded."""
        found = [[int(later) + self.width * int(f) for later, f in np.argwhere(follows[:, task])] for task in range(self.tasks)]
        longest = max(map(len, found))
        return np.array([[*of, *[self.width * self.tasks] * (longest - len(of))] for of in found], np.int64)

    def _remaining_paths(self, follows: NDArray[np.bool_]) -> FloatArray:
        """Return (P x T x S) seconds of the longest path from the start of a task to the end of the last step."""
        left = np.zeros((self.width, self.tasks + 1, self.plans))
        tasks = sorted(range(self.tasks), key=lambda task: _depth(task, follows[0]))
        behind = [[(int(later), int(f)) for later, f in np.argwhere(follows[:, task])] for task in range(self.tasks)]
        for step in range(self.steps - 1, -1, -1):
            for task in tasks:
                longest = left[step, task]
                for later, follower in behind[task]:
                    np.maximum(longest, left[step + later, follower], out=longest)
                longest += self.seconds[:, task]
        return np.ascontiguousarray(left.transpose(2, 1, 0)).reshape(-1)

    def run(self) -> UnrolledTimes:
        """Schedule one task of every plan at a time."""
        plan = np.arange(self.plans)
        first_at = plan * (self.tasks + 1) * self.width
        at = first_at[:, None] + np.arange(self.tasks) * self.width
        free_s = np.zeros((self.plans, self.tasks))
        start_s = np.zeros(len(self.missing))
        end_s = np.zeros(len(self.missing))
        for _ in range(self.tasks * self.steps):
            ready_s = np.where(self.missing.take(at) > 0, np.inf, self.ready_s.take(at))
            can_start = np.maximum(ready_s, free_s)
            first = can_start if self.order == "longest path" else ready_s
            least = first.min(axis=1)
            task = np.where(first <= least[:, None], self.left_s.take(at), -np.inf).argmax(axis=1)
            now = at[plan, task]
            begins = can_start[plan, task]
            ends = begins + self.seconds[plan, task]
            start_s[now], end_s[now] = begins, ends
            at[plan, task] = now + 1
            np.maximum(free_s, self.holds_s.take(plan * self.tasks + task, axis=0) + begins[:, None], out=free_s)
            step = now - first_at - task * self.width
            behind = self.followers.take(task, axis=0) + (first_at + step)[:, None]
            self.missing[behind] -= 1
            self.ready_s[behind] = np.maximum(self.ready_s.take(behind), ends[:, None])
        shape = (self.plans, self.tasks + 1, self.width)
        return UnrolledTimes(*(times.reshape(shape)[:, : self.tasks, : self.steps] for times in (start_s, end_s)))


def _depth(task: int, follows: NDArray[np.bool_]) -> int:
    """Return the number of tasks on the longest path that follows a task in its step."""
    return max((1 + _depth(int(after), follows) for after in np.flatnonzero(follows[task])), default=0)
