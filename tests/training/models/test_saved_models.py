"""What training writes is what transformers loads: number format, weights, tied ones, configurations and tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from byte_tokenizer import TEMPLATE, byte_tokenizer  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from tiny_architectures import tiny  # noqa: E402
from training_samples import config, same_weights, variety  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from rlhfless.engine.tokenizers.pretrained_tokenizer import PretrainedTokenizer  # noqa: E402
from rlhfless.engine.torch.pretrained import checkpoint_dtype, load_model  # noqa: E402
from rlhfless.training.loop import Trainer, train  # noqa: E402
from rlhfless.training.models.tiny_model import save_model  # noqa: E402
from rlhfless.training.tasks.arithmetic import ArithmeticTask  # noqa: E402

MODELS = {
    "tied bfloat16": (torch.bfloat16, {"tie_word_embeddings": True}),
    "untied float32": (torch.float32, {"tie_word_embeddings": False}),
    "tied float16": (torch.float16, {"tie_word_embeddings": True}),
}
TEXT = "The price is 5 €.\n"


def written(folder: Path, dtype: Any = torch.bfloat16, kind: str = "llama", **more: Any) -> Path:
    """A model that transformers itself saved, with a generation config and a tokenizer of bytes with a chat template."""
    tokenizer = byte_tokenizer()
    model = tiny(kind, vocab_size=tokenizer.vocab_size, eos_token_id=1, **more).to(dtype)
    model.generation_config.update(eos_token_id=[1, 2], do_sample=True, temperature=0.7, top_k=20)
    model.save_pretrained(folder)
    tokenizer.wrapped.save_pretrained(folder)
    return folder


def content(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file of a model's folder."""
    loaded: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return loaded


def assert_same_model(ours: Path, theirs: Path) -> None:
    """Both folders give transformers the same model and tokenizer, weights bit for bit."""
    mine, other = (AutoModelForCausalLM.from_pretrained(folder) for folder in (ours, theirs))
    weights, expected = mine.state_dict(), other.state_dict()
    assert {name: value.dtype for name, value in weights.items()} == {name: value.dtype for name, value in expected.items()}
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    shares = [model.get_input_embeddings().weight is model.get_output_embeddings().weight for model in (mine, other)]
    assert shares[0] == shares[1]
    assert load_file(ours / "model.safetensors").keys() == load_file(theirs / "model.safetensors").keys()
    for name in ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"):
        assert content(ours, name) == content(theirs, name) | added(name), name
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in (ours, theirs)]
    messages = [{"role": "user", "content": TEXT}]
    chats = [tokenizer.apply_chat_template(messages, add_generation_prompt=True) for tokenizer in tokenizers]
    assert chats[0] == chats[1]
    assert tokenizers[0].chat_template == tokenizers[1].chat_template == TEMPLATE
    assert tokenizers[0](TEXT).input_ids == tokenizers[1](TEXT).input_ids
    assert tokenizers[0].special_tokens_map == tokenizers[1].special_tokens_map


def added(name: str) -> dict[str, Any]:
    """What transformers itself adds when it saves what it loaded from a folder."""
    return {"is_local": True} if name == "tokenizer_config.json" else {}


@pytest.mark.parametrize("made", MODELS)
def test_a_loaded_model_is_saved_as_it_was(tmp_path: Path, made: str) -> None:
    dtype, more = MODELS[made]
    first = written(tmp_path / "first", dtype, **more)
    model, tokenizer = load_model(first)
    assert model.dtype == torch.float32, "weights that are trained"
    save_model(model, tokenizer, tmp_path / "saved", checkpoint_dtype(first))
    assert_same_model(tmp_path / "saved", first)
    assert model.dtype == torch.float32, "saving changes nothing of the model"
    assert (tmp_path / "saved" / "model.safetensors").stat().st_size == (first / "model.safetensors").stat().st_size


@pytest.mark.parametrize("kind", ["gemma2", "mixtral", "qwen3", "gpt2"])
def test_other_architectures_are_saved_as_they_were(tmp_path: Path, kind: str) -> None:
    """With an attention of their own, experts, and a tied head."""
    first = written(tmp_path / "first", kind=kind, tie_word_embeddings=kind != "mixtral")
    save_model(*load_model(first), tmp_path / "saved", checkpoint_dtype(first))
    mine, other = (AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in ("saved", "first"))
    assert all(mine[name].dtype == other[name].dtype and torch.equal(mine[name], other[name]) for name in other)
    assert content(tmp_path / "saved", "config.json") == content(first, "config.json")


def test_the_format_of_a_folder_is_that_of_its_config_or_of_its_weights(tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        folder = written(tmp_path / name, dtype)
        assert checkpoint_dtype(folder) == name
        unnamed = {key: value for key, value in content(folder, "config.json").items() if key != "dtype"}
        (folder / "config.json").write_text(json.dumps(unnamed))
        assert checkpoint_dtype(folder) == name
        assert AutoModelForCausalLM.from_pretrained(folder).dtype == dtype, "as transformers reads it"
        (folder / "config.json").write_text(json.dumps({**unnamed, "torch_dtype": "bfloat16"}))
        assert checkpoint_dtype(folder) == "bfloat16", "the name in older files"


@pytest.fixture
def half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tied bfloat16 model; rewards are such that it learns."""
    monkeypatch.setattr(ArithmeticTask, "reward", variety)
    return written(tmp_path / "half", tie_word_embeddings=True)


def run(**changes: Any) -> Any:
    return config(**{"policy": "static", "gpus": 1, "steps": 2, "generation_dtype": "float32", **changes})


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_trained_bfloat16_model_comes_back_as_bfloat16(tmp_path: Path, half: Path, processes: int) -> None:
    """Also of learner processes (FSDP2). What is learned between steps stays float32, in checkpoints and when resumed."""
    options = {"learner_processes": processes} if processes > 1 else {}
    train(run(**options), tmp_path / "whole", model=half)
    train(run(steps=1, **options), tmp_path / "parts", model=half)
    train(run(**options), tmp_path / "parts", resume=True)
    saved, trained = tmp_path / "whole" / "model", tmp_path / "whole" / "checkpoints" / "after-000002"
    assert same_weights(tmp_path / "whole", tmp_path / "parts")
    assert content(saved, "config.json") == content(half, "config.json")
    assert content(tmp_path / "parts" / "model", "config.json")["dtype"] == "bfloat16"
    model = AutoModelForCausalLM.from_pretrained(saved)
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}
    assert (saved / "model.safetensors").stat().st_size == (half / "model.safetensors").stat().st_size
    masters = load_file(trained / "model.safetensors")
    assert {value.dtype for value in masters.values()} == {torch.float32}
    named = dict(model.named_parameters())
    assert all(torch.equal(named[name], value.bfloat16()) for name, value in masters.items())
    assert any(not torch.equal(value.bfloat16().float(), value) for value in masters.values()), "they are more exact"
    first = load_file(half / "model.safetensors")
    assert any(not torch.equal(named[name], value) for name, value in first.items()), "it learned"


def test_a_notebook_saves_the_trained_model_in_the_format_in_which_it_was_loaded(tmp_path: Path, half: Path) -> None:
    with Trainer(run(), model=half, progress=False) as trainer:
        trainer.step()
        trainer.save_model(tmp_path / "saved")
        masters = {name: value.clone() for name, value in trainer.model.named_parameters()}
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert all(torch.equal(value, masters[name].bfloat16()) for name, value in saved.named_parameters())
    given = AutoModelForCausalLM.from_pretrained(half, dtype=torch.float32), byte_tokenizer()
    with Trainer(run(), model=given, progress=False) as trainer:
        trainer.save_model(tmp_path / "given")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "given").dtype == torch.float32, "a given object's own format"


def test_several_chat_templates_are_saved_over_earlier_ones(tmp_path: Path) -> None:
    """transformers writes them into a folder within the model's."""
    folder, tokenizer = written(tmp_path / "first"), byte_tokenizer()
    tokenizer.wrapped.chat_template = {"default": TEMPLATE, "tool_use": "{{ messages }}"}
    tokenizer.wrapped.save_pretrained(folder)
    model, loaded = load_model(folder)
    for _ in range(2):
        save_model(model, loaded, tmp_path / "saved")
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").chat_template == tokenizer.wrapped.chat_template
    assert isinstance(load_model(tmp_path / "saved")[1], PretrainedTokenizer)


def test_weights_in_parts_of_an_earlier_save_do_not_stay(tmp_path: Path) -> None:
    first = written(tmp_path / "first", torch.float32)
    model, tokenizer = load_model(first)
    model.save_pretrained(tmp_path / "saved", max_shard_size="20KB")
    assert len(list((tmp_path / "saved").glob("*.safetensors"))) > 1
    (tmp_path / "saved" / "notes.txt").write_text("mine")
    save_model(model, tokenizer, tmp_path / "saved")
    assert [path.name for path in (tmp_path / "saved").glob("*.safetensors*")] == ["model.safetensors"]
    assert (tmp_path / "saved" / "notes.txt").read_text() == "mine"


def test_a_generation_config_that_transformers_refuses_to_write_is_kept(tmp_path: Path, half: Path) -> None:
    """Such as a temperature of greedy decoding, which published models have."""
    given = {"eos_token_id": 1, "do_sample": False, "temperature": 0.6}
    (half / "generation_config.json").write_text(json.dumps(given))
    with Trainer(run(), tmp_path / "run", model=half, progress=False) as trainer:
        trainer.save_model(tmp_path / "saved")
        assert trainer.model.generation_config.temperature == 0.6
    saved = content(tmp_path / "saved", "generation_config.json")
    assert {name: value for name, value in saved.items() if name != "transformers_version"} == given
