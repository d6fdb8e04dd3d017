"""The bytes of weights are known before a model is loaded: as many as the engine holds afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rlhfless.engine.torch.model import DecoderModel  # noqa: E402
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
    for given in (None, tmp_path, "some/hub-name"):
        assert generated_weight_bytes(given, tmp_path / "no run", "float32") == 0
