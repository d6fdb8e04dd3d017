"""Torch in processes of its own: choosing a device, and laying out models and KV state in memory that processes share.

Knows tensors and buffers; nothing of processes, requests or plans. Whatever holds tensors (an engine factory with its weights,
a KV state) becomes a small pickle without them and a list of tensors, which are copied once into the buffer and once out of
it, to the device of whoever reads. Pickles come from this program's own processes only.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

ALIGNMENT_BYTES = 64


class TensorPlace(NamedTuple):
    """Where a tensor lies in the buffer."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int

    @property
    def numbers(self) -> int:
        """How many numbers the tensor has."""
        return math.prod(self.shape)


class Packed(NamedTuple):
    """Something with its tensors taken out. ``nbytes`` is the size of the buffer that holds them."""

    form: bytes
    places: tuple[TensorPlace, ...]
    nbytes: int


class _Packer(pickle.Pickler):
    """Tensors become numbers (the same tensor the same number), devices a mark."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []
        self._number: dict[int, int] = {}

    def persistent_id(self, thing: Any) -> Any:
        if isinstance(thing, torch.device):
            return "device"
        if not isinstance(thing, Tensor):
            return None
        if id(thing) not in self._number:
            self._number[id(thing)] = len(self.tensors)
            self.tensors.append(thing)
        return self._number[id(thing)]


class _Unpacker(pickle.Unpickler):
    def __init__(self, form: bytes, tensors: Sequence[Tensor], device: torch.device) -> None:
        super().__init__(io.BytesIO(form))
        self._tensors, self._device = tensors, device

    def persistent_load(self, pid: Any) -> Any:
        return self._device if pid == "device" else self._tensors[pid]


def pack(thing: Any) -> tuple[Packed, list[Tensor]]:
    """``thing`` without its tensors, and the tensors, for ``write``."""
    file = io.BytesIO()
    packer = _Packer(file)
    packer.dump(thing)
    places, end = [], 0
    for tensor in packer.tensors:
        places.append(TensorPlace(tensor.dtype, tuple(tensor.shape), end))
        end += -(-tensor.numel() * tensor.element_size() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return Packed(file.getvalue(), tuple(places), end), packer.tensors


@torch.inference_mode()
def write(packed: Packed, tensors: Sequence[Tensor], buffer: memoryview) -> None:
    """Copy the tensors into the buffer, from whatever device."""
    for place, tensor in zip(packed.places, tensors, strict=True):
        if place.numbers:
            _view(place, buffer).copy_(tensor)


@torch.inference_mode()
def read(packed: Packed, buffer: memoryview, device: str) -> Any:
    """What ``pack`` was given, on ``device``; nothing of it refers to the buffer."""
    where = torch.device(device)
    tensors = [
        _view(place, buffer).to(where, copy=True)
        if place.numbers
        else torch.empty(place.shape, dtype=place.dtype, device=where)
        for place in packed.places
    ]
    return _Unpacker(packed.form, tensors, where).load()


def view(packed: Packed, buffer: memoryview) -> Any:
    """What ``pack`` was given, its tensors where they lie in the buffer."""
    empty = (torch.empty(place.shape, dtype=place.dtype) for place in packed.places)
    tensors = [_view(place, buffer) if place.numbers else none for place, none in zip(packed.places, empty, strict=True)]
    return _Unpacker(packed.form, tensors, torch.device("cpu")).load()


def _view(place: TensorPlace, buffer: memoryview) -> Tensor:
    return torch.frombuffer(buffer, dtype=place.dtype, count=place.numbers, offset=place.begin).view(place.shape)


def cuda_devices() -> list[str]:
    """The CUDA devices of this machine, in order; none where there are none."""
    return [f"cuda:{i}" for i in range(torch.cuda.device_count())]


def use_device(device: str) -> None:
    """This process computes on ``device`` from now on: on the CPU with one thread, as there is one process per actor."""
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)


def bring_up(engines: Any, latency: Any) -> bool:
    """Start whatever engines need beside the process; returns whether there was anything: torch needs nothing."""
    return False


def free_memory(device: str) -> None:
    """Give memory that no tensor uses any more back to the device."""
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
