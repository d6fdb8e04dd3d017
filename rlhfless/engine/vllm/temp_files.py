"""Registers vLLM's temporary files and shared memory, so that they are removed even when the actor is killed.

With several ranks vLLM has queues, locks and tensor-exchange buffers in /dev/shm (a lock with one rank, too). They stay there
when the actor is killed, and pools end actors by killing them. Of all files with vLLM's or Python's names for shared memory,
only those that this process and its ranks have mapped are registered.
"""

from __future__ import annotations

import contextlib
import glob
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from rlhfless.system.scratch_folders import SHARED_MEMORY, OwnFolder, processes_with_temporary

PREFIX = "rlhfless-vllm-"
NAMES = ("psm_*", "sem.mp-*", "sem.loky-*")  # Python's shared memory, and its locks, which joblib renames once it is imported
RENDEZVOUS = "vllm_dist_*"  # a temporary file; the ranks' shared memory is called after it
POLL_S = 0.5


@contextlib.contextmanager
def noted(folder: OwnFolder) -> Iterator[None]:
    """Context manager: shared memory that vLLM creates in it, in this process and its ranks, is removed with ``folder``.

    ``folder`` is also where they keep temporary files. A process that is killed within this context leaves what it created in
    the last half second.
    """
    before, over, registered = _mapped(folder.path), threading.Event(), set[str]()

    def note() -> None:
        new = {glob.escape(file.name) + "-*" for file in folder.path.glob(RENDEZVOUS)}
        if mapped := _mapped(folder.path) - before:
            new |= {glob.escape(f.name) for names in NAMES for f in SHARED_MEMORY.glob(names) if _inode(f) in mapped}
        folder.shared_memory(sorted(new - registered))
        registered.update(new)

    def poll() -> None:
        while not over.wait(POLL_S):
            note()

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()  # it computes in this process, and ends after its next look
        note()


def _mapped(folder: Path) -> set[int]:
    """Return inodes of shared memory that this process and its ranks have mapped (empty where there is no /proc)."""
    inodes = set()
    for pid in (os.getpid(), *processes_with_temporary(folder)):
        with contextlib.suppress(OSError):  # it has ended
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                _, _, _, _, inode, *name = line.split(maxsplit=5)
                if name and name[0].startswith(f"{SHARED_MEMORY}/"):
                    inodes.add(int(inode))
    return inodes


def _inode(file: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return file.stat().st_ino
    return -1
