"""Pickles models and KV states with their tensors out of band.

A pickle (protocol 5) hands over the bytes of every tensor as a buffer, which the caller stores where the reader finds it. The
reader copies each buffer once, to its device. Pickles come from this program's own processes only.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor


class _Pickler(pickle.Pickler):
    """Pickler whose buffers are the bytes of tensors and nothing else; it replaces devices by a mark."""

    def persistent_id(self, obj: Any) -> Any:
        return "device" if isinstance(obj, torch.device) else None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor):
            flat = obj.detach().cpu().contiguous().flatten().view(torch.uint8)
            data: Any = np.from_dlpack(flat)  # ``flat.numpy()`` would keep ``free_storage`` from freeing the memory
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
