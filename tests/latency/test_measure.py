"""Measuring a profile: a tiny model for real, and a pretended machine whose times are known."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from error_messages import refused
from tiny_architectures import tiny

from rlhfless.engine.torch import benchmark as torch_benchmark
from rlhfless.engine.torch import kv_cache
from rlhfless.engine.torch.benchmark import EngineTimer, engine_timers
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.kv_cache import KVCache
from rlhfless.errors import MissingExtra
from rlhfless.latency import ProfileError, load_profile, measure, save_profile
from rlhfless.latency.measure import MeasurementGrid
from rlhfless.latency.timing import AFTER, GAP, BatchChangeTrial, RunTrial

SMALL = MeasurementGrid((1, 8), (16, 64), ((1, 16), (4, 32)), 1)


def test_a_tiny_model_is_measured_and_loads(tmp_path: Path) -> None:
    profile = measure.measure_profile(engine_timers, name="here", grid=SMALL)
    model = load_profile(save_profile(tmp_path / "here.json", profile))
    assert (model.name, model.kind, model.gpus_per_actor, model.max_batch) == ("here", "cpu", 1, 8)
    assert model.table is not None
    assert model.table.iteration_s.shape == (2, 2)
    assert 0 < float(model.iteration_s(8, 8 * 64)) < 10
    assert model.start_s > model.sync_s > 0
    assert profile["precision"] == "float32"
    assert profile["kv_capacity"]["weight_bytes"] == 4 * 497_408
    assert model.kv_capacity_tokens == (1 << 30) // profile["link"]["kv_bytes_per_token"]


def test_a_start_is_timed_by_few_replicas_in_the_precision_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large model each takes long; in another precision it would take another time."""
    made, replica = [], measure.CausalLM.replica

    def noted(lm: measure.CausalLM) -> Any:
        made.append(replica(lm).dtype)
        return replica(lm)

    monkeypatch.setattr(measure.CausalLM, "replica", noted)
    measure.measure_profile(engine_timers, grid=replace(SMALL, rounds=2))
    assert made == [torch.float32] * (1 + measure.BUILDS)
    lm = measure.CausalLM(measure.TINY)
    lm._dtype = torch.bfloat16
    assert lm.build_s() > 0
    assert made[-measure.BUILDS :] == [torch.bfloat16] * measure.BUILDS


def test_a_gpu_has_room_for_what_its_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = measure.CausalLM(measure.TINY)
    lm.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80 << 30))
    all_of_it, whose = lm.capacity()
    assert all_of_it["tokens"] == int((0.9 * (80 << 30) - lm.weight_bytes) / lm.kv_bytes_per_token)
    assert whose == "all that the GPU has"
    assert lm.capacity(40 << 30)[0]["tokens"] == int((0.9 * (40 << 30) - lm.weight_bytes) / lm.kv_bytes_per_token)


def test_the_fit_is_over_what_the_memory_holds() -> None:
    lm = measure.CausalLM(measure.TINY)
    enough = int((lm.weight_bytes + 200 * lm.kv_bytes_per_token) / 0.9)  # 8 x 16 tokens, not 8 x 64
    profile = measure.measure_profile(engine_timers, grid=SMALL, memory_bytes=enough)
    assert profile["fit"]["points"] == 3
    assert profile["kv_capacity_tokens"] in (199, 200)
    assert profile["assumptions"]["kv_capacity.memory_bytes_per_gpu"] == "assumed: given to the measurement"


def test_an_iteration_holds_the_context_that_is_asked_for() -> None:
    """The engine that is timed holds ``context`` tokens per response when it is set up, and one more after every call."""
    model = measure.CausalLM(measure.TINY).model
    timer = EngineTimer(model, 64)
    for calls in (1, 2, 3):
        timer.decode_iteration(2, 16)
        assert timer._engine is not None
        assert timer._engine.generated_tokens() == {0: calls, 1: calls}
    timer.decode_iteration(3, 16)
    assert timer._engine.generated_tokens() == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize(("batch", "tokens"), [(1, 8), (2, 8), (4, 16), (7, 3)])
def test_the_batch_of_a_trial_changes_as_the_trial_says(batch: int, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ``GAP`` iterations one ends; in the first half another joins at once."""
    engines = []

    class Watched(TorchEngine):
        def close(self) -> None:
            engines.append(self)

    monkeypatch.setattr(torch_benchmark, "TorchEngine", Watched)
    trial = BatchChangeTrial(batch, tokens)
    model = measure.CausalLM(measure.TINY).model
    seconds = EngineTimer(model, tokens + trial.iterations).run_trial(trial)
    assert seconds.shape == (trial.iterations,)
    assert seconds.min() > 0
    changes = engines[0].journal.changes
    assert [c.iteration for c in changes] == [GAP * i for i in range(2 * trial.refills + 1)]
    asked = [(batch, 0), *[(1, 1)] * trial.refills, *[(0, 1)] * trial.refills]
    assert [(len(c.joined), len(c.left)) for c in changes] == asked
    assert [new.context_tokens for c in changes for new in c.joined] == [tokens] * (batch + trial.refills)


@pytest.mark.full
def test_the_times_are_those_of_the_callables(tmp_path: Path) -> None:
    """Iterations of 10 ms + 2 ms per response, and changes that take 4 ms for each that ends: the fits must find about that."""

    def work(seconds: float) -> None:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass

    def trial_s(trial: BatchChangeTrial) -> np.ndarray:
        """Half of what an end takes before the change and half after it; 6 ms for a prefill call, 1 ms for each that joins."""
        seconds = np.full(trial.iterations, 10e-3)
        seconds[0] += 6e-3 + 1e-3 * trial.batch
        for i in range(1, 2 * trial.refills + 1):
            seconds[GAP * i - 1] += 2e-3
            seconds[GAP * i + AFTER - 1] += 2e-3
            seconds[GAP * i] += 7e-3 * (i <= trial.refills)
        return seconds

    def timers(model: object, longest: int) -> tuple[measure.DecodeIteration, RunTrial]:
        return lambda batch, context: work(10e-3 + 2e-3 * batch), trial_s

    profile = measure.measure_profile(timers, name="pretended", grid=replace(SMALL, rounds=3))
    iteration_s = np.array(profile["table"]["step_s"])
    assert np.all(iteration_s >= np.array([[12e-3], [26e-3]]))
    assert profile["fit"]["base_s"] == pytest.approx(10e-3, rel=0.5)
    assert profile["fit"]["per_response_s"] == pytest.approx(2e-3, rel=0.5)
    prefill = profile["prefill"]
    assert [prefill[name] for name in ("base_s", "per_join_s", "per_end_s", "per_token_s")] == pytest.approx(
        [6e-3, 1e-3, 4e-3, 0]
    )
    assert prefill["max_relative_error"] == pytest.approx(0, abs=1e-6)
    assert load_profile(save_profile(tmp_path / "here.json", profile)).join_s == pytest.approx(5e-3)


def test_no_two_kv_caches_are_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is as long as the longest context, whatever is timed."""
    timer, reserve, made = EngineTimer(measure.CausalLM(measure.TINY).model, 64), KVCache.reserve_rows, []

    def noted(cache: KVCache, *rows: int) -> None:
        reserve(cache, *rows)
        made.append(cache.data.untyped_storage())
        assert [storage.nbytes() > 0 for storage in made] == [False] * (len(made) - 1) + [True]

    monkeypatch.setattr(KVCache, "reserve_rows", noted)
    for context in (64, 16, 32):
        timer.decode_iteration(4, context)
    timer.run_trial(BatchChangeTrial(2, 16))
    timer.decode_iteration(4, 64)
    assert len(made) == 5


def test_an_engine_that_the_device_has_no_room_for_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = EngineTimer(measure.CausalLM(measure.TINY).model, 64)
    timer.decode_iteration(2, 16)
    with monkeypatch.context() as full:
        full.setattr(kv_cache, "free_bytes", lambda _: 0)
        for _ in range(2):
            with refused(MemoryError):
                timer.decode_iteration(4, 16)
    timer.decode_iteration(4, 16)


def test_batches_that_the_device_does_not_hold_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "free_bytes", lambda _: 5 << 20)  # 32 rows of 160 tokens of 1 KiB
    grid = MeasurementGrid((1, 8, 64, 128), (16, 64), ((1, 16), (64, 16)), 1)
    profile = measure.measure_profile(engine_timers, grid=grid)
    assert profile["origin"].endswith("included; batches of 64, 128 do not fit and are left out")
    assert (profile["table"]["batch"], profile["max_batch"], profile["fit"]["points"]) == ([1, 8], 8, 4)
    assert max(profile["prefill"]["samples"]["prompts"]) == 8
    assert "left out" not in measure.measure_profile(engine_timers, grid=SMALL)["origin"]
    with refused(ProfileError, "tiny-qwen2 on cpu", "1, 64, 128", "64 tokens", "64 slots"):
        measure.measure_profile(engine_timers, grid=replace(grid, batches=(1, 64, 128)))


@pytest.mark.parametrize("forward", ["own", "transformers"])
def test_the_longest_context_of_a_model_takes_the_place_of_longer_ones(forward: str, tmp_path: Path) -> None:
    """GPT-2 has learned positions: one token beyond the last of them would be an error of its own."""
    config = tiny("gpt2" if forward == "transformers" else "llama").config
    config.save_pretrained(tmp_path)
    assert config.max_position_embeddings == 128
    grid = MeasurementGrid((1, 4), (16, 512, 1024), ((1, 16), (4, 256)), 1)
    profile = measure.measure_profile(partial(engine_timers, forward=forward), str(tmp_path), grid=grid)
    assert profile["table"]["context_tokens"] == [16, 128]
    assert "contexts of 512, 1024 are longer than the model's" in profile["origin"]
    assert max(profile["prefill"]["samples"]["tokens_each"]) <= 128


def test_no_more_responses_join_than_there_are_slots() -> None:
    profile = measure.measure_profile(engine_timers, grid=replace(SMALL, joins=((2, 8), (16, 8), (32, 8))), max_batch=3)
    assert sorted(set(profile["prefill"]["samples"]["prompts"])) == [0, 1, 2, 3]


def test_a_local_folder_is_a_model_and_the_command_is_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "narrow"
    folder.mkdir()
    config = measure.TINY_CONFIG | {"model_type": "qwen2", "num_hidden_layers": 1, "hidden_size": 64}
    (folder / "config.json").write_text(json.dumps(config))
    profile = measure.measure_profile(engine_timers, str(folder), "out", SMALL, command="how it was called")
    assert (profile["model"], profile["name"], profile["command"]) == ("narrow", "out", "how it was called")
    assert profile["table"]["batch"] == [1, 8]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "no/such/folder"}, ("'no/such/folder'", "config.json")),
        ({"device": "abacus"}, ("'abacus'",)),
        ({"contexts": (2048, 4096)}, ("1024", "2 or more")),
        ({"batches": (1,)}, ()),
        ({"rounds": 0}, ()),
        ({"memory_bytes": 1 << 21}, ("0.002", "16")),
    ],
)
def test_wrong_requests_are_refused(arguments: dict, message: tuple[str, ...]) -> None:
    sizes = {name: value for name, value in arguments.items() if name in ("batches", "contexts", "rounds")}
    with refused(ProfileError, *message):
        others = {name: value for name, value in arguments.items() if name not in sizes}
        measure.measure_profile(engine_timers, grid=replace(SMALL, **sizes), **others)


@pytest.mark.parametrize("copying", ["replica", "build", "sync"])
def test_a_copy_of_the_model_for_which_a_device_has_no_room_is_reported(copying: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = measure.CausalLM(measure.TINY)

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(lm._transformers.AutoModelForCausalLM, "from_config", full)
    monkeypatch.setattr(lm.model, "state_dict", full)
    what = "a second set of the weights" if copying == "sync" else "a replica"
    with refused(MemoryError, str(what)):
        getattr(lm, copying)()


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with refused(MissingExtra):
        measure.measure_profile(engine_timers, grid=SMALL)
