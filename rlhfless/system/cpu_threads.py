"""Threads with which torch computes on the CPU, and the cores that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def computing_with(threads: int, device: Any) -> Iterator[None]:
    """Compute with so many threads on the CPU; other devices are left as they are.

    Args:
        device: a ``torch.device``.
    """
    import torch

    before = torch.get_num_threads()
    if device.type != "cpu" or threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
