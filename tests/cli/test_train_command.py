"""``rlhfless train``: a help that is read at a glance, and one line with exit code 2 for whatever does not fit."""

from __future__ import annotations

import json
import re
import shutil
import sys
import warnings
from pathlib import Path
from types import NoneType

import click
import pytest
from click.testing import CliRunner, Result

pytest.importorskip("torch")

from byte_tokenizer import byte_tokenizer
from error_messages import refusal_line, refused_command
from transformers import GPT2Config, GPT2LMHeadModel

from rlhfless.cli import main
from rlhfless.cli.group import warnings_in_one_line
from rlhfless.cli.train import HEADINGS, train
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.trace import read_trace
from rlhfless.training.config import ClusterConfig, PpoConfig, TaskConfig, TrainConfig
from rlhfless.training.models.tiny_model import save_model, tiny_qwen2
from rlhfless.training.rewards import RewardWarning

SMALL = (
    "--steps",
    1,
    "--prompts",
    4,
    "--prompts-per-step",
    4,
    "--samples-per-prompt",
    2,
    "--max-response-tokens",
    8,
    "--gpus",
    2,
)


def rlhfless(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of characters and of bytes, the latter with and without a tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    size = {"hidden": 32, "layers": 1, "intermediate": 64}
    save_model(tiny_qwen2(CharTokenizer(), 0, **size), CharTokenizer(), folder / "characters")
    for chat in (True, False):
        tokenizer = byte_tokenizer(chat=chat)
        model = tiny_qwen2(tokenizer, 0, **size)
        save_model(model, tokenizer, folder / ("chat" if chat else "plain"))
    model.save_pretrained(folder / "mute")
    gpt2 = GPT2Config(vocab_size=CharTokenizer().vocab_size, n_embd=32, n_layer=1, n_head=2, n_positions=512)
    save_model(GPT2LMHeadModel(gpt2), CharTokenizer(), folder / "gpt2")
    damaged(folder / "characters", folder / "cut off")
    unknown = shutil.copytree(folder / "characters", folder / "unknown") / "config.json"
    unknown.write_text(unknown.read_text().replace('"model_type": "qwen2"', '"model_type": "zzz"'))
    return folder


def damaged(model: Path, copy: Path) -> Path:
    """A copy of a model whose weights end too early."""
    weights = shutil.copytree(model, copy) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    return copy


def test_help_stands_under_headings_with_one_line_for_each_option() -> None:
    text = rlhfless("train", "--help").stdout
    lines = text.splitlines()
    assert max(map(len, lines)) <= 110
    assert [line for line in lines if re.fullmatch(r"\w+:", line)] == [f"{heading}:" for heading in (*HEADINGS, "Other")]
    shown = [line for line in lines if re.match(r"  +-", line)]
    assert len(shown) == len(train.params) + 1, "one line per option, and one for --help"
    for line in shown:
        assert re.match(r"  (-\w, )?--[\w-]+( \S+)*?  +\S", line), f"{line} says nothing of the option"
    listed = [name for names in HEADINGS.values() for name in names]
    assert sorted(listed) == sorted(str(parameter.name) for parameter in train.params), "an option stands under no heading"


def test_options_are_those_of_the_configuration_with_its_defaults() -> None:
    config = {**TrainConfig.from_options(algorithm="ppo").to_options(), **TrainConfig().to_options()}
    own = {"out", "resume", "resume_from", "model", "loggers", "gpus_per_actor"}
    assert {str(parameter.name) for parameter in train.params} == {*config, *own}
    for parameter in train.params:
        if parameter.name not in own and not isinstance(value := config[str(parameter.name)], (bool, NoneType)):
            assert isinstance(parameter, click.Option)
            shown = ", ".join(value) if isinstance(value, list) else value
            assert str(parameter.help).endswith(f"  [default: {shown}]"), parameter.name


def test_what_is_typed_reaches_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[TrainConfig] = []
    monkeypatch.setattr("rlhfless.training.loop.train", lambda config, *_, **__: given.append(config))
    options = "--algorithm ppo --no-whiten --mask-truncated --reward exact --reward 0.5*task --value-clip 0.5 --gpus 8"
    assert rlhfless("train", *options.split(), "-o", "x").exit_code == 0
    assert rlhfless("train", "-o", "x").exit_code == 0
    algorithm = PpoConfig(whiten=False, mask_truncated=True, value_clip=0.5)
    task, cluster = TaskConfig(rewards=("exact", "0.5*task")), ClusterConfig(gpus=8)
    assert given == [TrainConfig(task=task, algorithm=algorithm, cluster=cluster), TrainConfig()]


def test_a_run_is_written_and_resumed(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = rlhfless(
        "train", *SMALL, "--model", models / "characters", "--log", "jsonl", "--preparation", "overlap", "-o", out
    )
    assert result.exit_code == 0, result.stderr
    assert read_trace(out).steps == [0]
    result = rlhfless("train", *SMALL, "--steps", 2, "--log", "jsonl", "--preparation", "overlap", "--resume", "-o", out)
    assert result.exit_code == 0, result.stderr
    assert read_trace(out).steps == [0, 1]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1]
    other = rlhfless("train", *SMALL, "--samples-per-prompt", 3, "--seed", 5, "--preparation", "overlap", "--resume", "-o", out)
    refused_command(other, "samples_per_prompt", "2", "3", "seed", "0", "5")


ROW = {"prompt": "a", "answer": "b"}
CONVERSATION = {"prompt": [{"role": "user", "content": "a"}], "answer": "b"}
WRONG_TASKS = {
    "no tokenizer": ("mute", [ROW], (), ["mute"]),
    "no prompt": ("chat", [{"question": "a", "answer": "b"}], (), ["data.jsonl", "row 0", "'prompt'", "question, answer"]),
    "no answer": ("chat", [ROW], ("--answer-column", "gold"), ["data.jsonl", "row 0", "'gold'", "prompt, answer"]),
    "no chat template": ("plain", [CONVERSATION] * 4, (), ["data.jsonl", "row "]),
    "few rows": ("chat", [ROW] * 3, (), ["data.jsonl", "3", "4"]),
    "no rows": ("chat", [], (), ["data.jsonl"]),
    "no model": (None, [ROW], (), ["data.jsonl", "--model"]),
    "no file": ("chat", None, (), ["data.jsonl"]),
    "no symbol": ("characters", [{"prompt": "Who?", "answer": "b"}] * 4, (), ["'W'", "'0123456789"]),
    "no engine": ("gpt2", [{"prompt": f"{i}?", "answer": "2"} for i in range(4)], (), ["'gpt2'"]),
}


@pytest.mark.parametrize("name", WRONG_TASKS)
def test_what_does_not_fit_is_said_in_one_line_before_anything_is_written(models: Path, tmp_path: Path, name: str) -> None:
    model, rows, options, named = WRONG_TASKS[name]
    data, out = tmp_path / "data.jsonl", tmp_path / "run"
    if rows is not None:
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = () if model is None else ("--model", models / model)
    refused_command(rlhfless("train", "--task", data, *SMALL, *given, *options, "-o", out), *named)
    assert not out.exists()


def test_the_data_of_a_run_has_the_limits_of_the_environment(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text((json.dumps(ROW) + "\n") * 4)
    for text, named in (("max_rows=3", ("data.jsonl", "3 rows", "RLHFLESS_LIMITS=max_rows")), ("rows=3", ("'rows=3'",))):
        monkeypatch.setenv("RLHFLESS_LIMITS", text)
        told = rlhfless("train", "--task", data, *SMALL, "--model", models / "chat", "-o", tmp_path / "run")
        refused_command(told, "RLHFLESS_LIMITS", *named)
    assert not (tmp_path / "run").exists()


def test_options_are_checked_before_the_tiny_model_is_warmed_up(tmp_path: Path) -> None:
    result = rlhfless("train", *SMALL, "--reward", "nonsense", "-o", tmp_path / "run")
    refused_command(result, "'nonsense'")
    assert "warm-up" not in result.stderr


@pytest.mark.parametrize("model", ["cut off", "unknown"])
def test_a_model_that_cannot_be_loaded_is_named_before_anything_is_written(models: Path, tmp_path: Path, model: str) -> None:
    line = refusal_line(rlhfless("train", *SMALL, "--model", models / model, "-o", tmp_path / "run"))
    assert line.startswith(f"rlhfless: {models / model}: ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("warm/model.safetensors", "warm"),
        ("checkpoints/after-000001/model.safetensors", "checkpoints/after-000001/model.safetensors"),
        ("checkpoints/after-000001/optimizer.safetensors", "checkpoints/after-000001/optimizer.safetensors"),
        ("checkpoints/after-000001/state.json", "checkpoints/after-000001/state.json"),
    ],
)
def test_a_damaged_file_of_a_run_is_named_when_it_is_resumed(models: Path, tmp_path: Path, file: str, place: str) -> None:
    out = tmp_path / "run"
    assert rlhfless("train", *SMALL, "--model", models / "characters", "-o", out).exit_code == 0
    damaged_file = out / file
    damaged_file.write_bytes(damaged_file.read_bytes()[:-1])
    line = refusal_line(rlhfless("train", *SMALL, "--steps", 2, "--resume", "-o", out))
    assert line.startswith(f"rlhfless: {out / place}: ")
    assert read_trace(out).steps == [0]


def test_a_library_that_is_not_there_is_named_before_anything_is_written(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    out = tmp_path / "run"
    result = rlhfless("train", *SMALL, "--model", models / "characters", "--log", "wandb", "-o", out)
    refused_command(result, "pip install wandb")
    assert not out.exists()


def test_a_model_of_weights_that_are_no_numbers_ends_with_one_line(tmp_path: Path) -> None:
    model = tiny_qwen2(CharTokenizer(), 0, hidden=32, layers=1, intermediate=64)
    model.get_input_embeddings().weight.data.fill_(float("nan"))
    save_model(model, CharTokenizer(), tmp_path / "nan")
    result = rlhfless("train", *SMALL, "--model", tmp_path / "nan", "-o", tmp_path / "run")
    assert re.search(
        r"logits .*response \d+ ", refusal_line(result, began=True)
    )  # the response depends on the order of decoding


# --- data sets and rewards of one's own -------------------------------------------------------------------------------

REWARDS = """
def batch(completions, prompts, **columns):
    return [-len(text) - len(prompt) for text, prompt in zip(completions, prompts)]

def one(response):
    return -len(response.text) - len(response.given_prompt)

def wrong(response):
    return response.completion

def wrong_batch(completions, **columns):
    return [text == right for text, right in zip(completions, columns["gold"])]
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with a data set without answers, and a file of reward functions."""
    rows = [{"prompt": f"{i} and {i}?"} for i in range(4)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.py").write_text(REWARDS)
    return tmp_path


def trained(own: Path, models: Path, *options: object, out: str = "run", data: str = "data.jsonl") -> Result:
    given = ("--task", own / data, *SMALL, "--model", models / "chat", *options, "-o", own / out)
    return rlhfless("train", *given)


def test_a_reward_of_a_file_takes_a_batch_or_one_response_and_needs_no_answers(models: Path, own: Path) -> None:
    found = {}
    for name in ("batch", "one"):
        result = trained(own, models, "--reward", f"{own / 'mine.py'}:{name}", out=name)
        assert result.exit_code == 0, result.stderr
        found[name] = read_trace(own / name).rollouts
        given = found[name]["prompt"].str.extract("<user>(.*)</>")[0]
        assert found[name]["reward"].tolist() == (-found[name]["response"].str.len() - given.str.len()).tolist()
    assert found["batch"]["response"].tolist() == found["one"]["response"].tolist()
    refused_command(trained(own, models, "--reward", "contains", out="x"), "data.jsonl", "row 0", "'answer'")
    refused_command(trained(own, models, "--reward", f"{own / 'mine.py'}:one", "--answer-column", "gold", out="x"), "'gold'")
    assert not (own / "x").exists()


@pytest.mark.parametrize(("name", "cause"), [("wrong", "AttributeError"), ("wrong_batch", "KeyError: 'gold'")])
def test_a_reward_that_fails_on_every_response_ends_the_run_which_goes_on_with_a_right_one(
    models: Path, own: Path, name: str, cause: str
) -> None:
    options = ("--reward", f"{own / 'mine.py'}:{name}")
    refused_command(trained(own, models, *options), repr(name), cause, "8 ", str(own / "run"), "--resume", began=True)
    right = f"def {name}(completions, **columns):\n    return [float(len(text)) for text in completions]\n"
    (own / "mine.py").write_text(right)
    assert trained(own, models, *options, "--resume").exit_code == 0
    assert read_trace(own / "run").steps == [0]


def test_data_sets_of_every_format_train_alike(models: Path, own: Path) -> None:
    rows = [json.loads(line) for line in (own / "data.jsonl").read_text().splitlines()]
    (own / "data.json").write_text(json.dumps(rows))
    (own / "data.csv").write_text("prompt\n" + "".join(f"{row['prompt']}\n" for row in rows))
    found = []
    for data in ("data.jsonl", "data.json", "data.csv"):
        result = trained(own, models, "--reward", "length:8,4", data=data, out=f"of {data}")
        assert result.exit_code == 0, result.stderr
        found.append(read_trace(own / f"of {data}").rollouts)
    assert found[0]["prompt"].nunique() == 4
    for other in found[1:]:
        assert other["prompt"].tolist() == found[0]["prompt"].tolist()


def test_a_model_that_is_not_there_is_not_looked_up_on_the_hub(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *given, **_: asked.append(given))
    monkeypatch.chdir(own)
    refused_command(rlhfless("train", *SMALL, "--model", "./models/policy", "-o", own / "run"), "models/policy")
    assert asked == []


def test_a_warning_is_one_line_without_a_place_in_the_code() -> None:
    with warnings_in_one_line():
        line = warnings.formatwarning("a\nb", RewardWarning, "loop.py", 7)
        assert line == "rlhfless: warning: a b\n"
        assert "other.py:7" in warnings.formatwarning("of others", UserWarning, "other.py", 7)
    assert "loop.py:7" in warnings.formatwarning("a", RewardWarning, "loop.py", 7)
