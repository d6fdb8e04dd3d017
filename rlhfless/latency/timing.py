"""Times an engine: the clock, the median seconds of a call, and how much longer an iteration takes when responses join or end.

Everything is timed in rounds, each in its own order, so a slow phase of the machine affects all sizes alike.

**Changes of a batch** are measured from trial runs of one actor. In a trial, responses of given lengths join an idle actor at
once. Then, ``GAP`` iterations apart, one of them ends and another one takes its slot; later one ends and none replaces it. The
time of an iteration with an unchanged batch is measured next to every change. So a machine that slows down in the meantime
affects both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from solver.model.workload import FloatArray

WARM_UP_CALLS = 3
TIMED_CALLS = 5  # of a visit: the first ones after another size are still slower
GAP = 8  # iterations from change to change; the middle ones are those of an unchanged batch
AFTER = 2  # the first iterations of a changed batch, which take longer
EVENTS = 3  # changes of each kind in a trial

RunTrial = Callable[["BatchChangeTrial"], FloatArray]
"""Runs a trial on a fresh actor and returns the (iterations,) seconds of its iterations."""


def stopwatch(device: str) -> Callable[[], float]:
    """Return the clock that measures iterations as if the device were unshared: a function that returns seconds.

    On the CPU it is CPU time: everything that is timed runs in one thread that never waits, so its CPU time is what it takes
    without competing programs. On a quiet machine the wall clock agrees, on a busy one it also counts the time of others. On a
    GPU it is wall-clock time, read when the device is done.

    Args:
        device: as torch names it (``cpu``, ``cuda``, ``cuda:0``).
    """
    return time.thread_time if device.partition(":")[0] == "cpu" else time.perf_counter


def median_seconds(timed: Callable[..., None], sizes: Sequence[tuple[int, ...]], rounds: int, device: str) -> FloatArray:
    """Return (sizes,) median seconds of ``timed(*size)``; each visit starts with calls that are not counted."""
    now_s = stopwatch(device)
    seconds = np.zeros((rounds, len(sizes), TIMED_CALLS))
    for one_round, i in _visits(rounds, len(sizes)):
        for _ in range(WARM_UP_CALLS):
            timed(*sizes[i])
        for call in range(TIMED_CALLS):
            start = now_s()
            timed(*sizes[i])
            seconds[one_round, i, call] = now_s() - start
    return np.asarray(np.median(seconds, axis=(0, 2)))


def _visits(rounds: int, sizes: int) -> Iterator[tuple[int, int]]:
    """Yield the round and the index of every size, in another order in each round."""
    for one_round in range(rounds):
        for i in np.random.default_rng(one_round).permutation(sizes):
            yield one_round, int(i)


class TimedChange(NamedTuple):
    """A change of the batch between two iterations (responses join and end), and the time that it takes.

    Attributes:
        prompts: responses that join; tokens_each: tokens of each of their prompts, none of them cached.
        ended: responses that end.
        seconds: by which the iterations around the change took longer than those of an unchanged batch, prefill included.
        within_s: duration of these iterations.
    """

    prompts: int
    tokens_each: int
    ended: int
    seconds: float
    within_s: float


@dataclass(frozen=True)
class BatchChangeTrial:
    """A trial run of an actor with ``batch`` slots.

    Args:
        batch: responses that join at once. tokens: of every prompt.
    """

    batch: int
    tokens: int

    @property
    def refills(self) -> int:
        """Number of responses that end and are replaced; as many more end afterwards without replacement."""
        return min(EVENTS, (self.batch - 1) // 2)

    @property
    def iterations(self) -> int:
        """Number of iterations to run; responses that have not ended by then are abandoned."""
        return GAP * (2 * self.refills + 1)

    @property
    def lengths(self) -> list[int]:
        """Tokens of the responses, in order of admission: those that end, those that stay, those that join later."""
        ends = [GAP * (i + 1) for i in range(2 * self.refills)]
        return [*ends, *[self.iterations + 1] * (self.batch - len(ends) + self.refills)]

    def changes(self, rounds: FloatArray) -> list[TimedChange]:
        """Return the changes of each kind, from (rounds, iterations) seconds: medians over rounds, means over changes of a
        kind.
        """
        found = [self._change(rounds, [0], joined=self.batch, ended=0)]
        if self.refills:
            at = [GAP * i for i in range(1, 2 * self.refills + 1)]
            found.append(self._change(rounds, at[: self.refills], joined=1, ended=1))
            found.append(self._change(rounds, at[self.refills :], joined=0, ended=1))
        return found

    def _change(self, rounds: FloatArray, iterations: Sequence[int], joined: int, ended: int) -> TimedChange:
        """Return the mean change of one kind; it happens before each of ``iterations``."""
        longer, lasted = [], []
        for at in iterations:
            within = rounds[:, at : at + AFTER].sum(axis=1)
            steady = AFTER * np.median(rounds[:, at + AFTER : at + GAP - 1], axis=1)
            if ended:  # the iteration with which it ends
                within = within + rounds[:, at - 1]
                steady = steady + np.median(rounds[:, at - GAP + AFTER : at - 1], axis=1)
            longer.append(float(np.median(within - steady)))
            lasted.append(float(np.median(within)))
        return TimedChange(joined, self.tokens if joined else 0, ended, float(np.mean(longer)), float(np.mean(lasted)))


def measure_changes(run: RunTrial, trials: Sequence[BatchChangeTrial], rounds: int) -> list[TimedChange]:
    """Measure the changes of all ``trials``: each runs once as warm-up, then in rounds."""
    for trial in trials:
        run(trial)
    seconds = [np.zeros((rounds, trial.iterations)) for trial in trials]
    for one_round, i in _visits(rounds, len(trials)):
        seconds[i][one_round] = run(trials[i])
    return [change for trial, taken in zip(trials, seconds, strict=True) for change in trial.changes(taken)]
