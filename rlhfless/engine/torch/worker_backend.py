"""``WorkerBackend`` of torch: chooses devices, and serialises models and KV state into memory that processes share.

An object with tensors (an engine factory with its weights, a KV state) becomes a small pickle without them and a list of
tensors. These are copied once into the buffer and once out of it, to the reader's device. Pickles come from this program's own
processes only.
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
    """Position of a tensor in the buffer."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int

    @property
    def numbers(self) -> int:
        """Return how many numbers the tensor has."""
        return math.prod(self.shape)


class Packed(NamedTuple):
    """An object without its tensors. ``nbytes`` is the size of the buffer that stores them."""

    form: bytes
    places: tuple[TensorPlace, ...]
    nbytes: int


class _Packer(pickle.Pickler):
    """Pickler that replaces tensors by numbers (the same tensor by the same number) and devices by a mark."""

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
    """Return ``thing`` without its tensors, and the tensors, for ``write``."""
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
    """Copy the tensors from any device into the buffer."""
    for place, tensor in zip(packed.places, tensors, strict=True):
        if place.numbers:
            _view(place, buffer).copy_(tensor)


@torch.inference_mode()
def read(packed: Packed, buffer: memoryview, device: str) -> Any:
    """Return the object that ``pack`` was given, on ``device``; it does not refer to the buffer."""
    where = torch.device(device)
    tensors = [
        _view(place, buffer).to(where, copy=True)
        if place.numbers
        else torch.empty(place.shape, dtype=place.dtype, device=where)
        for place in packed.places
    ]
    return _Unpacker(packed.form, tensors, where).load()


def view(packed: Packed, buffer: memoryview) -> Any:
    """Return the object that ``pack`` was given, with tensors that are views of the buffer."""
    empty = (torch.empty(place.shape, dtype=place.dtype) for place in packed.places)
    tensors = [_view(place, buffer) if place.numbers else none for place, none in zip(packed.places, empty, strict=True)]
    return _Unpacker(packed.form, tensors, torch.device("cpu")).load()


def _view(place: TensorPlace, buffer: memoryview) -> Tensor:
    return torch.frombuffer(buffer, dtype=place.dtype, count=place.numbers, offset=place.begin).view(place.shape)


def cuda_devices() -> list[str]:
    """Return the CUDA devices of this machine, in order; an empty list without CUDA."""
    return [f"cuda:{i}" for i in range(torch.cuda.device_count())]


def use_device(device: str) -> None:
    """Let this process compute on ``device`` from now on: on the CPU with one thread, because there is one process per
    actor.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)


def start_server(engines: Any, latency: Any) -> bool:
    """Return False: torch engines need nothing in addition to the process."""
    return False


def free_memory(device: str) -> None:
    """Return unused memory to the device."""
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
