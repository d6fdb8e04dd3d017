"""``WorkerBackend`` of simulated engines: there is no device and no tensor, so whatever is sent is one pickle."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pickle import PickleBuffer
from typing import Any

from solver.model.latency import LatencyModel


def cuda_devices() -> list[str]:
    """Return no device: nothing is computed."""
    return []


def use_device(device: str) -> None:
    """Do nothing: an actor that computes nothing can be on any device."""


def start_server(engines: Any, latency: LatencyModel) -> bool:
    """Return False: simulated engines need nothing in addition to the process."""
    return False


def pack(obj: Any) -> tuple[bytes, list[PickleBuffer]]:
    """Return the pickle of ``obj``, and no buffers."""
    return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL), []


def unpack(form: bytes, buffers: Iterable[Any], device: str) -> Any:
    """Return the object that ``pack`` was given."""
    return pickle.loads(form)


def free_memory(device: str) -> None:
    """Do nothing: a simulated engine has no memory on a device."""
