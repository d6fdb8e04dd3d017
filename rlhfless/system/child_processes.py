"""Starting processes of our own from a program or a notebook, and saying how one ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import types
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path


def how_it_ended(process: BaseProcess, wait_s: float) -> str:
    """Return what became of a process whose pipe has closed, for a sentence that begins with its name; waits ``wait_s`` for its
    exit.
    """
    process.join(wait_s)
    code = process.exitcode
    if code is None:
        return "closed its pipe"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def cpu_seconds(pid: int | None) -> float | None:
    """Return the processor seconds that a process of this machine has used; None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):  # it is gone, or this is no Linux
        return None


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Context in which started processes ignore Ctrl-C, which a terminal sends to all of them: whoever
    started them ends them.
    """
    resource_tracker.ensure_running()  # else starting it in here would undo the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Context in which spawned processes do not import the caller's main module, which they do not need and which might run
    again.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
