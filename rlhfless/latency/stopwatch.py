"""The clock by which iterations are measured: what they would take on a device of one's own.

Knows device types only. On the CPU everything that is timed runs in one thread that waits for nothing, so its own CPU time is
what it takes where no other program wants its core; on a quiet machine the wall clock says the same, on a busy one it counts
the others' turns too. On a GPU the wall clock counts, read when the device is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def stopwatch(device: str) -> Callable[[], float]:
    """A function that returns seconds; ``device`` as torch names it (``cpu``, ``cuda``, ``cuda:0``)."""
    return time.thread_time if device.partition(":")[0] == "cpu" else time.perf_counter
