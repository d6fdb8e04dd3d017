"""The clock of a run on the wall clock: what time it is, and how to wait.

Input: nothing. A pool, its crews and its actors read time through one ``Clock``, so a program can give them another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """This machine's monotonic clock by default, which all processes of one boot share.

    Attributes:
        now_s: seconds since some moment that never changes. sleep: waits for so many seconds.
    """

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


MACHINE = Clock()
"""The machine's own clock."""
