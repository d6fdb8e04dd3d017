"""``Backend`` of torch: the device of a worker process. How tensors are sent is in ``tensor_pickles.py``."""

from __future__ import annotations

from collections.abc import Iterable
from pickle import PickleBuffer
from typing import Any

from rlhfless.engine.common import pool_engines
from rlhfless.engine.torch import devices, tensor_pickles


class Backend(pool_engines.Backend):
    """See ``pool_engines.Backend``; engines are in the process."""

    def cuda_devices(self) -> list[str]:
        """See ``Backend``."""
        return devices.cuda_devices()

    def use_device(self, device: str) -> None:
        """Let this process compute on ``device`` from now on, the first one of several separated by commas."""
        devices.compute_on(device.split(",")[0])

    def pack(self, obj: Any) -> tuple[bytes, list[PickleBuffer]]:
        """See ``Backend``."""
        return tensor_pickles.pack(obj)

    def unpack(self, form: bytes, buffers: Iterable[Any], device: str) -> Any:
        """See ``Backend``."""
        return tensor_pickles.unpack(form, buffers, device)

    def free_memory(self, device: str) -> None:
        """See ``Backend``."""
        devices.free_memory(device)
