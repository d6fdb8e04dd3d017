"""What it takes that a batch changes: courses of an actor in which responses join and end, and how much longer that made them.

Knows courses and seconds; nothing of engines, models or files. In a course responses of given lengths join an idle actor at
once. Then, ``GAP`` iterations apart, one of them ends and another takes its place; then one ends and nobody comes. What an
iteration of an unchanged batch takes is seen beside every change, so a machine that gets slower in the meantime hits both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from solver.model.workload import FloatArray

GAP = 8  # iterations from change to change; the middle ones are those of an unchanged batch
AFTER = 2  # the first iterations of a changed batch, which take longer
EVENTS = 3  # changes of each kind in a course

RunCourse = Callable[["BatchChangeTrial"], FloatArray]
"""Runs a course on a fresh actor and returns the (iterations,) seconds of its iterations."""


class TimedChange(NamedTuple):
    """Responses that join and end between two iterations, and what that takes.

    Attributes:
        prompts: responses that join; tokens_each: tokens of each of their prompts, none of which is there.
        ended: responses that end.
        seconds: by which the iterations around took longer than those of an unchanged batch, prefill included.
        within_s: what these iterations took.
    """

    prompts: int
    tokens_each: int
    ended: int
    seconds: float
    within_s: float


@dataclass(frozen=True)
class BatchChangeTrial:
    """A course of an actor with ``batch`` slots.

    Args:
        batch: responses that join at once. tokens: of every prompt.
    """

    batch: int
    tokens: int

    @property
    def refills(self) -> int:
        """Responses that end and are replaced; as many end after them and are not."""
        return min(EVENTS, (self.batch - 1) // 2)

    @property
    def iterations(self) -> int:
        """That are run; the responses that have not ended by then are left."""
        return GAP * (2 * self.refills + 1)

    @property
    def lengths(self) -> list[int]:
        """Tokens of the responses, in order of admission: those that end, those that stay, those that come later."""
        ends = [GAP * (i + 1) for i in range(2 * self.refills)]
        return [*ends, *[self.iterations + 1] * (self.batch - len(ends) + self.refills)]

    def changes(self, rounds: FloatArray) -> list[TimedChange]:
        """The changes of each kind, from (rounds, iterations) seconds: medians over rounds, means over changes of a kind."""
        first = [(GAP * i, 1, 1) for i in range(1, self.refills + 1)]
        then = [(GAP * i, 0, 1) for i in range(self.refills + 1, 2 * self.refills + 1)]
        kinds = [[(0, self.batch, 0)], *([first, then] if self.refills else [])]
        return [self._mean([self._change(rounds, *one) for one in kind]) for kind in kinds]

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


def measure_changes(run: RunCourse, courses: Sequence[BatchChangeTrial], rounds: int) -> list[TimedChange]:
    """The changes of all ``courses``: each is run once to warm up, then in rounds, each in an order of its own."""
    for course in courses:
        run(course)
    seconds = [np.zeros((rounds, course.iterations)) for course in courses]
    for one_round in range(rounds):
        for i in np.random.default_rng(one_round).permutation(len(courses)):
            seconds[i][one_round] = run(courses[i])
    return [change for course, taken in zip(courses, seconds, strict=True) for change in course.changes(taken)]
