"""What is said where a device has no room: for a cache, for a pass, for weights."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_messages import refused
from torch_models import EOS, tiny_model

from rlhfless.engine.protocol import Request
from rlhfless.engine.torch import kv_rows
from rlhfless.engine.torch import prefixes as torch_prefixes
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.system import memory
from solver import LatencyModel
from solver.model.admission import Admission

LATENCY = LatencyModel("test", 1, base_s=1.0, per_response_s=0.1)
ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
]


@pytest.fixture(scope="module")
def model() -> DecoderModel:
    return DecoderModel(tiny_model())


def engine_of(model: DecoderModel) -> TorchEngine:
    engine = TorchEngine(model, Admission(3, 1 << 20), LATENCY, eos_id=EOS)
    engine.add([Request(0, 4, 9, prompt_ids=np.arange(1, 5), seed=0)])
    return engine


def available(kibibytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable:     {kibibytes} kB\n")
    told_in(tmp_path, monkeypatch)


def told_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MEMINFO", folder / "meminfo")
    monkeypatch.setattr(memory, "CGROUPS", folder / "cgroups")


def test_a_cache_for_which_too_little_is_free_is_not_asked_for(
    model: DecoderModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU's allocator would grant it, and the process would be ended when it is used."""
    cache = model.new_cache()
    cache.reserve_rows(2)
    assert model.cells * model.kv_bytes_per_token == 544 * 512, "1000 KiB hold three rows and a half"
    available(1000, tmp_path, monkeypatch)
    fits = "; 0.00 GiB are free, enough for a cache of 3 slots beside it"
    with refused(MemoryError, "544", "0.00", str(fits)):
        cache.reserve_rows(9)
    assert cache.data.shape[2] == 2
    cache.reserve_rows(3, 3)
    assert cache.data.shape[2] == 3


def test_a_cache_that_cannot_double_grows_by_what_is_needed(
    model: DecoderModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = model.new_cache()
    cache.reserve_rows(2)
    available(1000, tmp_path, monkeypatch)  # three rows and a half
    cache.reserve_rows(3, 8)
    assert cache.data.shape[2] == 3
    with refused(MemoryError):
        cache.reserve_rows(4, 8)


@pytest.mark.parametrize("told", ["MemTotal: 9 kB\n", None])
def test_a_cache_that_is_refused_where_nobody_says_what_is_free(
    model: DecoderModel, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = model.new_cache()
    cache.reserve_rows(2)
    if told is not None:
        (tmp_path / "meminfo").write_text(told)
    told_in(tmp_path, monkeypatch)

    def full(*size: Any) -> torch.Tensor:
        raise ERRORS[1]

    monkeypatch.setattr(type(cache.data), "new_zeros", full, raising=False)
    with refused(MemoryError, "544", "0.00"):
        cache.reserve_rows(9)


def test_the_memory_that_is_free_is_asked_for(model: DecoderModel) -> None:
    """For real: more than there is anywhere, on a machine that says what it has."""
    if not memory.MEMINFO.exists():
        pytest.skip("only Linux says how much memory is available")
    cache = model.new_cache()
    a_row = model.cells * model.kv_bytes_per_token
    with pytest.raises(MemoryError) as error:
        cache.reserve_rows((1 << 56) // a_row)
    fits = int(re.search(r"enough for a cache of (\d+) slots beside it", str(error.value))[1])  # type: ignore[index]
    assert 0 < fits * a_row < 1 << 50


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("where", ["prefill", "decode", "prepare"])
def test_an_engine_without_room_says_what_is_free(
    model: DecoderModel, error: RuntimeError, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prefill or an iteration takes memory of its own, and so does a captured shape."""
    engine = engine_of(model)
    available(3 << 20, tmp_path, monkeypatch)

    def full(*_: Any) -> None:
        raise error

    places = {"prefill": (kv_rows, "prefill"), "decode": (model, "decode"), "prepare": (engine._loop.step, "prepare")}
    monkeypatch.setattr(*places[where], full)
    with refused(MemoryError, "cpu", "3 slots", "3.00 GiB") as told:
        engine.advance(math.inf)
    assert told.value.__cause__ is error
    engine.close()


def test_other_errors_of_torch_stay_as_they_are(model: DecoderModel, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, error = engine_of(model), RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    def broken(*_: Any) -> None:
        raise error

    monkeypatch.setattr(model, "decode", broken)
    with pytest.raises(RuntimeError) as told:
        engine.advance(math.inf)
    assert told.value is error


def test_weights_and_prefixes_without_room_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise ERRORS[0]

    model, source = DecoderModel(tiny_model()), tiny_model(seed=1)
    monkeypatch.setattr(torch_prefixes, "prefill", full)
    with refused(MemoryError):
        torch_prefixes.compute_prefixes(model, {0: np.arange(1, 5)})
    monkeypatch.setattr("rlhfless.engine.torch.model.copy_weights", full)
    with refused(MemoryError):
        model.load(source)
    assert not model.weights.layers, "which may be half written"
