"""``WorkerBackend`` of torch: the devices of a worker process, and the other parts of its tensor-parallel actor.

How tensors are sent is in ``tensor_pickles.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlhfless.engine.torch.devices import compute_on, cuda_devices, free_memory
from rlhfless.engine.torch.part_group import PartGroup
from rlhfless.engine.torch.tensor_pickles import pack, unpack

__all__ = ["cuda_devices", "free_memory", "pack", "parts_for", "start_server", "unpack", "use_device"]


@dataclass
class _Here:
    """State of this process: its devices, and the other parts of its tensor-parallel actor."""

    devices: tuple[str, ...] = ("cpu",)
    parts: PartGroup | None = None


_here = _Here()


def use_device(device: str) -> None:
    """Let this process compute on ``device`` from now on, one or several separated by commas."""
    _here.devices = tuple(device.split(","))
    compute_on(_here.devices[0])


def start_server(engines: Any, latency: Any) -> bool:
    """Start the processes of the other parts of a tensor-parallel actor; returns whether any were started."""
    if engines.tensor_parallel == 1 or _here.parts is not None:
        return False
    parts_for(engines.tensor_parallel)
    return True


def parts_for(count: int) -> PartGroup:
    """Return this process's group of tensor-parallel parts, started if there was none."""
    if _here.parts is None:
        _here.parts = PartGroup(_here.devices if len(_here.devices) > 1 else _here.devices * count)
    assert len(_here.parts.devices) == count, "the pool gives an actor of other parts another process"
    return _here.parts
