"""``rlhfless train``: a help that is read at a glance, and one line with exit code 2 for whatever does not fit."""

from __future__ import annotations

import json
import re
import shutil
import sys
import warnings
from pathlib import Path

import pytest
from command_line import Result, run_rlhfless

pytest.importorskip("torch")

from byte_tokenizer import byte_tokenizer
from error_messages import refusal_line, refused_command
from transformers import GPT2Config, GPT2LMHeadModel

from rlhfless.cli.command_line import warnings_in_one_line
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.trace import read_trace
from rlhfless.training import PpoConfig
from rlhfless.training.config import ClusterConfig, OptimizerConfig, TaskConfig, TrainConfig, read_config
from rlhfless.training.models.tiny_model import save_model, tiny_qwen2
from rlhfless.training.rewards import RewardWarning

SMALL = (
    "preset=demo",
    "steps=1", "task.prompts=4", "rollout.prompts_per_step=4", "rollout.samples_per_prompt=2", "rollout.max_response_tokens=8",
    "cluster.gpus=2",
)  # fmt: skip


def rlhfless(*arguments: object) -> Result:
    return run_rlhfless(*arguments)


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


def test_help_shows_every_option_and_how_keys_are_typed() -> None:
    text = rlhfless("train", "--help").stdout
    for word in ("CONFIG.yaml", "SECTION.KEY=VALUE", "--out", "--resume", "--log", "--dry-run", "rollout.samples_per_prompt=4"):
        assert word in text


def test_what_is_typed_reaches_the_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[TrainConfig] = []
    monkeypatch.setattr("rlhfless.training.loop.train", lambda config, *_, **__: given.append(config))
    file = tmp_path / "run.yaml"
    file.write_text("algorithm: {name: ppo, whiten: false}\ncluster: {gpus: 16, gpus_per_node: 4}\n")
    changes = ["algorithm.value_clip=0.5", "task.rewards=[exact, 0.5*task]", "cluster.gpus=8", "optimizer.learning_rate=1e-6"]
    assert rlhfless("train", file, *changes, "-o", "x").exit_code == 0
    assert rlhfless("train", "-o", "x", "model=a folder").exit_code == 0
    assert given == [
        TrainConfig(
            task=TaskConfig(rewards=("exact", "0.5*task")), algorithm=PpoConfig(whiten=False, value_clip=0.5),
            optimizer=OptimizerConfig(learning_rate=1e-6), cluster=ClusterConfig(gpus=8, gpus_per_node=4),
        ),
        TrainConfig(model="a folder"),
    ]  # fmt: skip


def test_a_dry_run_prints_a_file_that_trains_alike(tmp_path: Path) -> None:
    changes = (
        "algorithm.name=ppo",
        "optimizer.max_grad_norm=.inf",
        "task.rewards=['length:8,4', \"format:a: 'b'\"]",
        "model=a #b",
    )
    printed = rlhfless("train", *changes, "--dry-run")
    assert printed.exit_code == 0
    (tmp_path / "run.yaml").write_text(printed.stdout)
    assert read_config(tmp_path / "run.yaml") == read_config(None, changes)
    keys = [line for line in printed.stdout.splitlines() if ":" in line and not line.lstrip().startswith("#")]
    assert len(keys) > 90
    assert all(len(line) > 4 for line in printed.stdout.splitlines() if line.lstrip().startswith("#")), "a key is not explained"


WRONG_FILES = [
    ("steps: [", ["line 1"]),
    ("- 1\n- 2", ["[1, 2]"]),
    ("hello", ["'hello'"]),
    ("steps: 1\nsteps: 2", ["steps", "twice", "line 2"]),
    ("steps: two", ["steps", "'two'"]),
    ("gpu: 2", ["gpu", "cluster.gpus"]),
    ("num_generations: 4", ["num_generations", "samples_per_prompt"]),
    ("preset: toy", ["preset", "'toy'", "demo"]),
    ("cluster: {1: 2}", ["cluster", "the key 1"]),
    ("rollout: {temperature: 0}", ["rollout.temperature", "0"]),
    ("cluster: {pipeline: 4}", ["pipeline", "4"]),
    ("\x00", []),
]


@pytest.mark.parametrize(("text", "named"), WRONG_FILES, ids=[text for text, _ in WRONG_FILES])
def test_what_is_wrong_with_a_file_is_one_line_that_names_it(tmp_path: Path, text: str, named: list[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    refused_command(rlhfless("train", file, "-o", tmp_path / "run"), "run.yaml", *named)
    assert not (tmp_path / "run").exists()


WRONG_LINES = [
    (["nowhere.yaml"], ["nowhere.yaml", "section.key=value"]),
    (["."], [".", "config.yaml"]),
    (["a.yaml", "b.yaml"], ["a.yaml", "b.yaml"]),
    (["cluster.gpus={"], ["cluster.gpus", "{"]),
    (["clusters.gpus=2"], ["clusters.gpus", "cluster.gpus"]),
    (["cluster.gpus.a=2"], ["cluster.gpus.a"]),
    (["--gpus", "2"], ["--gpus"]),
    (["--resume", "maybe"], ["--resume", "'maybe'", "auto"]),
]


@pytest.mark.parametrize(("words", "named"), WRONG_LINES, ids=[" ".join(words) for words, _ in WRONG_LINES])
def test_what_is_wrong_with_a_line_is_one_line(tmp_path: Path, words: list[str], named: list[str]) -> None:
    refused_command(rlhfless("train", *words, "-o", tmp_path / "run"), *named)
    assert not (tmp_path / "run").exists()


def test_a_folder_to_write_to_is_needed() -> None:
    refused_command(rlhfless("train", *SMALL), "-o")


def test_a_run_keeps_its_configuration_which_trains_alike(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert rlhfless("train", *SMALL, f"model={models / 'characters'}", "-o", out).exit_code == 0
    again = tmp_path / "again"
    assert rlhfless("train", out / "config.yaml", "-o", again).exit_code == 0
    assert read_trace(again).rollouts["response"].tolist() == read_trace(out).rollouts["response"].tolist()
    assert read_trace(again).meta["config"] == read_trace(out).meta["config"] == read_config(out / "config.yaml").to_dict()
    result = rlhfless("train", out / "config.yaml", "steps=2", "cluster.gpus=1", "--resume", "last", "-o", out)
    assert result.exit_code == 0, result.stderr
    assert (read_config(out / "config.yaml").steps, read_config(out / "config.yaml").cluster.gpus) == (2, 1)
    other = rlhfless("train", out / "config.yaml", "rollout.temperature=0.5", "--resume", "last", "-o", out)
    refused_command(other, "rollout.temperature", "1.0", "0.5")


def test_a_run_that_stored_its_options_without_sections_is_resumed(models: Path, tmp_path: Path) -> None:
    """As the version before did."""
    out = tmp_path / "run"
    assert rlhfless("train", *SMALL, f"model={models / 'characters'}", "-o", out).exit_code == 0
    (out / "config.yaml").unlink()
    meta = json.loads((out / "meta.json").read_text())
    config = meta["config"]
    names = {name: config[name].pop("name") for name in ("task", "algorithm", "optimizer")}
    flat = {name: value for name, value in config.items() if not isinstance(value, dict) and name != "model"}
    for section in ("task", "rollout", "algorithm", "optimizer", "planner", "cluster"):
        flat |= config[section]
    meta["config"] = {**flat, **names, "time_limit_s": 0.3}
    (out / "meta.json").write_text(json.dumps(meta))
    refused_command(rlhfless("train", *SMALL, "seed=5", "--resume", "last", "-o", out), "seed", "0", "5")
    result = rlhfless("train", *SMALL, "steps=2", "--resume", "last", "-o", out)
    assert result.exit_code == 0, result.stderr
    assert read_trace(out).steps == [0, 1]
    assert read_trace(out).meta["config"]["rollout"]["max_response_tokens"] == 8


def test_a_run_is_written_and_resumed(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    more = ("--log", "jsonl", "cluster.preparation=overlap")
    result = rlhfless("train", *SMALL, f"model={models / 'characters'}", *more, "-o", out)
    assert result.exit_code == 0, result.stderr
    assert read_trace(out).steps == [0]
    result = rlhfless("train", *SMALL, "steps=2", *more, "--resume", "last", "-o", out)
    assert result.exit_code == 0, result.stderr
    assert read_trace(out).steps == [0, 1]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1]
    changed = ("rollout.samples_per_prompt=3", "seed=5")
    other = rlhfless("train", *SMALL, *changed, *more, "--resume", "last", "-o", out)
    refused_command(other, "rollout.samples_per_prompt", "2", "3", "seed", "0", "5")


ROW = {"prompt": "a", "answer": "b"}
CONVERSATION = {"prompt": [{"role": "user", "content": "a"}], "answer": "b"}
WRONG_TASKS = {
    "no tokenizer": ("mute", [ROW], (), ["mute"]),
    "no prompt": ("chat", [{"question": "a", "answer": "b"}], (), ["data.jsonl", "row 0", "'prompt'", "question, answer"]),
    "no answer": ("chat", [ROW], ("task.answer_column=gold",), ["data.jsonl", "row 0", "'gold'", "prompt, answer"]),
    "no chat template": ("plain", [CONVERSATION] * 4, (), ["data.jsonl", "row "]),
    "few rows": ("chat", [ROW] * 3, (), ["data.jsonl", "3", "4"]),
    "no rows": ("chat", [], (), ["data.jsonl"]),
    "no model": (None, [ROW], (), ["data.jsonl", "model"]),
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
    given = () if model is None else (f"model={models / model}",)
    refused_command(rlhfless("train", f"task.name={data}", *SMALL, *given, *options, "-o", out), *named)
    assert not out.exists()


def test_the_data_of_a_run_has_the_limits_of_the_environment(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text((json.dumps(ROW) + "\n") * 4)
    for text, named in (("max_rows=3", ("data.jsonl", "3 rows", "RLHFLESS_LIMITS=max_rows")), ("rows=3", ("'rows=3'",))):
        monkeypatch.setenv("RLHFLESS_LIMITS", text)
        told = rlhfless("train", f"task.name={data}", *SMALL, f"model={models / 'chat'}", "-o", tmp_path / "run")
        refused_command(told, "RLHFLESS_LIMITS", *named)
    assert not (tmp_path / "run").exists()


def test_options_are_checked_before_the_tiny_model_is_warmed_up(tmp_path: Path) -> None:
    result = rlhfless("train", *SMALL, "task.rewards=nonsense", "-o", tmp_path / "run")
    refused_command(result, "'nonsense'")
    assert "warm-up" not in result.stderr


@pytest.mark.parametrize("model", ["cut off", "unknown"])
def test_a_model_that_cannot_be_loaded_is_named_before_anything_is_written(models: Path, tmp_path: Path, model: str) -> None:
    line = refusal_line(rlhfless("train", *SMALL, f"model={models / model}", "-o", tmp_path / "run"))
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
    assert rlhfless("train", *SMALL, f"model={models / 'characters'}", "-o", out).exit_code == 0
    damaged_file = out / file
    damaged_file.write_bytes(damaged_file.read_bytes()[:-1])
    line = refusal_line(rlhfless("train", *SMALL, "steps=2", "--resume", "last", "-o", out))
    assert line.startswith(f"rlhfless: {out / place}: ")
    assert read_trace(out).steps == [0]


def test_a_library_that_is_not_there_is_named_before_anything_is_written(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    out = tmp_path / "run"
    result = rlhfless("train", *SMALL, f"model={models / 'characters'}", "--log", "wandb", "-o", out)
    refused_command(result, "pip install wandb")
    assert not out.exists()


def test_a_model_of_weights_that_are_no_numbers_ends_with_one_line(tmp_path: Path) -> None:
    model = tiny_qwen2(CharTokenizer(), 0, hidden=32, layers=1, intermediate=64)
    model.get_input_embeddings().weight.data.fill_(float("nan"))
    save_model(model, CharTokenizer(), tmp_path / "nan")
    result = rlhfless("train", *SMALL, f"model={tmp_path / 'nan'}", "-o", tmp_path / "run")
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
    given = (f"task.name={own / data}", *SMALL, f"model={models / 'chat'}", *options, "-o", own / out)
    return rlhfless("train", *given)


def test_a_reward_of_a_file_takes_a_batch_or_one_response_and_needs_no_answers(models: Path, own: Path) -> None:
    found = {}
    for name in ("batch", "one"):
        result = trained(own, models, f"task.rewards={own / 'mine.py'}:{name}", out=name)
        assert result.exit_code == 0, result.stderr
        found[name] = read_trace(own / name).rollouts
        given = found[name]["prompt"].str.extract("<user>(.*)</>")[0]
        assert found[name]["reward"].tolist() == (-found[name]["response"].str.len() - given.str.len()).tolist()
    assert found["batch"]["response"].tolist() == found["one"]["response"].tolist()
    refused_command(trained(own, models, "task.rewards=contains", out="x"), "data.jsonl", "row 0", "'answer'")
    refused_command(trained(own, models, f"task.rewards={own / 'mine.py'}:one", "task.answer_column=gold", out="x"), "'gold'")
    assert not (own / "x").exists()


@pytest.mark.parametrize(("name", "cause"), [("wrong", "AttributeError"), ("wrong_batch", "KeyError: 'gold'")])
def test_a_reward_that_fails_on_every_response_ends_the_run_which_goes_on_with_a_right_one(
    models: Path, own: Path, name: str, cause: str
) -> None:
    options = (f"task.rewards={own / 'mine.py'}:{name}",)
    refused_command(trained(own, models, *options), repr(name), cause, "8 ", str(own / "run"), "--resume", began=True)
    right = f"def {name}(completions, **columns):\n    return [float(len(text)) for text in completions]\n"
    (own / "mine.py").write_text(right)
    assert trained(own, models, *options, "--resume", "last").exit_code == 0
    assert read_trace(own / "run").steps == [0]


def test_data_sets_of_every_format_train_alike(models: Path, own: Path) -> None:
    rows = [json.loads(line) for line in (own / "data.jsonl").read_text().splitlines()]
    (own / "data.json").write_text(json.dumps(rows))
    (own / "data.csv").write_text("prompt\n" + "".join(f"{row['prompt']}\n" for row in rows))
    found = []
    for data in ("data.jsonl", "data.json", "data.csv"):
        result = trained(own, models, "task.rewards=length:8,4", data=data, out=f"of {data}")
        assert result.exit_code == 0, result.stderr
        found.append(read_trace(own / f"of {data}").rollouts)
    assert found[0]["prompt"].nunique() == 4
    for other in found[1:]:
        assert other["prompt"].tolist() == found[0]["prompt"].tolist()


def test_a_model_that_is_not_there_is_not_looked_up_on_the_hub(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *given, **_: asked.append(given))
    monkeypatch.chdir(own)
    refused_command(rlhfless("train", *SMALL, "model=./models/policy", "-o", own / "run"), "models/policy")
    assert asked == []


def test_a_warning_is_one_line_without_a_place_in_the_code() -> None:
    with warnings_in_one_line():
        line = warnings.formatwarning("a\nb", RewardWarning, "loop.py", 7)
        assert line == "rlhfless: warning: a b\n"
        assert "other.py:7" in warnings.formatwarning("of others", UserWarning, "other.py", 7)
    assert "loop.py:7" in warnings.formatwarning("a", RewardWarning, "loop.py", 7)
