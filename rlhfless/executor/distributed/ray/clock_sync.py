"""Estimates how far another machine's monotonic clock is ahead of this one's, and the error of the estimate.

Processes of one boot of one machine share its monotonic clock, so nothing is estimated there. Between machines the request with
the shortest round trip counts (Cristian's algorithm): the answer was given within it, so half of it bounds the error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
QUESTIONS = 8


class Offset(NamedTuple):
    """Offset of another clock in seconds: it shows ``offset_s`` more than this one, with an error of at most ``error_s``."""

    offset_s: float
    error_s: float


SAME = Offset(0.0, 0.0)
"""Of two processes on one boot of one machine."""


def boot_id() -> str | None:
    """Return the boot id that all processes with this machine's monotonic clock share; None where the system has none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return None


def offset_of(
    read_clock_s: Callable[[], float], clock: Callable[[], float] = time.monotonic, questions: int = QUESTIONS
) -> Offset:
    """Return the offset of another clock.

    Args:
        read_clock_s: returns the time that the other clock shows, over any distance.
        clock: this machine's.
        questions: how often to ask; the first requests tend to be slow.
    """
    offsets = []
    for _ in range(questions):
        sent_s = clock()
        other_s = read_clock_s()
        received_s = clock()
        offsets.append(Offset(other_s - (sent_s + received_s) / 2, (received_s - sent_s) / 2))
    return min(offsets, key=lambda offset: offset.error_s)
