"""Measuring a profile: a tiny model for real, and a pretended machine whose times are known."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from rlhfless.errors import MissingExtra
from rlhfless.latency import ProfileError, load_profile, measure, save_profile

pytest.importorskip("torch")
pytest.importorskip("transformers")

SMALL = {"batches": (1, 8), "contexts": (16, 64), "prefills": ((1, 16), (4, 32)), "rounds": 1}


def test_a_tiny_model_is_measured_and_loads(tmp_path: Path) -> None:
    profile = measure.measure_profile(name="here", **SMALL)
    model = load_profile(save_profile(tmp_path / "here.json", profile))
    assert (model.name, model.kind, model.gpus_per_actor, model.max_batch) == ("here", "cpu", 1, 8)
    assert model.table is not None
    assert model.table.step_s.shape == (2, 2)
    assert 0 < float(model.step_s(8, 8 * 64)) < 10
    assert model.start_s > model.sync_s > 0
    assert profile["precision"] == "float32"
    assert profile["kv_capacity"]["weight_bytes"] == 4 * 1_055_360
    assert model.kv_capacity_tokens == (1 << 30) // profile["link"]["kv_bytes_per_token"]


def test_an_iteration_reads_exactly_the_context() -> None:
    """The cache holds ``context`` tokens after the iteration, time and again, and its contents matter."""
    lm = measure.CausalLM(measure.TINY)
    for _ in range(2):
        lm.decode_iteration(2, 16)
        (cache,) = lm._caches.values()
        assert {int(layer.cumulative_length) for layer in cache.layers} == {16}
        assert cache.layers[0].keys.shape == (2, 4, 16, 32)
    lm.prefill_call(3, 8)
    (cache,) = lm._caches.values()
    assert {int(layer.cumulative_length) for layer in cache.layers} == {8}


def test_the_times_are_those_of_the_callables() -> None:
    """Sleeping stands for work: 10 ms + 2 ms per response, so the fit must find about that."""
    profile = measure.measure_profile(
        name="pretended",
        decode_iteration=lambda batch, context: time.sleep(10e-3 + 2e-3 * batch),
        prefill_call=lambda prompts, tokens: time.sleep(1e-3),
        **(SMALL | {"rounds": 3}),
    )
    step_s = np.array(profile["table"]["step_s"])
    assert np.all(step_s >= np.array([[12e-3], [26e-3]]))
    assert profile["fit"]["base_s"] == pytest.approx(10e-3, rel=0.5)
    assert profile["fit"]["per_response_s"] == pytest.approx(2e-3, rel=0.5)


def test_a_local_folder_is_a_model_and_the_command_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, output = tmp_path / "narrow", tmp_path / "out.json"
    folder.mkdir()
    config = measure.TINY_CONFIG | {"model_type": "qwen2", "num_hidden_layers": 1, "hidden_size": 64}
    (folder / "config.json").write_text(json.dumps(config))
    defaults = (measure.TINY, "cpu-tiny-qwen2", (1, 2), (16, 32))  # a smaller grid
    monkeypatch.setattr(measure.measure_profile, "__defaults__", defaults)
    measure.main(["--model", str(folder), "--rounds", "1", "-o", str(output)])
    profile = json.loads(output.read_text())
    assert profile["model"] == "narrow"
    assert profile["name"] == "out"
    assert profile["table"]["batch"] == [1, 2]
    assert profile["command"] == f"python -m rlhfless.latency.measure --model {folder} --rounds 1 -o {output}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "no/such/folder"}, "'no/such/folder' is no model: give a local folder with a config.json"),
        ({"device": "abacus"}, "the device 'abacus' cannot be used here"),
        ({"contexts": (16, 1024)}, "tiny-qwen2 holds 512 tokens of context; 1024 cannot be measured"),
        ({"batches": (1,)}, "2 or more batches and contexts"),
        ({"rounds": 0}, "1 round or more"),
    ],
)
def test_wrong_requests_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        measure.measure_profile(**(SMALL | arguments))


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"needs torch, which is not installed: pip install 'rlhfless\[torch\]'"):
        measure.measure_profile(**SMALL)
