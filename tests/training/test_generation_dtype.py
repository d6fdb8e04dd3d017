"""The number format of generation: what a run chooses, and what bfloat16 changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from training_samples import run_config  # noqa: E402

from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer  # noqa: E402
from rlhfless.engine.torch.model import DecoderModel  # noqa: E402
from rlhfless.engine.torch.pretrained import checkpoint_dtype  # noqa: E402
from rlhfless.training import engines  # noqa: E402
from rlhfless.training.config import TrainError  # noqa: E402
from rlhfless.training.engines import precision_of  # noqa: E402
from rlhfless.training.loop import Trainer  # noqa: E402
from rlhfless.training.models.tiny_model import save_model, tiny_qwen2  # noqa: E402

SMALL = {
    "steps": 1, "prompts": 2, "prompts_per_step": 2, "samples_per_prompt": 2, "max_response_tokens": 24, "gpus": 2,
    "policy": "static", "kl_coef": 0.1, "importance_ratio_cap": 2.0, "old_logprobs_from": "recomputed",
}  # fmt: skip


def test_auto_is_the_checkpoints_format_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    virtual, pool = run_config(), run_config(executor="local", policy="static")
    for gpus, device in (([], "cpu"), (["cuda:0"], "cuda")):
        monkeypatch.setattr(engines, "cuda_devices", lambda found=gpus: found)
        for config in (virtual, pool):
            assert precision_of(config, device, "float32") == "float32"
            assert precision_of(config, device, "bfloat16") == "bfloat16"
            assert precision_of(config, device, "float16") == ("bfloat16" if gpus else "float32")
        assert precision_of(run_config(generation_dtype="float32"), device, "bfloat16") == "float32"


def test_auto_is_the_checkpoints_format_on_the_cpu_also_in_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's own folder has float32 weights; what it began with is in its metadata."""
    monkeypatch.setattr(engines, "cuda_devices", lambda: [])
    tokenizer = CharTokenizer()
    save_model(tiny_qwen2(tokenizer, hidden=32, layers=1, intermediate=64).bfloat16(), tokenizer, tmp_path / "half")
    assert checkpoint_dtype(tmp_path / "half") == "bfloat16"
    options = {**SMALL, "steps": 2, "gpus": 1}
    formats = []
    for steps in (1, 2):
        given = run_config(**{**options, "steps": steps})
        start = {"model": tmp_path / "half"} if steps == 1 else {"resume": True}
        with Trainer(given, tmp_path / "run", **start, progress=False) as trainer:
            formats.append(trainer.evaluator.precision)
            assert next(trainer.model.parameters()).dtype == torch.float32, "weights that are trained"
            trainer.step()
    assert formats == ["bfloat16", "bfloat16"]
    assert precision_of(run_config(generation_dtype="float32"), "cpu", "bfloat16") == "float32"


def test_an_unknown_format_is_one_sentence() -> None:
    with pytest.raises(TrainError, match=r"generation_dtype.*float16.*bfloat16"):
        run_config(generation_dtype="float16")


def test_weights_and_cache_take_half_the_bytes() -> None:
    model = tiny_qwen2(CharTokenizer())
    whole, half = DecoderModel(model, 64), DecoderModel(model, 64, torch.bfloat16)
    assert half.weight_bytes * 2 == whole.weight_bytes
    assert half.kv_bytes_per_token * 2 == whole.kv_bytes_per_token
    assert not half.bit_stable
    half.load(model)
    assert half.dtype == torch.bfloat16


@pytest.mark.parametrize("executor", ["virtual", pytest.param("local", marks=pytest.mark.full)])
def test_each_step_records_how_far_engine_and_learner_are_apart(executor: str) -> None:
    """In float32 by rounding only; in bfloat16 by more than a hundred times that, which can be corrected."""
    apart = {}
    for precision in ("float32", "bfloat16"):
        options = {**SMALL, "executor": executor, "generation_dtype": precision}
        model = tiny_qwen2(CharTokenizer()), CharTokenizer()
        with Trainer(run_config(**options), model=model, progress=False) as trainer:
            step = trainer.step()
        apart[precision] = step.learning["mismatch_mean"]
        assert np.isfinite(step.learning["loss"])
        assert 0.5 < step.learning["importance_mean"] < 2
    assert apart["float32"] < 1e-5
    assert 100 * apart["float32"] < apart["bfloat16"] < 0.1
