"""``WorkerBackend`` of torch: the device of a worker process. How tensors are sent is in ``tensor_pickles.py``."""

from __future__ import annotations

from typing import Any

from rlhfless.engine.torch.devices import compute_on, cuda_devices, free_memory
from rlhfless.engine.torch.tensor_pickles import pack, unpack

__all__ = ["cuda_devices", "free_memory", "pack", "start_server", "unpack", "use_device"]


def use_device(device: str) -> None:
    """Let this process compute on ``device`` from now on, the first one of several separated by commas."""
    compute_on(device.split(",")[0])


def start_server(engines: Any, latency: Any) -> bool:
    """Start nothing: engines are in the process. See ``WorkerBackend``."""
    return False
