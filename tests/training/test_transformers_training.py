"""Training of models that only the transformers engine decodes, and of sampling options on every engine."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from error_messages import refused

torch = pytest.importorskip("torch")

from tiny_architectures import tiny  # noqa: E402
from training_samples import run_config  # noqa: E402

from rlhfless.engine.common.sampling import Sampling  # noqa: E402
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer  # noqa: E402
from rlhfless.engine.torch.model import one_thread  # noqa: E402
from rlhfless.engine.torch.pretrained import load_model, stop_ids_of  # noqa: E402
from rlhfless.training.config import TrainError  # noqa: E402
from rlhfless.training.engines import make_engines  # noqa: E402
from rlhfless.training.loop import Trainer  # noqa: E402
from rlhfless.training.models.tiny_model import save_model  # noqa: E402

SMALL = {
    "steps": 2, "prompts": 2, "prompts_per_step": 2, "samples_per_prompt": 2, "max_response_tokens": 16, "gpus": 2,
    "policy": "static", "importance_ratio_cap": 2.0, "old_logprobs_from": "recomputed", "learning_rate": 1e-2,
}  # fmt: skip


def distinct(completions: list[str]) -> list[float]:
    """Rewards that differ within every group."""
    return [float(i % 2) for i, _ in enumerate(completions)]


def model_of(kind: str, **more: Any) -> tuple[Any, CharTokenizer]:
    tokenizer = CharTokenizer()
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return tiny(kind, vocab_size=tokenizer.vocab_size, initializer_range=0.1, **ends, **more), tokenizer


LOCAL = pytest.param("local", marks=pytest.mark.full)


@pytest.mark.parametrize("executor", ["virtual", LOCAL])
def test_every_step_samples_from_the_weights_that_are_learned(executor: str) -> None:
    """Log-probabilities of engine and learner differ by rounding, also after an update."""
    model = model_of("gemma2")
    before = copy.deepcopy(model[0].state_dict())
    config = run_config(**SMALL, engine="transformers", executor=executor, generation_dtype="float32")
    with one_thread(torch.device("cpu")), Trainer(config, model=model, progress=False, rewards=distinct) as trainer:
        steps = [trainer.step() for _ in range(2)]
    assert all(step.learning["mismatch_mean"] < 1e-5 for step in steps)
    assert any(not torch.equal(before[name], weight) for name, weight in model[0].state_dict().items())


def test_the_torch_engine_refuses_it_and_names_the_one_that_works() -> None:
    with refused(ValueError, "'gemma2'", "engine 'transformers'"):
        Trainer(run_config(**SMALL), model=model_of("gemma2"), progress=False)


FILTERS = {"temperature": 0.8, "top_p": 0.9, "top_k": 5, "min_p": 0.01, "repetition_penalty": 1.2}


@pytest.mark.parametrize("engine", ["torch", "transformers", "vllm"])
def test_filters_reach_every_engine(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the penalty and the stop tokens; vLLM is looked at before it would be started."""
    given = []

    def made(config: Any, model: Any, stops: Any, limit: int, sampling: Any, *more: Any) -> Any:
        given.append((config.engine, stops, sampling))
        return make_engines(config.model_copy(update={"engine": "transformers"}), model, stops, limit, sampling, *more)

    monkeypatch.setattr("rlhfless.training.loop.make_engines", made)
    monkeypatch.setattr("rlhfless.training.factory.check_engine", lambda engine: None)
    executor = "local" if engine == "vllm" else "virtual"
    config = run_config(**SMALL, **FILTERS, engine=engine, executor=executor)
    with Trainer(config, model=model_of("llama"), progress=False):
        pass
    assert given == [(engine, (CharTokenizer.eos_token_id,), Sampling(**FILTERS))]


def test_log_probabilities_are_of_the_distribution_that_was_sampled_from() -> None:
    """With one token left of each, certain; the learner's are those of all tokens."""
    config = run_config(**SMALL, top_k=1)
    with Trainer(config, model=model_of("llama"), progress=False, rewards=distinct) as trainer:
        step = trainer.step()
    assert step.learning["mismatch_mean"] > 0.5
    with pytest.raises(TrainError, match="top_p"):
        run_config(top_p=0.0)


def test_a_models_own_stop_tokens_end_its_responses_too() -> None:
    model, tokenizer = model_of("llama")
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, 5, 10**6]
    assert stop_ids_of(model, tokenizer) == (tokenizer.eos_token_id, 5)
    model.generation_config.eos_token_id = None
    assert stop_ids_of(model, tokenizer) == (tokenizer.eos_token_id,)


def test_a_loaded_model_caps_its_scores_as_the_engine_does(tmp_path: Any) -> None:
    """The fused attention of transformers would leave the cap out."""
    model, tokenizer = model_of("gemma2")
    save_model(model, tokenizer, tmp_path / "gemma")
    loaded, _ = load_model(tmp_path / "gemma")
    ids = torch.arange(2, 20)[None]
    with torch.no_grad():
        np.testing.assert_allclose(loaded(ids).logits, model(ids).logits, atol=1e-5)
        loaded.set_attn_implementation("sdpa")
        assert (loaded(ids).logits - model(ids).logits).abs().max() > 1e-3
