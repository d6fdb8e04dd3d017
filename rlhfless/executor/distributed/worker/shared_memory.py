"""Shared memory of this machine in which processes lay out weights and KV states for each other.

Knows names and sizes; nothing of what is laid out (a ``WorkerBackend`` packs it), or of who frees it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from rlhfless.executor.distributed.messages import NoRoom
from rlhfless.executor.distributed.worker.backend import WorkerBackend


@dataclass(frozen=True)
class Block:
    """Something with tensors, laid out in the shared memory ``name`` as ``packed`` says (see ``WorkerBackend``)."""

    name: str
    packed: Any


def write_block(side: WorkerBackend, name: str, thing: Any) -> Block:
    """Lay ``thing`` out in new shared memory called ``name``; whoever named it frees it.

    Raises:
        NoRoom: shared memory is full; nothing is there under this name.
    """
    packed, tensors = side.pack(thing)
    memory = _room(name, max(1, packed.nbytes))
    assert memory.buf is not None
    try:
        side.write(packed, tensors, memory.buf)
    finally:
        memory.close()
    return Block(name, packed)


def read_block(side: WorkerBackend, block: Block, device: str, *, free: bool) -> Any:
    """What was laid out, on ``device``; ``free``: nobody else reads it."""
    memory = SharedMemory(block.name)
    assert memory.buf is not None
    try:
        return side.read(block.packed, memory.buf, device)
    finally:
        memory.close()
        if free:
            memory.unlink()


def _room(name: str, nbytes: int) -> SharedMemory:
    """New shared memory, all of it there: writing to a page for which there is no room would end the process."""
    memory = SharedMemory(name, create=True, size=nbytes)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(memory._fd, 0, nbytes)  # type: ignore[attr-defined]
    except OSError as error:
        memory.close()
        memory.unlink()
        raise NoRoom(
            f"shared memory has no room for {nbytes:,} bytes ({error.strerror}); make /dev/shm larger (docker run --shm-size)"
        ) from None
    return memory
