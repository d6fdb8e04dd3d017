"""What tests of the loop share: an untrained model on the disk, and a reward that it can learn from."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_samples import variety

from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.engine.torch.pretrained import load_model
from rlhfless.training.models.tiny_model import save_model, tiny_qwen2
from rlhfless.training.tasks.arithmetic import ArithmeticTask


@pytest.fixture(scope="session")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model: what it writes is noise, but it is generated, rewarded and learned from all the same."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = CharTokenizer()
    save_model(tiny_qwen2(tokenizer, seed=1, hidden=32, layers=1, intermediate=64), tokenizer, folder)
    return folder


@pytest.fixture
def model(untrained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The untrained model, in a test in which every response earns a reward of its own: weights and texts change."""
    monkeypatch.setattr(ArithmeticTask, "reward", variety)
    return untrained


@pytest.fixture
def dropping_model(model: Path, tmp_path: Path) -> Path:
    """The same model with dropout, which draws while it learns."""
    weights, tokenizer = load_model(model)
    weights.config.attention_dropout = 0.3
    save_model(weights, tokenizer, tmp_path / "dropping")
    return tmp_path / "dropping"
