"""``rlhfless train`` interrupted, and resumed by what it says is to be typed."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import Result, run_rlhfless

pytest.importorskip("torch")

from error_messages import refused_command
from safetensors.torch import load_file

from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.trace import read_trace
from rlhfless.training.checkpoint import saved_steps
from rlhfless.training.loop import Trainer
from rlhfless.training.models.tiny_model import save_model, tiny_qwen2

STEPS = 3
SMALL = [
    "preset=demo", f"steps={STEPS}", "task.prompts=4", "rollout.prompts_per_step=4", "rollout.samples_per_prompt=2",
    "rollout.max_response_tokens=8", "cluster.gpus=2", "planner.policy=static",
]  # fmt: skip


def rlhfless(*arguments: object) -> Result:
    return run_rlhfless(*arguments)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a model")  # with a space, which a shell needs quotes for
    save_model(tiny_qwen2(CharTokenizer(), 0, hidden=32, layers=1, intermediate=64), CharTokenizer(), folder)
    return folder


def interrupted(monkeypatch: pytest.MonkeyPatch, at: int, *arguments: object) -> Result:
    """Ctrl-C in a step."""
    step = Trainer.step

    def pressed(trainer: Trainer) -> Any:
        if trainer.next_step == at:
            raise KeyboardInterrupt
        return step(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", pressed)
        return rlhfless("train", *arguments)


def typed(result: Result) -> list[str]:
    """The arguments of the command that an interrupt names."""
    assert result.exit_code == 130
    assert "Traceback" not in result.stderr
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("rlhfless: interrupted"))
    command = shlex.split(line[line.rindex("rlhfless train") :])
    return command[1:]


@pytest.mark.parametrize(
    "first",
    [[], ["--resume", "auto"], ["--resume", "last"], ["--resume", "1"], ["--resume=1"]],
    ids=lambda first: " ".join(first) or "a new run",
)
def test_an_interrupt_names_what_to_type_and_that_continues_the_run(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, first: list[str]
) -> None:
    out = tmp_path / "the run"
    if first not in ([], ["--resume", "auto"]):
        assert interrupted(monkeypatch, 1, *SMALL, f"model={model}", "-o", out).exit_code == 130
    result = interrupted(monkeypatch, 2, *SMALL, f"model={model}", *first, "-o", out)
    assert str(out) in result.stderr
    assert "2 of 3 steps" in result.stderr
    command = typed(result)
    assert sum(word.startswith("--resume") for word in command) == 1
    assert read_trace(out).steps == [0, 1]
    assert rlhfless(*command).exit_code == 0
    assert read_trace(out).steps == [0, 1, 2]
    assert rlhfless("train", *SMALL, f"model={model}", "-o", tmp_path / "whole").exit_code == 0
    ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (out, tmp_path / "whole"))
    assert all((ours[name] == theirs[name]).all() for name in theirs)


def test_an_interrupt_before_the_run_began_says_to_type_the_same_again(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("rlhfless.training.run_start.load_model", pressed)
        result = rlhfless("train", *SMALL, f"model={model}", "-o", out)
    command = typed(result)
    assert command == ["train", *SMALL, f"model={model}", "-o", str(out)]
    assert rlhfless(*command).exit_code == 0


def test_resume_auto_begins_and_continues(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    for steps in (1, 2):
        result = rlhfless("train", *SMALL, f"steps={steps}", f"model={model}", "--resume", "auto", "-o", out)
        assert result.exit_code == 0, result.stderr
        assert read_trace(out).steps == list(range(steps))


def test_another_model_is_refused(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    assert rlhfless("train", *SMALL, "steps=1", f"model={model}", "-o", out).exit_code == 0
    recorded = (out / "config.yaml").read_bytes()
    again = ["--resume", "last", "-o", out]
    refused_command(rlhfless("train", *SMALL, "model=owner/other", *again), f"began with model {model}", "leave model out")
    assert (out / "config.yaml").read_bytes() == recorded
    result = rlhfless("train", out / "config.yaml", "steps=2", *again)
    assert result.exit_code == 0, result.stderr


def test_resume_takes_no_other_word(tmp_path: Path, model: Path) -> None:
    refused_command(rlhfless("train", *SMALL, "--resume", "maybe", "-o", tmp_path), "--resume", "auto")
    refused_command(rlhfless("train", *SMALL, "--resume", "last", "-o", tmp_path / "nowhere"), "nowhere", "--resume auto")


@pytest.mark.full
def test_ctrl_c_of_a_terminal(tmp_path: Path, model: Path) -> None:
    """The signal itself, to a process that trains."""
    out = tmp_path / "run"
    arguments = [*SMALL, "steps=100000", f"model={model}", "-o", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-c", "from rlhfless.cli import main; main()", "train", *arguments],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while process.poll() is None and not any(saved >= 3 for saved in saved_steps(out / "checkpoints")):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert "Traceback" not in said
    line = said.splitlines()[-1]
    assert shlex.split(line[line.rindex("rlhfless train") :]) == ["rlhfless", "train", *arguments, "--resume", "last"]
    steps = read_trace(out).steps
    assert len(steps) >= 2
    assert f"{len(steps)} of 100,000 steps" in line
