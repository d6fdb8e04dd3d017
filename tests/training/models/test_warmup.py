"""The tiny model and its warm-up: deterministic, saved and loaded exactly, and it learns."""

import subprocess
import sys

import numpy as np
import pytest
from error_messages import refused

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer  # noqa: E402
from rlhfless.engine.torch.model import one_thread  # noqa: E402
from rlhfless.engine.torch.pretrained import load_model  # noqa: E402
from rlhfless.errors import InputError  # noqa: E402
from rlhfless.training.models.tiny_model import save_model, tiny_qwen2  # noqa: E402
from rlhfless.training.models.warmup import WarmUp, warm_up  # noqa: E402
from rlhfless.training.tasks.arithmetic import ArithmeticTask  # noqa: E402

TOKENIZER = CharTokenizer()


def short_warm_up(seed=0):
    losses = []
    task = ArithmeticTask(seed, 1)
    model = tiny_qwen2(TOKENIZER, seed, hidden=64)
    config = WarmUp(steps=40, batch_tokens=512, pool=64)
    with one_thread(model.device):
        warm_up(
            model, TOKENIZER, task.worked_solutions(seed), config, seed=seed, progress=False,
            on_step=lambda step, loss: losses.append(loss),
        )  # fmt: skip
    return model, losses


@pytest.mark.full
def test_short_warm_up_lowers_the_loss_and_is_a_function_of_the_seed():
    before = torch.random.get_rng_state()
    model, losses = short_warm_up()
    assert np.mean(losses[-5:]) < 0.7 * losses[0]
    again, _ = short_warm_up()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters(), strict=True))
    assert torch.equal(before, torch.random.get_rng_state())
    assert not model.training


def test_model_is_a_function_of_the_seed_and_about_as_large_as_said():
    one, same, other = (tiny_qwen2(TOKENIZER, seed) for seed in (1, 1, 2))
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), same.parameters(), strict=True))
    assert any(not torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))
    assert 4e5 <= sum(p.numel() for p in one.parameters()) <= 1.2e6
    assert {p.dtype for p in one.parameters()} == {torch.float32}


def test_saved_model_gives_the_same_logits(tmp_path):
    model = tiny_qwen2(TOKENIZER, 0)
    save_model(model, TOKENIZER, tmp_path / "model")
    loaded, tokenizer = load_model(tmp_path / "model")
    ids = torch.tensor([TOKENIZER.encode("47+8-3?")])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, loaded(ids).logits)
    assert tokenizer == TOKENIZER
    (tmp_path / "model" / "model.safetensors").unlink()
    with refused(InputError, "model.safetensors"):
        load_model(tmp_path / "model")


def test_package_is_light_and_says_what_is_missing():
    code = """
import sys
import rlhfless.training
assert "torch" not in sys.modules
from rlhfless.training import ArithmeticTask, CharTokenizer
assert "torch" not in sys.modules
sys.modules["torch"] = None
try:
    rlhfless.training.PolicyGradient
except ImportError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.count("\n") == 1
    assert "torch" in out
    assert "pip install 'rlhfless[torch]'" in out
