"""Removes the remains of a local Ray cluster after its program has ended: processes and folder. Run as a script.

Ray's own processes end when their program does, but some take minutes after it was killed, and write to the folder until then.
Imports only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

PATIENCE_S = 20.0
QUIET_ROUNDS = 3  # so often in a row nothing has to be there


def users(folder: str, session: int) -> set[int]:
    """Return the processes of a terminal session with an open file in the folder, where the system lists such things."""
    processes = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if os.getsid(int(entry.name)) == session and any(_is_in(file, folder) for file in (entry / "fd").iterdir()):
                processes.add(int(entry.name))
    return processes


def _is_in(file: Path, folder: str) -> bool:
    with contextlib.suppress(OSError):  # closed meanwhile
        return os.readlink(file).startswith(f"{folder}/")
    return False


def sweep(folder: str, program: int, session: int) -> None:
    """End the processes that use the folder, but for the program itself, and remove it."""
    ends_s, quiet = time.monotonic() + PATIENCE_S, 0
    while quiet < QUIET_ROUNDS and time.monotonic() < ends_s:
        left = users(folder, session) - {program}
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        quiet = 0 if left or Path(folder).exists() else quiet + 1
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.1)


if __name__ == "__main__":
    sys.stdin.buffer.read()  # ends with the program
    sweep(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
