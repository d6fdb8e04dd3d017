"""Locks on open files that the system releases when their process ends, however it ends.

Linux and macOS have them (``flock``), Windows has not. Nothing that plans, reads logs or reports needs one.
"""

from __future__ import annotations

import enum

from rlhfless.errors import InputError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]


class LockKind(enum.Enum):
    """Who else may hold a lock on the same file, and whether to wait for them."""

    EXCLUSIVE = "nobody else; waits until they have released it"
    EXCLUSIVE_NOW = "nobody else; raises BlockingIOError at once where somebody holds one"
    SHARED = "others with a shared lock; waits until an exclusive one is released"


def lock_file(file: int, kind: LockKind) -> None:
    """Lock an open file or folder until it is closed; a lock of this process on it is replaced.

    Args:
        file: its descriptor. kind: who else may hold a lock on it.

    Raises:
        BlockingIOError: with ``EXCLUSIVE_NOW``, another process holds a lock.
        InputError: this system has no such locks.
    """
    if fcntl is None:
        raise InputError(
            "this system has no file locks that end with their process, which recording, training and vLLM need; "
            "run them on Linux or macOS, on Windows inside WSL (planning and reports work everywhere)"
        )
    flags = {
        LockKind.EXCLUSIVE: fcntl.LOCK_EX,
        LockKind.EXCLUSIVE_NOW: fcntl.LOCK_EX | fcntl.LOCK_NB,
        LockKind.SHARED: fcntl.LOCK_SH,
    }
    fcntl.flock(file, flags[kind])
