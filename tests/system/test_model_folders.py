"""Model folders that bring Python code: it does not run whatever the user would answer, and one sentence says why."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import run_rlhfless
from error_messages import refused, refused_command

torch = pytest.importorskip("torch")
from learning_samples import small_model, word_tokenizer  # noqa: E402
from transformers import AutoModelForSequenceClassification  # noqa: E402

from rlhfless.engine.tokenizers.pretrained_tokenizer import PretrainedTokenizer  # noqa: E402
from rlhfless.engine.torch.pretrained import load_model, load_pretrained  # noqa: E402
from rlhfless.errors import InputError  # noqa: E402
from rlhfless.latency.measure import CausalLM  # noqa: E402
from rlhfless.trace import TraceError  # noqa: E402
from rlhfless.trace.importers.tokens import TokenCounter  # noqa: E402
from rlhfless.training.algorithms.critic import make_critic  # noqa: E402
from rlhfless.training.rewards.model import ModelReward  # noqa: E402

ROOT = Path(__file__).parents[2]
CODE = {
    "AutoConfig": "own_code.OwnConfig",
    "AutoModelForCausalLM": "own_code.OwnModel",
    "AutoModelForSequenceClassification": "own_code.OwnModel",
}
LOADERS: dict[str, Callable[[Any], Any]] = {
    "policy": load_model,
    "classifier": lambda folder: load_pretrained(AutoModelForSequenceClassification, folder),
    "reward model": ModelReward.load,
    "critic": lambda folder: make_critic(small_model(), str(folder)),
    "tokenizer": PretrainedTokenizer.load,
    "model to measure": lambda folder: CausalLM(str(folder)),
}


@pytest.fixture
def answers_yes(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Whoever is asked types y; what was asked."""
    asked: list[object] = []

    def answer(question: object = "") -> str:
        asked.append(question)
        return "y"

    monkeypatch.setattr("builtins.input", answer)
    return asked


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of a kind of its own, with a module that leaves a file when it is imported."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "own_code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nraise SystemExit('it ran')\n")
    (made / "config.json").write_text(json.dumps({"model_type": "own-kind", "auto_map": CODE}))
    names = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own_code.OwnTokenizer", None]}}
    (made / "tokenizer_config.json").write_text(json.dumps(names))
    (made / "model.safetensors").write_bytes(b"")
    return made


@pytest.mark.parametrize("loader", LOADERS)
def test_a_folders_code_is_refused_and_nobody_is_asked(loader: str, folder: Path, answers_yes: list[object]) -> None:
    with refused(InputError, "auto_map") as refusal:
        LOADERS[loader](folder)
    assert str(refusal.value).startswith(f"{folder}: ")
    assert "\n" not in str(refusal.value)
    assert answers_yes == []
    assert not (folder.parent / "ran").exists()


def test_a_model_whose_class_alone_is_code_is_refused(folder: Path, answers_yes: list[object]) -> None:
    of_models = {name: code for name, code in CODE.items() if name != "AutoConfig"}
    (folder / "config.json").write_text(json.dumps({"model_type": "vit", "auto_map": of_models}))  # no language model
    for loader in ("policy", "model to measure"):
        with refused(InputError, "AutoModelForCausalLM"):
            LOADERS[loader](folder)
    assert answers_yes == []
    assert not (folder.parent / "ran").exists()


def test_a_kind_that_transformers_has_is_loaded_without_the_code_beside_it(folder: Path, answers_yes: list[object]) -> None:
    small_model().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": CODE}))
    (folder / "tokenizer_config.json").unlink()
    word_tokenizer().save_pretrained(folder)
    model, tokenizer = load_model(folder)
    assert type(model).__module__.startswith("transformers.")
    assert isinstance(tokenizer, PretrainedTokenizer)
    assert CausalLM(str(folder)).max_context == model.config.max_position_embeddings
    assert answers_yes == []
    assert not (folder.parent / "ran").exists()


def test_the_command_line_says_it_in_one_sentence(folder: Path, tmp_path: Path) -> None:
    result = run_rlhfless("train", "preset=demo", f"model={folder}", "-o", str(tmp_path / "run"))
    refused_command(result, str(folder))
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "ran").exists()


def test_every_call_that_may_load_code_says_that_it_may_not() -> None:
    """Of transformers' ``Auto`` classes; ``from_folder`` says so for those that go through it."""
    folders = (ROOT / "rlhfless", ROOT / "tests" / "benchmarks", ROOT / "docs")
    silent = []
    for path in (file for own in folders for file in own.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in ("from_pretrained", "from_config") and ast.unparse(node.func) != "Tokenizer.from_pretrained":
                given = {keyword.arg or ast.unparse(keyword.value) for keyword in node.keywords}
                if not given & {"trust_remote_code", "NO_CODE"}:
                    silent.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert silent == []  # ``tokenizers.Tokenizer`` reads no code


@pytest.mark.parametrize(
    "name", ["./policy", "../policy", "~/policy", "my/own/policy", "out/policy.safetensors", "out/policy.gguf"]
)
@pytest.mark.parametrize("loader", LOADERS)
def test_a_path_that_does_not_exist_is_not_looked_up_on_the_hub(
    loader: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *given, **_: asked.append(given))
    monkeypatch.chdir(tmp_path)
    with refused(ValueError, Path(name).name):
        LOADERS[loader](name)
    assert asked == []


@pytest.mark.parametrize("name", ["./nowhere", "out/tokenizer.json", "my/own/tokenizer"])
def test_a_tokenizer_that_is_not_there_is_a_path_where_it_looks_like_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(TraceError, f"--tokenizer {name}", "no such file or folder"):
        TokenCounter(name)
