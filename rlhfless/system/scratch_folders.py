"""Scratch folders that are removed when their process ends, even if it is killed.

A process owns a folder by locking it. The system releases locks when a process ends, so an unlocked folder was left behind by
an ended process. Each process with folders starts a sweeper process, which waits for its end and removes them. Where the
sweeper was killed too, with the whole container for example, the next process that makes a folder with the same prefix removes
it. Processes that use the folder for their temporary files are killed with it, and the shared memory that it names is freed.
Imports little, as a sweeper starts beside every process with folders.
"""

from __future__ import annotations

import contextlib
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

from rlhfless.system.file_locks import LockKind, lock_file

SHARED_MEMORY = Path("/dev/shm")
PATIENCE_S = 10.0
ELSEWHERE = ".shared_memory"  # in a folder: patterns of names of shared memory that goes with it, one a line


def in_memory() -> Path:
    """Return the folder of shared memory, which never touches a disk; the temporary folder where there is none."""
    return SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())


class OwnFolder:
    """A new folder that this process owns until ``remove`` or its end. Also removes unlocked folders with the same prefix.

    Args:
        prefix: of its name, which no other kind of folder has.
        parent: None is the place for temporary files.

    Attributes:
        path: of the folder.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        sweep(prefix, parent)
        lock = None
        while lock is None:  # somebody who swept may have seen it before it was locked
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            lock = locked(self.path, LockKind.EXCLUSIVE)
        goes_with_this_process(self.path)
        self._release = weakref.finalize(self, give_up, self.path, lock)

    def shared_memory(self, patterns: Iterable[str]) -> None:
        """Remove shared memory with such names together with the folder."""
        with (self.path / ELSEWHERE).open("a") as file:
            file.writelines(f"{pattern}\n" for pattern in patterns)

    def remove(self) -> None:
        """Remove the folder and release its lock. Idempotent."""
        self._release()


def sweep(prefix: str, parent: Path) -> None:
    """Remove this user's unlocked folders with a prefix."""
    for place in parent.glob(f"{prefix}*"):
        remove_unless_held(place)


def remove_unless_held(place: Path) -> bool:
    """Remove a folder, unless a process has locked it; returns whether no process has. A folder of another user stays: the
    shared memory and processes that it names would be removed with this user's rights."""
    try:
        lock = locked(place, LockKind.EXCLUSIVE_NOW) if place.stat().st_uid == os.geteuid() else None
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    if lock is not None:
        _remove(place)
        os.close(lock)
    return True


def give_up(place: Path, lock: int) -> None:
    """Release this process' lock on the folder; the last process to release it removes it."""
    with contextlib.suppress(BlockingIOError):
        lock_file(lock, LockKind.EXCLUSIVE_NOW)
        if is_at(lock, place):
            _remove(place)
    os.close(lock)


def locked(place: Path, kind: LockKind) -> int | None:
    """Return the locked folder as an open file; None where it is gone, or was replaced by another.

    Raises:
        BlockingIOError: with ``EXCLUSIVE_NOW``, another process has locked it.
    """
    try:
        lock = os.open(place, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        lock_file(lock, kind)
        if is_at(lock, place):
            return lock
    except OSError:
        os.close(lock)
        raise
    os.close(lock)
    return None


def is_at(lock: int, place: Path) -> bool:
    """Return whether the locked folder is still the one at its path."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(lock), place.stat())
    return False


def processes_with_temporary(folder: Path) -> list[int]:
    """Return the processes started with this folder as their place for temporary files (none without /proc)."""
    mark, processes = b"TMPDIR=" + os.fsencode(folder), []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if mark in environment.read_bytes().split(b"\0"):
                processes.append(int(environment.parent.name))
    return processes


def _remove(place: Path) -> None:
    """Remove a folder that only this process has locked, with the processes and shared memory that end with it."""
    for pid in processes_with_temporary(place):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(FileNotFoundError):
        for pattern in (place / ELSEWHERE).read_text().splitlines():
            for file in SHARED_MEMORY.glob(Path(pattern).name):
                file.unlink(missing_ok=True)
    shutil.rmtree(place, ignore_errors=True)


# --- the sweeper ----------------------------------------------------------------------------------------------------------

SWEEPER = "import sys; sys.path.insert(0, sys.argv[1]); from rlhfless.system.scratch_folders import run_sweeper; run_sweeper()"
"""Without the packages of the environment, whose start-up files may take long (``-S``)."""
_lock = threading.Lock()
_to_sweeper: tuple[int, int] | None = None  # the process that it is of, and a pipe to it


def goes_with_this_process(place: Path) -> None:
    """Remove the folder after this process has ended, unless another process has locked it then."""
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
            [sys.executable, "-I", "-S", "-c", SWEEPER, str(Path(__file__).parents[2])], stdin=reading,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, check=True,
        )  # fmt: skip
    finally:
        os.close(reading)
    return writing


def _sweep_when_over() -> None:
    """Read folder names from the input, which closes when the owning process ends, possibly before its locks are released."""
    places = [Path(os.fsdecode(line)) for line in sys.stdin.buffer.read().splitlines()]
    ends_s = time.monotonic() + PATIENCE_S
    while places := [place for place in places if not remove_unless_held(place)]:
        if time.monotonic() > ends_s:  # others hold them
            return
        time.sleep(0.05)


def run_sweeper() -> None:
    """Sweep in a child process, so that whoever started this one need not wait for it."""
    if os.fork() == 0:
        _sweep_when_over()
