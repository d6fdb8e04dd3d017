"""Training with actors that decode with real vLLM."""

from __future__ import annotations

import importlib.util
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch

from rlhfless.training.config import TrainConfig
from rlhfless.training.loop import TrainedStep, Trainer
from rlhfless.training.model import save_model, tiny_qwen2
from rlhfless.training.tokenizer import CharTokenizer

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed; `make test` installs its CPU build"
    ),
]


def test_every_step_is_decoded_with_its_own_weights(tmp_path: Path) -> None:
    """Log-probabilities from vLLM are those of the model as it was then; noise earns no reward, so the test changes the weights
    after every step itself. At the end neither processes nor weights are left."""
    save_model(tiny_qwen2(CharTokenizer()), CharTokenizer(), tmp_path / "model")
    options = TrainConfig(
        steps=3, pool=8, prompts_per_step=4, samples=3, response_limit=32, gpus=2, gpus_per_node=2, executor="local",
        engine="vllm", policy="static",
    )  # fmt: skip
    starts: list[int] = []

    def after(done: TrainedStep) -> None:
        starts.append(sum(s["phase"] == "start" for s in done.record.spans))
        model, tokenizer = trainer.model, trainer.tokenizer
        with torch.no_grad():
            for i, one in done.record.completions.items():
                prompt = tokenizer.encode(done.rollouts["prompt"][i])
                logits = model(torch.tensor([[*prompt, *one.token_ids]])).logits[0, len(prompt) - 1 : -1]
                expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(one.token_ids)[:, None])[:, 0]
                np.testing.assert_allclose(one.logprobs, expected, atol=1e-3)
            torch.manual_seed(done.step)
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)

    with Trainer(options, tmp_path / "run", model=tmp_path / "model", progress=False) as trainer:
        for done in trainer:
            after(done)
        trace = trainer.kept.trace
        weights = Path(trainer.engines._folder.name)
        assert [p.name for p in weights.iterdir()] == ["weights-2"]
    assert trace is not None
    assert (trace.meta["engine"], trace.meta["clock"]) == ("vllm", "wall")
    assert starts[0] > 0
    assert sum(starts[1:]) == 0, "vLLM starts once"
    assert not weights.exists()
    assert not multiprocessing.active_children()
