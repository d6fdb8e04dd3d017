"""Measures how much longer an iteration takes when responses join or end, from trial runs of one actor.

In a trial, responses of given lengths join an idle actor at once. Then, ``GAP`` iterations apart, one of them ends and another
one takes its slot; later one ends and none replaces it. The time of an iteration with an unchanged batch is measured next to
every change. So a machine that slows down in the meantime affects both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from solver.model.workload import FloatArray

GAP = 8  # iterations from change to change; the middle ones are those of an unchanged batch
AFTER = 2  # the first iterations of a changed batch, which take longer
EVENTS = 3  # changes of each kind in a trial

RunTrial = Callable[["BatchChangeTrial"], FloatArray]
"""Runs a trial on a fresh actor and returns the (iterations,) seconds of its iterations."""


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
        first = [(GAP * i, 1, 1) for i in range(1, self.refills + 1)]
        then = [(GAP * i, 0, 1) for i in range(self.refills + 1, 2 * self.refills + 1)]
        kinds = [[(0, self.batch, 0)], *([first, then] if self.refills else [])]
        return [self._mean([self._change(rounds, *change) for change in kind]) for kind in kinds]

    def _change(self, rounds: FloatArray, at: int, joined: int, ended: int) -> TimedChange:
        after = np.median(rounds[:, at + AFTER : at + GAP - 1], axis=1)
        within, steady = rounds[:, at : at + AFTER].sum(axis=1), AFTER * after
        if ended:  # the iteration with which it ends
            within = within + rounds[:, at - 1]
            steady = steady + np.median(rounds[:, at - GAP + AFTER : at - 1], axis=1)
        return TimedChange(
            joined, self.tokens if joined else 0, ended, float(np.median(within - steady)), float(np.median(within))
        )

    def _mean(self, same: Sequence[TimedChange]) -> TimedChange:
        return same[0]._replace(
            seconds=float(np.mean([c.seconds for c in same])), within_s=float(np.mean([c.within_s for c in same]))
        )


def measure_changes(run: RunTrial, trials: Sequence[BatchChangeTrial], rounds: int) -> list[TimedChange]:
    """Measure the changes of all ``trials``: each runs once as warm-up, then in rounds, each round in its own
    order.
    """
    for trial in trials:
        run(trial)
    seconds = [np.zeros((rounds, trial.iterations)) for trial in trials]
    for one_round in range(rounds):
        for i in np.random.default_rng(one_round).permutation(len(trials)):
            seconds[i][one_round] = run(trials[i])
    return [change for trial, taken in zip(trials, seconds, strict=True) for change in trial.changes(taken)]
