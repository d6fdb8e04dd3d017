"""Shared memory of this machine through which processes pass weights and KV states to each other.

A ``WorkerBackend`` packs and reads the contents. The component that chose a block's name frees it.
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
    """An object with tensors, stored in the shared memory ``name``; ``packed`` describes how (see ``WorkerBackend``)."""

    name: str
    packed: Any


def write_block(side: WorkerBackend, name: str, thing: Any) -> Block:
    """Write ``thing`` to new shared memory called ``name``; the component that chose the name frees it.

    Raises:
        NoRoom: shared memory is full; no block exists under this name.
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
    """Return the stored object, on ``device``; ``free``: delete the block, because no other process reads it."""
    memory = SharedMemory(block.name)
    assert memory.buf is not None
    try:
        return side.read(block.packed, memory.buf, device)
    finally:
        memory.close()
        if free:
            memory.unlink()


def _room(name: str, nbytes: int) -> SharedMemory:
    """Return new shared memory with all pages allocated: writing to a page without memory behind it would kill the process."""
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
