"""The clock that measures iterations as if the device were unshared: CPU time on the CPU, wall-clock time on a GPU.

On the CPU everything that is timed runs in one thread that never waits. So its CPU time is what it takes without competing
programs. On a quiet machine the wall clock agrees, on a busy one it also counts the time of others. On a GPU the wall clock is
read when the device is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def stopwatch(device: str) -> Callable[[], float]:
    """Return a function that returns seconds; ``device`` as torch names it (``cpu``, ``cuda``, ``cuda:0``)."""
    return time.thread_time if device.partition(":")[0] == "cpu" else time.perf_counter
