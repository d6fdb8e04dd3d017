"""The page "From TRL and verl": names of ours are options, names of TRL's are TRL's, and what it says to log is read."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from command_line import run_rlhfless
from error_messages import refused
from trl_page import PAGE, PageRow, page_rows

from rlhfless.training import Trainer, read_config
from rlhfless.training.config import TrainError
from rlhfless.training.config.names import plain_names
from rlhfless.training.config.section import all_keys
from rlhfless.training.config.their_names import EXPLAINED, MISSING, THEIRS, of_others
from rlhfless.training.config.train import SECTIONS

ROOT = PAGE.parents[1]
GOLDEN = ROOT / "tests" / "trace" / "importers" / "golden"
ROWS = page_rows("here")
OURS_ALONE = re.findall(r"`(\w+\.\w+)`", PAGE.read_text("utf-8").split("### Only here")[1].split("\n## ")[0])


def test_every_option_of_the_column_here_is_a_key_of_the_configuration() -> None:
    named = [name for row in ROWS for name in row.names("here")] + OURS_ALONE
    assert len(named) > 60
    assert {name.partition("=")[0] for name in named} <= {*all_keys(), "model"}


def test_every_value_of_the_column_here_is_taken() -> None:
    assert [row for row in ROWS if any("=" in name for name in row.names("here"))]
    for row in ROWS:
        typed = [name for name in row.names("here") if "=" in name]
        read_config(None, typed)


def test_every_option_in_python_is_an_argument_of_the_trainer() -> None:
    said = [name for row in ROWS for name in re.findall(r"in Python `(\w+)`", row.cells.get("what differs", ""))]
    assert {"dataset", "rewards", "folder", "resume", "callbacks"} <= set(said)
    assert set(said) <= inspect.signature(Trainer).parameters.keys() | plain_names().keys()


def test_a_row_without_a_name_of_ours_says_that_it_is_missing_or_what_stands_for_it() -> None:
    for row in ROWS:
        assert row.missing or row.names("here") or row.cells.get("what differs"), row


@pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed: pip install 'trl>=1.16'")
def test_every_name_in_trls_column_is_an_option_of_trl() -> None:
    from trl import GRPOConfig, GRPOTrainer

    known = {field.name for field in fields(GRPOConfig)} | inspect.signature(GRPOTrainer.__init__).parameters.keys()
    elsewhere = {"max_prompt_length", "use_kl_loss"}  # of earlier releases
    for row in ROWS:
        if row.section == "PPO":
            continue
        for span in row.names("TRL"):
            if span.startswith(("accelerate", "--")) or span.endswith("Trainer"):
                continue
            for name in re.findall(r"(?:^|, )(\w+)", span):
                assert name in known | elsewhere, (name, row)


OPTION = re.compile(r"(?:^|, | )([a-z_][\w.]*)(?:=|$|,)")
NO_OPTIONS = {"rloo", "reinforce_plus_plus", "remax", "opo", "gpg", "grpo_passk", "cispo", "sapo"}
"""Values that stand alone in a column of names."""
OF_OURS = {*plain_names(), *(key.rpartition(".")[2] for key in all_keys())} | {
    *inspect.signature(Trainer).parameters, *SECTIONS
}  # fmt: skip


def theirs_of(row: PageRow) -> set[str]:
    """Names of options of both frameworks in a row, those of verl with their sections."""
    spans = [span.lstrip("-") for span in row.names("TRL") + row.names("verl") if not span.startswith("accelerate")]
    return {name for span in spans for name in OPTION.findall(span)} - NO_OPTIONS


def ours_of(row: PageRow) -> set[str]:
    """Names of ours in a row, alone; of a section, such as optimizer, also the section."""
    differs = row.cells.get("what differs", "")
    keys = [name.partition("=")[0] for name in row.names("here")]
    named = re.findall(r"in Python `(\w+)`", differs) + [key.rpartition(".")[2] for key in keys]
    return {*named, *(key.partition(".")[0] for key in keys)} - {"name"}


def answer_to(name: str) -> str:
    """What the trainer says to somebody who types a name."""
    with pytest.raises(TrainError) as refusal:
        Trainer(**{name: 1})  # type: ignore[arg-type]
    return str(refusal.value)


FOREIGN = sorted({name for row in ROWS for name in theirs_of(row)} - OF_OURS - set(all_keys()))


def test_the_page_names_options_of_both_frameworks() -> None:
    assert {"num_generations", "betas", "actor_rollout_ref.rollout.n", "trainer.logger", "num_processes"} <= {
        *FOREIGN, *(name.rpartition(".")[2] for name in FOREIGN)
    }  # fmt: skip
    assert len(FOREIGN) > 100


@pytest.mark.parametrize("theirs", FOREIGN)
def test_every_name_of_the_page_is_refused_with_what_the_page_says(theirs: str) -> None:
    rows = [row for row in ROWS if theirs in theirs_of(row)]
    ours = {name for row in rows for name in ours_of(row)}
    said = answer_to(theirs)
    assert said.startswith(f"{theirs} is another framework's "), said
    if "there is none here" in said:
        assert any(row.missing for row in rows), "the page has something for it"
    elif "here it is" in said:
        assert said.rpartition("here it is ")[2] in ours
    else:
        assert not ours or ours & set(re.findall(r"\w+", said)), "what is said has nothing of ours"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("epsilon", {"clip_ratio_low", "clip_ratio_high"}), ("cliprange", {"clip_ratio_low", "clip_ratio_high"}),
        ("actor_rollout_ref.actor.clip_ratio", {"clip_ratio_low", "clip_ratio_high"}),
        ("trainer.n_gpus_per_node", {"gpus", "gpus_per_node"}),
    ],
)  # fmt: skip
def test_a_name_that_is_two_of_ours_is_told_both(theirs: str, ours: set[str]) -> None:
    """One alone would leave the other at its default: TRL's epsilon is both limits of the ratio."""
    assert ours <= set(re.findall(r"\w+", answer_to(theirs)))
    named = set.union(*(ours_of(row) for row in ROWS if theirs in theirs_of(row)))
    assert ours <= named


@pytest.mark.parametrize("theirs", [name for name in FOREIGN if "." in name])
def test_names_of_verl_are_told_ours_alone_and_on_the_command_line(theirs: str) -> None:
    with refused(TrainError, theirs, "another framework's"):
        read_config(None, [f"{theirs}=1"])
    last = theirs.rpartition(".")[2]
    if last not in OF_OURS | {"path"}:
        with refused(TrainError, last, "another framework's"):
            Trainer(**{last: 1})  # type: ignore[arg-type]


def test_a_name_of_verl_that_is_not_on_the_page_is_not_taken_for_one_of_ours() -> None:
    for typed in ("critic.optim.weight_decay=0.1", "actor_rollout_ref.rollout.val_kwargs.n=1", "trainer={nnodes: 1}"):
        with refused(TrainError, typed.partition("=")[0], "verl", "From TRL and verl") as told:
            read_config(None, [typed])
        assert "closest" not in str(told)


def test_names_of_the_tables_are_on_the_page() -> None:
    words = set(re.findall(r"\w+", PAGE.read_text("utf-8")))
    assert {name for name in (*THEIRS, *EXPLAINED) if "." in name and name.rpartition(".")[2] not in words} == set()
    assert set(MISSING) <= set.union(*(theirs_of(row) for row in ROWS if row.missing))


def test_every_option_of_trl_and_transformers_has_an_answer() -> None:
    """All fields of the installed ``GRPOConfig``, with those that it has of ``TrainingArguments``, and the trainer's own."""
    trl = pytest.importorskip("trl", reason="TRL is not installed, whose options these are")
    asked = [field.name for field in fields(trl.GRPOConfig)]
    asked += [name for name in inspect.signature(trl.GRPOTrainer.__init__).parameters if name != "self"]
    ours = {*OF_OURS, *inspect.signature(Trainer.__init__).parameters}
    assert [name for name in asked if name not in ours and of_others(name, python=True) is None] == []
    for name in ("ref_model", "attn_implementation", "dataset_text_field", *(name for name in asked if name not in ours)):
        with refused(TrainError, f"{name} is another framework's "):
            Trainer(**{name: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["my_flag", "first_batch", "unused_rows", "best_of", "auxiliary"])
def test_a_name_that_is_like_none_is_not_told_another(name: str) -> None:
    assert "--dry-run" in (said := answer_to(name))
    assert "closest" not in said
    with refused(TrainError, name, "--dry-run"):
        read_config(None, [f"{name}=1"])


ON_COMMAND_LINE = {
    "output_dir": "-o FOLDER", "folder": "-o FOLDER", "train_dataset": "task.name", "dataset": "task.name",
    "report_to": "--log", "callbacks": "--log", "resume_from_checkpoint": "--resume", "resume": "--resume",
    "reward_weights": "0.5*exact", "trainer.logger": "--log", "data.train_files": "task.name",
    "trainer.default_local_dir": "-o FOLDER", "eval_dataset": "task.eval_prompts",
}  # fmt: skip


@pytest.mark.parametrize("typed", ON_COMMAND_LINE)
def test_the_command_line_is_told_what_is_typed_there(typed: str, tmp_path: Path) -> None:
    done = run_rlhfless("train", f"{typed}=1", "-o", tmp_path / "run")
    assert done.exit_code == 2
    assert typed in done.stderr
    assert ON_COMMAND_LINE[typed] in done.stderr


VARIANTS = [row for row in ROWS if row.section == "Loss variants" and not row.missing and row.names("TRL")]
THEIR_VALUES = {  # what somebody types with our name: ours
    (name, value): row.ours[ours] for row in VARIANTS for name, value in row.theirs.items()
    if (ours := THEIRS.get(name)) in ("loss_aggregation", "advantage_std") and value != row.ours.get(ours)
}  # fmt: skip


def test_values_of_trl_and_verl_are_told_ours() -> None:
    assert {value for _, value in THEIR_VALUES} == {"grpo", "bnpo", "dapo", "dr_grpo"}
    others = {
        ("loss_type", "token-mean"): "token", ("loss_type", "seq-mean-token-mean"): "sequence",
        ("scale_rewards", "group"): "sample", ("scale_rewards", True): "sample", ("scale_rewards", False): "none",
        ("optim", "adamw_torch"): "adamw", ("optim", "adamw_torch_fused"): "adamw",
    }  # fmt: skip
    for (name, value), ours in {**THEIR_VALUES, **others}.items():
        with refused(TrainError, str(value), f"here it is '{ours}'"):
            Trainer(**{THEIRS[name]: value})
    with refused(TrainError, "'batch'", "From TRL and verl"):
        Trainer(advantage_std="batch")
    with refused(TrainError, "-1", "here it is 0"):
        Trainer(top_k=-1)


@pytest.mark.parametrize(
    ("typed", "meant"), [("max_completion_lenght", "max_response_tokens"), ("num_generation", "samples_per_prompt")]
)
def test_a_foreign_name_with_a_typing_error_is_told_ours(typed: str, meant: str) -> None:
    with refused(TrainError, typed, meant):
        Trainer(**{typed: 8})  # type: ignore[arg-type]


def test_the_first_examples_of_both_pages_train_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That of the page on training goes on when its cell runs again."""
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.S)
    names: dict[str, Any] = {}
    exec(block, names)
    assert len(names["trainer"].state.trace.steps) == 2
    assert (tmp_path / "out" / "mine" / "model" / "model.safetensors").is_file()
    text = (ROOT / "docs" / "executing_and_training.md").read_text("utf-8").split("\n## Train\n")[1]
    example = re.findall(r"```python\n(.*?)```", text, flags=re.S)[0]
    capsys.readouterr()
    for steps in (2, 3):
        exec(example.replace('"steps": 8', f'"steps": {steps}'), names)
        assert len(names["trainer"].state.trace.steps) == steps
    told = [line for line in capsys.readouterr().out.splitlines() if re.match(r"\d ", line)]
    assert [line[0] for line in told] == ["0", "1", "2"], "its callback is called after each step"


LOGS = {  # framework, how its option begins: the log that it writes
    ("TRL", "nothing"): "trl-console",
    ("TRL", "GRPOConfig(log_completions=True"): "trl",
    ("TRL", 'report_to="wandb"'): "trl-profiled",
    ("verl", "trainer.logger=[console]"): "verl-console",
    ("verl", "trainer.logger=[console,file]"): "verl-scalars",
    ("verl", "trainer.rollout_data_dir=DIR"): "verl-v1",
    ("verl", "trainer.balance_batch=False"): "verl-v0",
}


@pytest.mark.parametrize(("framework", "option"), LOGS)
def test_what_the_page_says_to_log_answers_the_report(framework: str, option: str, tmp_path: Path) -> None:
    rows = [row.cells for row in page_rows("log with") if row.cells["you run"] == framework]
    (row,) = (cells for cells in rows if cells["log with"].lstrip("`").startswith(option))
    every = "every response" in row["it has"]
    log = GOLDEN / LOGS[framework, option]
    tokenizer = ["--tokenizer", GOLDEN / "trl"] if every else []
    done = run_rlhfless("report", log, *tokenizer)
    assert done.exit_code == 0, done.stderr
    assert "What limits this run" in done.stdout
    converted = run_rlhfless("convert", log, *tokenizer, "-o", tmp_path / "log")
    assert converted.exit_code == 0, converted.stderr
    assert (tmp_path / "log" / "meta.json").is_file() == every, "only responses make a trace"


def test_every_row_of_what_to_log_is_tried() -> None:
    """The recorder's own test is that of TRL's callback."""
    rows = [row for row in page_rows("log with") if "TrlRecorder" not in row.cells["log with"]]
    assert len(rows) == len(LOGS)
