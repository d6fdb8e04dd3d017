"""Clocks of several machines on one time line: how far a machine's monotonic clock is ahead of this one's, and how surely.

Knows a way to ask for another clock's time; nothing of Ray, actors or steps. Processes of one boot of one machine share its
monotonic clock, so nothing is estimated there. Between machines the question with the shortest round trip counts (Cristian's
algorithm): the answer was given within it, so half of it bounds the error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
QUESTIONS = 8


class Offset(NamedTuple):
    """``offset_s`` is what the other clock shows more than this one; the truth is within ``error_s`` of it."""

    offset_s: float
    error_s: float


SAME = Offset(0.0, 0.0)
"""Of two processes on one boot of one machine."""


def boot_id() -> str | None:
    """What all processes that share this machine's monotonic clock have in common; None where the system does not say."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return None


def offset_of(ask: Callable[[], float], clock: Callable[[], float] = time.monotonic, questions: int = QUESTIONS) -> Offset:
    """The offset of another clock.

    Args:
        ask: the time that the other clock shows, asked for over any distance.
        clock: this machine's.
        questions: how often to ask; the first ones tend to be slow.
    """
    found = []
    for _ in range(questions):
        sent_s = clock()
        there_s = ask()
        received_s = clock()
        found.append(Offset(there_s - (sent_s + received_s) / 2, (received_s - sent_s) / 2))
    return min(found, key=lambda one: one.error_s)
