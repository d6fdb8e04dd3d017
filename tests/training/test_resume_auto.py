"""``resume="auto"`` begins a run where there is none yet, and continues it where there is one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from error_messages import refused
from training_samples import config, same_weights

from rlhfless.engine.torch.pretrained import load_model
from rlhfless.trace import read_trace
from rlhfless.training.config import TrainError
from rlhfless.training.loop import Trainer, train


def run(steps: int) -> Any:
    return config(steps=steps, policy="static")


@pytest.mark.parametrize("found", ["no folder", "an empty folder", "a warm-up", "somebody's notes"])
def test_where_there_is_no_run_it_begins_one_and_then_continues_it(tmp_path: Path, model: Path, found: str) -> None:
    """The same call again and again, as a job that a cluster starts again, has the weights of one that nobody stopped."""
    out = tmp_path / "run"
    if found != "no folder":
        out.mkdir()
    if found == "a warm-up":
        (out / "checkpoints").mkdir()
    if found == "somebody's notes":
        (out / "notes.txt").write_text("mine")
    for steps in (1, 3, 3):
        train(run(steps), out, resume="auto", model=model)
        assert read_trace(out).steps == list(range(steps))
    train(run(3), tmp_path / "whole", model=model)
    assert same_weights(out, tmp_path / "whole")
    assert (out / "notes.txt").exists() == (found == "somebody's notes")


def test_a_run_without_its_checkpoints_is_not_overwritten(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    train(run(1), out, model=model)
    shutil.rmtree(out / "checkpoints")
    with refused(TrainError, str(out)):
        train(run(2), out, resume="auto", model=model)
    assert read_trace(out).steps == [0]


def test_without_a_folder_it_begins(model: Path) -> None:
    with Trainer(run(1), model=model, resume="auto", progress=False) as trainer:
        assert trainer.next_step == 0


@pytest.mark.parametrize("resume", ["yes", "", 1.5])
def test_other_words_are_one_sentence(tmp_path: Path, model: Path, resume: Any) -> None:
    with refused(TrainError, resume, "'auto'", "True"):
        Trainer(run(1), tmp_path / "run", model=model, resume=resume, progress=False)
    assert not (tmp_path / "run").exists()


def test_resuming_where_there_is_no_run_names_what_begins_one(tmp_path: Path, model: Path) -> None:
    for folder in (tmp_path / "nowhere", tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
        with refused(TrainError, str(folder), "auto"):
            Trainer(run(1), folder, model=model, resume=True, progress=False)


def test_a_missing_run_is_named_before_what_else_is_missing(tmp_path: Path) -> None:
    with refused(TrainError, "nowhere", "auto"):
        Trainer(folder=tmp_path / "nowhere", resume=True, progress=False)


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("resume", [True, "auto", 1])
def test_another_model_is_refused_and_nothing_is_written(
    tmp_path: Path, model: Path, resume: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has its own weights, so another model would be recorded and never read."""
    out, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(model, other)
    train(run(1), out, model=model)
    before = files_of(out)
    for name in (str(other), "owner/other", str(tmp_path / "nowhere")):
        with refused(TrainError, str(out), f"began with model {model}", name, "leave model out or give that"):
            Trainer(run(2), out, model=name, resume=resume, progress=False)
    assert files_of(out) == before
    monkeypatch.chdir(model.parent)
    for steps, same in ((2, model.name), (3, None), (4, model)):  # also as a relative path
        train(run(steps), out, resume=True, model=same)
    assert read_trace(out).steps == [0, 1, 2, 3]


def test_a_run_of_a_passed_model_is_resumed_without_a_named_one(tmp_path: Path, model: Path) -> None:
    passed = load_model(model)
    with Trainer(run(1), tmp_path / "run", model=passed, progress=False) as trainer:
        trainer.train()
    with refused(TrainError, "has no name", str(model), "leave model out"):
        Trainer(run(2), tmp_path / "run", model=model, resume=True, progress=False)
    with Trainer(run(2), tmp_path / "run", model=passed, resume=True, progress=False) as trainer:
        assert trainer.next_step == 1
