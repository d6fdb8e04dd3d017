"""Adapters: what is generated with is what is trained, nothing else changes, and runs with them are resumed bit for bit."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from error_messages import refused

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from learning_samples import noise_batch, small_model  # noqa: E402
from training_samples import config, run_config, same_weights  # noqa: E402

from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer  # noqa: E402
from rlhfless.engine.torch.pretrained import load_model  # noqa: E402
from rlhfless.errors import InputError, MissingExtra  # noqa: E402
from rlhfless.training.algorithms.lora import check_lora, is_adapter  # noqa: E402
from rlhfless.training.checkpoint import load_checkpoint, save_checkpoint  # noqa: E402
from rlhfless.training.config import TrainError  # noqa: E402
from rlhfless.training.learner.learner import LocalLearner  # noqa: E402
from rlhfless.training.learner.process_group import make_learner  # noqa: E402
from rlhfless.training.logprobs import token_logprobs  # noqa: E402
from rlhfless.training.loop import Trainer, train  # noqa: E402
from rlhfless.training.models.tiny_model import save_model  # noqa: E402

HAS_PEFT = importlib.util.find_spec("peft") is not None
with_peft = pytest.mark.skipif(not HAS_PEFT, reason="peft is not installed: pip install 'rlhfless[lora]'")
KINDS: dict[str, dict[str, Any]] = {"grpo": {"kl_coef": 0.1}, "ppo": {"critic": "model"}}


def learner(name: str, model: Any, **options: Any) -> LocalLearner:
    return LocalLearner.make(name, model, **{"learning_rate": 1e-2, "lora_rank": 4, **KINDS[name], **options})


@with_peft
@pytest.mark.full
@pytest.mark.parametrize("name", KINDS)
def test_merged_weights_are_the_adapter_model_and_only_adapters_are_trained(name: str, tmp_path: Path) -> None:
    model, before = small_model(), small_model().state_dict()
    one = learner(name, model, lora_targets=["q_proj", "up_proj"])
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    batches = [noise_batch(small_model(), seed=seed) for seed in range(3)]
    for batch in batches[:2]:
        one.learn(batch)
    trained = one.algorithm.trained.policy if name == "ppo" else one.algorithm.trained
    ids = torch.arange(2, 12)[None]
    with torch.no_grad():
        torch.testing.assert_close(token_logprobs(model, ids), token_logprobs(trained, ids), atol=1e-5, rtol=1e-5)
        assert not torch.allclose(token_logprobs(model, ids), token_logprobs(small_model(), ids), atol=1e-3)
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert {key.split(".")[-2] for key in changed} == {"q_proj", "up_proj"}
    assert any(is_adapter(name) for name, _ in trained.named_parameters())
    if name == "grpo":
        assert all(torch.equal(p, q) for p, q in zip(one.algorithm.reference.parameters(), small_model().parameters()))  # type: ignore[attr-defined]  # noqa: B905
    # a checkpoint has what is trained, and goes on bit for bit
    save_checkpoint(tmp_path, 2, one)
    again_model = small_model()
    again = learner(name, again_model, lora_targets=["q_proj", "up_proj"])
    load_checkpoint(tmp_path, 2, again)
    assert all(is_adapter(key) or key.startswith("critic.") for key in again._parameters())
    for each in (one, again):
        each.learn(batches[2])
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again_model.parameters(), strict=True))
    with refused(TrainError, "lora_rank", "4", "8"):
        load_checkpoint(tmp_path, 2, learner(name, small_model(), lora_rank=8, lora_targets=["q_proj", "up_proj"]))


@with_peft
def test_a_run_with_adapters_is_resumed_bit_for_bit(tmp_path: Path, model: Path) -> None:
    run: dict[str, Any] = {"policy": "static", "gpus": 1, "steps": 2, "lora_rank": 2, "kl_coef": 0.1}
    train(config(**run), tmp_path / "whole", model=model)
    train(config(**{**run, "steps": 1}), tmp_path / "parts", model=model)
    assert not same_weights(tmp_path / "whole", tmp_path / "parts")
    train(config(**run), tmp_path / "parts", resume=True)
    assert same_weights(tmp_path / "whole", tmp_path / "parts")


@with_peft
def test_layers_that_are_not_there_are_one_sentence() -> None:
    with refused(InputError, "lora_targets", "'w_q'", "q_proj"):
        learner("grpo", small_model(), lora_targets=["w_q"])


@with_peft
def test_a_rank_above_that_of_every_layer_is_one_sentence() -> None:
    """Layers that are adapted have 32 inputs at most, or 32 outputs."""
    with refused(InputError, "lora_rank is 33", "rank above 32"):
        learner("grpo", small_model(), lora_rank=33)
    learner("grpo", small_model(), lora_rank=32)


@pytest.mark.skipif(HAS_PEFT, reason="peft is installed")
def test_without_peft_one_sentence_says_what_to_install() -> None:
    with refused(MissingExtra, "LoRA", "peft", "rlhfless[lora]"):
        check_lora()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lora_rank": 0}, ("lora_rank is 0", "at least 1")),
        ({"lora_rank": 2.5}, ("lora_rank", "2.5", "whole number")),
        ({"lora_rank": 4, "lora_alpha": 0}, ("lora_alpha", "above 0")),
        ({"lora_rank": 4, "lora_targets": 5}, ("lora_targets", "list of texts")),
        ({"lora_alpha": 8.0}, ("lora_alpha is 8.0", "lora_rank")),
        ({"lora_targets": ["q_proj"]}, ("lora_targets", "lora_rank")),
        ({"lora_rank": 4, "learner_processes": 2}, ("lora_rank is 4", "learner_processes 2")),
        ({"lora_rank": 4, "kl_coef": 0.1, "offload_reference": True}, ("offload_reference", "lora_rank 4")),
    ],
)
def test_wrong_options_of_adapters_are_one_sentence(changes: dict[str, Any], said: tuple[str, ...]) -> None:
    with refused(TrainError, *said):
        run_config(**changes)


def first_weights(seed: int, state: int = 0) -> dict[str, Any]:
    """The first weights of the adapters of a run with a seed, made while torch's global stream is in a state."""
    torch.manual_seed(state)
    options = run_config(lora_rank=4, seed=seed).learner_options()
    trained = make_learner("grpo", small_model(), **options).algorithm.trained  # type: ignore[attr-defined]
    return {key: value.detach().clone() for key, value in trained.named_parameters() if is_adapter(key)}


@with_peft
def test_first_weights_of_adapters_follow_the_seed_of_the_run_and_nothing_else() -> None:
    ours, again, other = first_weights(3), first_weights(3, state=1), first_weights(4)
    assert all(torch.equal(ours[key], again[key]) for key in ours)
    drawn = [key for key in ours if "lora_A" in key]
    assert drawn
    assert all(not torch.equal(ours[key], other[key]) for key in drawn)
    assert all(not value.any() for key, value in ours.items() if "lora_B" in key), "training begins with the model as it is"


@with_peft
def test_making_adapters_draws_nothing_from_the_global_stream() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    learner("grpo", small_model(), seed=1)
    assert torch.equal(torch.rand(3), expected)


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model(torch.arange(2, 14)[None]).logits


@with_peft
@pytest.mark.parametrize(
    "options", [{"kl_coef": 0.1}, {"algorithm": "ppo", "lora_targets": ["q_proj", "down_proj"], "lora_alpha": 3.0}]
)
def test_a_run_writes_its_adapter_as_peft_reads_it(tmp_path: Path, model: Path, options: dict[str, Any]) -> None:
    """On the model that the run began with it gives the logits of the merged one, also after a resume."""
    from peft import PeftConfig, PeftModel
    from transformers import AutoModelForCausalLM

    run: dict[str, Any] = {"policy": "static", "gpus": 1, "steps": 2, "lora_rank": 2, **options}
    train(config(**{**run, "steps": 1}), tmp_path / "run", model=model)
    train(config(**run), tmp_path / "run", resume=True)
    folder = tmp_path / "run" / "adapter"
    assert {"adapter_config.json", "adapter_model.safetensors"} == {path.name for path in folder.iterdir()}
    named = PeftConfig.from_pretrained(folder)
    assert (named.peft_type, named.task_type, named.r) == ("LORA", "CAUSAL_LM", 2)
    assert named.lora_alpha == options.get("lora_alpha", 4.0)
    assert Path(named.base_model_name_or_path) == model.resolve()
    base = AutoModelForCausalLM.from_pretrained(named.base_model_name_or_path)
    before = logits(base)
    adapted = PeftModel.from_pretrained(base, folder).eval()
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").eval()
    torch.testing.assert_close(logits(adapted), logits(merged), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(logits(adapted), before, atol=1e-4), "it learned"


@with_peft
def test_an_adapter_of_a_bfloat16_model_is_as_exact_as_it_was_trained(tmp_path: Path, model: Path) -> None:
    """float32 on the base model, while the merged weights are rounded to the format of the base model."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    save_model(*load_model(model), tmp_path / "half", "bfloat16")
    options: dict[str, Any] = {"policy": "static", "gpus": 1, "steps": 1, "lora_rank": 2, "generation_dtype": "float32"}
    with Trainer(config(**options), model=tmp_path / "half", progress=False) as trainer:
        trainer.step()
        trainer.save_model(tmp_path / "merged")
        trainer.save_adapter(tmp_path / "adapter")
        trained = logits(trainer.model)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype=torch.float32)
    adapted = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    torch.testing.assert_close(logits(adapted), trained, atol=1e-5, rtol=1e-5)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert merged.dtype == torch.bfloat16
    torch.testing.assert_close(logits(merged).float(), trained, atol=5e-2, rtol=5e-2)


@with_peft
def test_the_adapter_of_a_model_made_for_the_run_names_the_weights_that_the_run_began_with(tmp_path: Path, model: Path) -> None:
    """An object has no name of its own; the run's folder keeps its first weights."""
    from peft import PeftConfig

    own = small_model()
    train_on = {"policy": "static", "gpus": 1, "steps": 1, "lora_rank": 2}
    with Trainer(config(**train_on), tmp_path / "run", model=(own, CharTokenizer()), progress=False) as trainer:
        trainer.step()
        trainer.save_adapter(tmp_path / "adapter")
    for written in (tmp_path / "adapter", tmp_path / "run" / "adapter"):  # the latter by the last step
        named = PeftConfig.from_pretrained(written).base_model_name_or_path
        assert Path(named) == (tmp_path / "run" / "warm").resolve()


def test_a_run_that_trains_all_weights_has_no_adapter_to_write(tmp_path: Path, model: Path) -> None:
    with (
        Trainer(config(policy="static", gpus=1), model=model, progress=False) as trainer,
        refused(TrainError, "lora_rank", "save_model"),
    ):
        trainer.save_adapter(tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()
