"""Shared memory of this machine through which processes pass weights and KV states to each other.

A ``Backend`` makes and reads the buffers that are copied there. The component that chose a block's name frees it.
"""

from __future__ import annotations

import os
from multiprocessing.shared_memory import SharedMemory
from pickle import PickleBuffer
from typing import Any

from rlhfless.engine.common.pool_engines import Backend
from rlhfless.executor.distributed.messages import Block, NoRoom
from rlhfless.system.cleanup import cleaning_up


def packed(worker_backend: Backend, name: str, obj: Any) -> tuple[Block, list[PickleBuffer]]:
    """Return the block of ``thing`` and the buffers to be stored under its name."""
    form, buffers = worker_backend.pack(obj)
    return Block(name, form, tuple(buffer.raw().nbytes for buffer in buffers)), buffers


def write_block(worker_backend: Backend, name: str, obj: Any) -> Block:
    """Write ``thing`` to new shared memory called ``name``; the component that chose the name frees it.

    Raises:
        NoRoom: shared memory is full; no block exists under this name.
    """
    block, buffers = packed(worker_backend, name, obj)
    memory = allocate(name, max([1, *(place.stop for place in block.places)]))
    assert memory.buf is not None
    with cleaning_up(memory.close):
        for place, buffer in zip(block.places, buffers, strict=True):
            memory.buf[place] = buffer.raw()
    return block


def read_block(worker_backend: Backend, block: Block, device: str, *, free: bool) -> Any:
    """Return the stored object, on ``device``; ``free``: delete the block, because no other process reads it."""
    memory = SharedMemory(block.name)
    assert memory.buf is not None
    with cleaning_up(memory.close, *([memory.unlink] if free else [])):
        return worker_backend.unpack(block.form, (memory.buf[place] for place in block.places), device)


def allocate(name: str, nbytes: int) -> SharedMemory:
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
