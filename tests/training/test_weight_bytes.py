"""The bytes of weights are known before a model is loaded: as many as the engine holds afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from error_messages import refused  # noqa: E402
from training_samples import config  # noqa: E402

from rlhfless.engine.torch.model import DecoderModel  # noqa: E402
from rlhfless.errors import InputError  # noqa: E402
from rlhfless.training import run_start, weight_bytes  # noqa: E402
from rlhfless.training.loop import Trainer  # noqa: E402
from rlhfless.training.models.tiny_model import save_model  # noqa: E402
from rlhfless.training.run_start import CharTokenizer, tiny_qwen2  # noqa: E402
from rlhfless.training.weight_bytes import generated_weight_bytes  # noqa: E402


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_bytes_of_a_folder_and_of_a_model_are_those_that_an_engine_holds(tmp_path: Path, precision: str) -> None:
    tokenizer = CharTokenizer()
    model = tiny_qwen2(tokenizer, 0)
    held = DecoderModel(model, 64, getattr(torch, precision)).weight_bytes
    save_model(model, tokenizer, tmp_path / "warm")
    for given, folder in (((model, tokenizer), None), (tmp_path / "warm", None), (None, tmp_path)):
        assert generated_weight_bytes(given, folder, precision) == held  # type: ignore[arg-type]


def test_without_a_model_or_with_a_damaged_one_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 40)
    for given in (None, tmp_path):
        assert generated_weight_bytes(given, tmp_path / "no run", "float32") == 0
    with refused(InputError, "no folder"):
        generated_weight_bytes("no folder", None, "float32")


def test_a_model_of_the_hub_counts_as_its_copy_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes and its number format; the hub's client is replaced by a folder that it has loaded."""
    tokenizer = CharTokenizer()
    model = tiny_qwen2(tokenizer, 0, hidden=32, layers=1, intermediate=64)
    save_model(model.bfloat16(), tokenizer, tmp_path / "copy")
    for module in (weight_bytes, run_start):
        monkeypatch.setattr(module, "local_folder", {"owner/tiny": tmp_path / "copy"}.get)
    held = DecoderModel(model, 64, torch.bfloat16).weight_bytes
    assert generated_weight_bytes("owner/tiny", None, "bfloat16") == held
    with Trainer(config(gpus=1), model="owner/tiny", progress=False) as trainer:
        assert trainer.evaluator.precision == "bfloat16"
