"""``WorkerBackend`` of torch: chooses devices, and pickles models and KV states with their tensors out of band.

A pickle (protocol 5) hands over the bytes of every tensor as a buffer, which the caller stores where the reader finds it. The
reader copies each buffer once, to its device. Pickles come from this program's own processes only.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass
class _Here:
    """State of this process: its devices, and the other parts of its tensor-parallel actor."""

    devices: tuple[str, ...] = ("cpu",)
    parts: Any = None


_here = _Here()


class _Pickler(pickle.Pickler):
    """Pickler whose buffers are the bytes of tensors and nothing else; it replaces devices by a mark."""

    def persistent_id(self, obj: Any) -> Any:
        return "device" if isinstance(obj, torch.device) else None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor):
            flat = obj.detach().cpu().contiguous().flatten().view(torch.uint8)
            data: Any = np.from_dlpack(flat)  # ``flat.numpy()`` would keep ``give_back`` from freeing the memory
            buffer = pickle.PickleBuffer(data)
            return _tensor, (buffer, obj.dtype, tuple(obj.shape), obj.device)
        if isinstance(obj, np.ndarray):
            return obj.__reduce_ex__(4)  # within the pickle, so that its copy is writable
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, form: bytes, buffers: Iterable[Any], device: str) -> None:
        super().__init__(io.BytesIO(form), buffers=buffers)
        self._device = torch.device(device)

    def persistent_load(self, pid: Any) -> Any:
        return self._device


def _tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> Tensor:
    flat = torch.frombuffer(buffer, dtype=dtype) if memoryview(buffer).nbytes else torch.empty(0, dtype=dtype)
    return flat.view(shape).to(device, copy=True)


def pack(obj: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Return the pickle of ``thing`` without its tensors, and the bytes of each tensor; on the CPU they are not copied."""
    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(file, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append).dump(obj)
    return file.getvalue(), buffers


@torch.inference_mode()
def unpack(form: bytes, buffers: Iterable[Any], device: str) -> Any:
    """Return the object that ``pack`` was given, on ``device``; its tensors do not refer to the buffers."""
    return _Unpickler(form, buffers, device if "," not in device else "cpu").load()  # several GPUs get parts of it


def cuda_devices() -> list[str]:
    """Return the CUDA devices of this machine, in order; an empty list without CUDA."""
    return [f"cuda:{i}" for i in range(torch.cuda.device_count())]


def use_device(device: str) -> None:
    """Let this process compute on ``device`` from now on, one or several separated by commas: on the CPU with one thread,
    because there is one process per actor.
    """
    _here.devices = tuple(device.split(","))
    if torch.device(_here.devices[0]).type == "cuda":
        torch.cuda.set_device(_here.devices[0])
    else:
        torch.set_num_threads(1)


def start_server(engines: Any, latency: Any) -> bool:
    """Start the processes of the other parts of a tensor-parallel actor; returns whether any were started."""
    if engines.tensor_parallel == 1 or _here.parts is not None:
        return False
    parts_for(engines.tensor_parallel)
    return True


def parts_for(count: int) -> Any:
    """Return this process's group of tensor-parallel parts, started if there was none."""
    if _here.parts is None:
        from rlhfless.engine.torch.part_group import PartGroup  # which needs this module

        devices = _here.devices if len(_here.devices) > 1 else _here.devices * count
        _here.parts = PartGroup(devices)
    assert len(_here.parts.devices) == count, "the pool gives an actor of other parts another process"
    return _here.parts


def free_memory(device: str) -> None:
    """Return unused memory to the device."""
    if torch.device(device.split(",")[0]).type == "cuda":
        torch.cuda.empty_cache()
