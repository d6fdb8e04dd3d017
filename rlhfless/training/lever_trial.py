"""Decides from a run's own steps whether a lever pays: it is tried, used where it saves, and tried again now and then.

The cost of a step is a number that the caller measures, relative to what the step's responses are expected to cost without any
lever. So steps of other lengths can be compared. This file knows neither levers nor clocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean

LEAST_SAVING = 0.03  # that two trials have to show: a step's cost is measured with errors
KEPT = 4  # measurements of each state, whose mean counts
FIRST_WAIT, LONGEST_WAIT = 16, 128  # steps until the other state is tried again; the wait doubles


@dataclass
class LeverTrial:
    """Whether one lever is used.

    Attributes:
        name: of the lever. on: whether it is used, trials apart.
        used, left_out: log costs of the last steps with and without it.

    Example:
        >>> lever = LeverTrial("drafts")
        >>> states = []
        >>> for _ in range(12):
        ...     states.append(lever.choose())
        ...     lever.note(states[-1], cost=1.2 if states[-1] else 1.0)
        >>> states.index(True), sum(states)
        (1, 1)
        >>> lever = LeverTrial("drafts")
        >>> for _ in range(12):
        ...     used = lever.choose()
        ...     lever.note(used, cost=0.8 if used else 1.0)
        >>> lever.on, round(lever.saving, 2)
        (True, 0.2)
    """

    name: str
    on: bool = False
    used: list[float] = field(default_factory=list)
    left_out: list[float] = field(default_factory=list)
    _wait: int = FIRST_WAIT // 2
    _since: int = 0  # steps since the state was last compared with the other one
    _trying: bool = False  # the other state, as it seemed better in the step before

    @property
    def saving(self) -> float | None:
        """Return the share of the cost that the lever is measured to save, negative where it loses; None: not compared yet."""
        if not self.used or not self.left_out:
            return None
        return 1.0 - math.exp(fmean(self.used) - fmean(self.left_out))

    def choose(self, *, can_save: bool = True, may_try: bool = True) -> bool:
        """Return whether the next step uses the lever.

        Args:
            can_save: False: it is left out. may_try: the other state may be tried now.
        """
        if not can_save or not self.left_out:
            return False
        due = self._trying or not self.used or self._since >= self._wait
        return not self.on if due and may_try else self.on

    def note(self, used: bool, cost: float) -> None:
        """Enter the cost of a step, a number above 0, and decide.

        One step of the other state that seems better is followed by a second one; both together have to show
        ``LEAST_SAVING``. A lever that is used is left out once it shows none.
        """
        state = self.used if used else self.left_out
        if used != self.on and not self._trying:  # what an earlier trial showed may be outdated
            state.clear()
        state.append(math.log(cost))
        del state[:-KEPT]
        self._since += 1
        saving = self.saving
        if saving is None or used == self.on:
            return
        better = saving > LEAST_SAVING if not self.on else saving <= 0.0
        first, self._trying = not self._trying, False
        if better and first:
            self._trying = True
        elif better:
            self.on, self._wait, self._since = not self.on, FIRST_WAIT, 0
        else:
            self._wait, self._since = min(2 * self._wait, LONGEST_WAIT), 0
