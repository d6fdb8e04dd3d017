"""How far engines are let go on the virtual clock before whoever watches a step is told of it.

Knows two clocks, the step's and the wall's; nothing of engines or of who is told. Engines decode many iterations at once, and
every telling cuts that, so it is the wall clock that decides how often it happens: what was let go last says how fast a step
goes. Only how much is let go at once depends on it, never what is decoded or when.
"""

from __future__ import annotations

import time

FIRST = 0.05
"""Of the time that a step was planned to take, what is let go before it is known how fast it goes."""
OFTEN_S = 0.5
"""Of the wall clock, about, from one telling to the next."""
FASTER = 10.0
"""What is let go next is at most so many times what was allowed before: the first seconds of a step say little of the rest."""


class ProgressPacer:
    """Of one step. ``planned_s``: what it was planned to take; 0 tells of every completion.

    Attributes:
        piece_s: seconds of the step that are let go next.
    """

    def __init__(self, planned_s: float) -> None:
        self.piece_s = FIRST * planned_s
        self._from_s = self._began = 0.0

    def until(self, from_s: float) -> float:
        """Engines go on at ``from_s``, now: until when, both in the step's seconds."""
        self._from_s, self._began = from_s, time.monotonic()
        return from_s + self.piece_s

    def came(self, to_s: float) -> None:
        """Engines have come to ``to_s``, now."""
        took_s = max(time.monotonic() - self._began, 1e-9)
        self.piece_s = min(FASTER * self.piece_s, (to_s - self._from_s) * OFTEN_S / took_s)
