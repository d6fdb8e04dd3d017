"""Lets the kernel end a process with its parent, even where it is stuck and does not see that its pipe has closed."""

from __future__ import annotations

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Let the kernel end this process with its parent (Linux).

    A stopped or stuck process does not see that its pipe has closed. (The process ends with the thread that started it; a pool
    whose thread ends between steps starts new processes.)
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
