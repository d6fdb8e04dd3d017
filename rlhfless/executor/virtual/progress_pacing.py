"""Chooses how much virtual time passes between two progress callbacks, so that one fires about every 0.5 s of wall-clock time.

Every callback interrupts the engines, which otherwise decode many iterations in one call. The speed of the last piece of
virtual time therefore determines the length of the next one. The pacing never changes what is decoded or when.
"""

from __future__ import annotations

import time

from rlhfless.executor.step.progress import OFTEN_S

FIRST = 0.05
"""Of the time that a step was planned to take, what is let go before it is known how fast it goes."""
FASTER = 10.0
"""What is let go next is at most so many times what was allowed before: the first seconds of a step say little of the rest."""


class ProgressPacer:
    """Pacing of one step. ``planned_s``: its planned duration; 0 calls back at every completion.

    Attributes:
        piece_s: virtual seconds until the next callback.
    """

    def __init__(self, planned_s: float) -> None:
        self.piece_s = FIRST * planned_s
        self._from_s = self._began = 0.0

    def until(self, from_s: float) -> float:
        """Return the virtual time at which engines that continue from ``from_s`` should stop for the next callback."""
        self._from_s, self._began = from_s, time.monotonic()
        return from_s + self.piece_s

    def came(self, to_s: float) -> None:
        """Note that engines have now reached the virtual time ``to_s``."""
        took_s = max(time.monotonic() - self._began, 1e-9)
        self.piece_s = min(FASTER * self.piece_s, (to_s - self._from_s) * OFTEN_S / took_s)
