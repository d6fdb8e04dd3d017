"""The run's clock on the wall clock: returns the time and sleeps.

A pool and its actors read time through one ``Clock``, so that a program or test can replace it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """This machine's monotonic clock by default, which all processes of one boot share.

    Attributes:
        now_s: seconds since a fixed moment. sleep: waits for a number of seconds.
    """

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


MACHINE = Clock()
"""The machine's own clock."""
