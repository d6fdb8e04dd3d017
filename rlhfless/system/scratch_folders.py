"""Folders that go with the process that holds them, however it ends. Also run as a script, by the process that sees to it.

Knows files, locks and processes; nothing of what is kept in a folder. A folder is held by whoever has it locked. The system
gives locks back when a process ends, so one that nobody has locked was left behind. A process that holds folders has a sweeper
beside it, which waits for its end and removes them; where that was killed too, with all of its container say, the next process
that makes a folder of that name removes it. Processes whose place for temporary files it was end with the folder, and shared
memory that is named in it goes. Loads nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
PATIENCE_S = 10.0
ELSEWHERE = ".shared_memory"  # in a folder: patterns of names of shared memory that goes with it, one a line


def in_memory() -> Path:
    """Where folders never touch a disk, where the system has such a place."""
    return SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())


class OwnFolder:
    """A new folder that this process holds until ``let_go``, or its end. Removes those of its prefix that nobody holds.

    Args:
        prefix: of its name, which no other kind of folder has.
        where: None is the place for temporary files.

    Attributes:
        path: of the folder.
    """

    def __init__(self, prefix: str, where: Path | None = None) -> None:
        where = Path(tempfile.gettempdir()) if where is None else where
        sweep(prefix, where)
        lock = None
        while lock is None:  # somebody who swept may have seen it before it was locked
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=where))
            lock = locked(self.path, fcntl.LOCK_EX)
        goes_with_this_process(self.path)
        self._release = weakref.finalize(self, give_up, self.path, lock)

    def shared_memory(self, patterns: Iterable[str]) -> None:
        """Shared memory with such names goes with the folder."""
        with (self.path / ELSEWHERE).open("a") as file:
            file.writelines(f"{pattern}\n" for pattern in patterns)

    def let_go(self) -> None:
        """It may go. Idempotent."""
        self._release()


def sweep(prefix: str, where: Path) -> None:
    """Remove this user's folders of a prefix that nobody holds."""
    for place in where.glob(f"{prefix}*"):
        remove_unless_held(place)


def remove_unless_held(place: Path) -> bool:
    """Remove a folder, unless a process holds it; returns whether none does. One of another user stays: what it names would be
    removed with our rights."""
    try:
        lock = locked(place, fcntl.LOCK_EX | fcntl.LOCK_NB) if place.stat().st_uid == os.geteuid() else None
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    if lock is not None:
        _remove(place)
        os.close(lock)
    return True


def give_up(place: Path, lock: int) -> None:
    """This process, which has the folder locked, does not hold it any more; the last one removes it."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_at(lock, place):
            _remove(place)
    os.close(lock)


def locked(place: Path, how: int) -> int | None:
    """The folder, locked: an open file; None where it is gone, or another one by now.

    Raises:
        BlockingIOError: with ``LOCK_NB``, somebody else has it.
    """
    try:
        lock = os.open(place, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, how)
        if is_at(lock, place):
            return lock
    except OSError:
        os.close(lock)
        raise
    os.close(lock)
    return None


def is_at(lock: int, place: Path) -> bool:
    """Whether the locked folder is still the one of that name."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(lock), place.stat())
    return False


def processes_with_temporary(folder: Path) -> list[int]:
    """Processes that were started with the folder as their place for temporary files (none where there is no /proc)."""
    mark, found = b"TMPDIR=" + os.fsencode(folder), []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if mark in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
    return found


def _remove(place: Path) -> None:
    """Remove a folder that this process alone has locked, and what goes with it."""
    for pid in processes_with_temporary(place):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(FileNotFoundError):
        for pattern in (place / ELSEWHERE).read_text().splitlines():
            for file in SHARED_MEMORY.glob(Path(pattern).name):
                file.unlink(missing_ok=True)
    shutil.rmtree(place, ignore_errors=True)


# --- the sweeper ----------------------------------------------------------------------------------------------------------

_lock = threading.Lock()
_to_sweeper: tuple[int, int] | None = None  # the process that it is of, and a pipe to it


def goes_with_this_process(place: Path) -> None:
    """Remove the folder when this process has ended, unless another one holds it then."""
    global _to_sweeper
    with _lock:
        if _to_sweeper is None or _to_sweeper[0] != os.getpid():  # a fork's folders are not its parent's
            _to_sweeper = os.getpid(), _start_sweeper()
        os.write(_to_sweeper[1], os.fsencode(place) + b"\n")


def _start_sweeper() -> int:
    reading, writing = os.pipe()
    try:
        # of a session of its own, and nobody's child: what ends this process and all that it started does not end it
        subprocess.run(
            [sys.executable, "-I", "-S", __file__], stdin=reading, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, check=True,
        )  # fmt: skip
    finally:
        os.close(reading)
    return writing


def _sweep_when_over() -> None:
    """The input names folders and ends with the process that holds them, which may be before the system has taken its locks."""
    places = [Path(os.fsdecode(line)) for line in sys.stdin.buffer.read().splitlines()]
    ends_s = time.monotonic() + PATIENCE_S
    while places := [place for place in places if not remove_unless_held(place)]:
        if time.monotonic() > ends_s:  # others hold them
            return
        time.sleep(0.05)


if __name__ == "__main__":
    if os.fork() == 0:
        _sweep_when_over()
