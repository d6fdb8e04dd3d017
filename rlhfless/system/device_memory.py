"""Free memory of a torch device, and a clear error message where an allocation does not fit.

Inputs are devices and sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rlhfless.system.memory import free_memory_bytes

SPARE = "use fewer slots, a shorter response limit or fewer actors on this device"
CPU_ALLOCATOR = "DefaultCPUAllocator"  # begins what torch says where the CPU has no room; on GPUs the error has a type


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes that could be allocated now; None where they are unknown. On a CPU the value is Linux's, for this
    process' container."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch holds these for itself
        return int(torch.cuda.mem_get_info(device)[0] + unused)
    return free_memory_bytes()


@contextmanager
def explain_out_of_memory(device: torch.device, doing: str, instead: str = SPARE) -> Iterator[None]:
    """Context manager: replace torch's out-of-memory error by one that says what failed, what is free, and what to do instead.

    Raises:
        MemoryError: instead of torch's own error.
    """
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and CPU_ALLOCATOR not in str(error):
            raise
        free = free_bytes(device)
        free_text = "" if free is None else f"; {free / 2**30:.2f} GiB are free"
        raise MemoryError(f"{device} has no room for {doing}{free_text}: {instead}") from error
