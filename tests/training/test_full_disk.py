"""A full disk while a checkpoint or a model is written: one sentence, and everything that was there before goes on.

The disk is full for files above 20 kB, which weights are: a limit that the system keeps, in a process of its own.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from training_samples import config, same_weights, started, variety

from rlhfless.trace import read_trace
from rlhfless.training import loop, run_state
from rlhfless.training.checkpoint import folder_of
from rlhfless.training.config import TrainError
from rlhfless.training.loop import train
from rlhfless.training.models.tiny_model import save_model
from rlhfless.training.tasks.arithmetic import ArithmeticTask

pytestmark = pytest.mark.full


def fill_up() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def resume_without_room(out: Path, told: Path) -> None:
    ArithmeticTask.reward = variety  # type: ignore[method-assign]
    fill_up()
    try:
        train(config(steps=3), out, resume=True)
    except TrainError as error:
        told.write_text(str(error))


def save_without_room(module: str, out: Path, model: Path, told: Path) -> None:
    """Room ends when the module's model is written."""
    ArithmeticTask.reward = variety  # type: ignore[method-assign]

    def without_room(*given: Any) -> None:
        fill_up()
        save_model(*given)

    {"run": run_state, "loop": loop}[module].save_model = without_room  # type: ignore[attr-defined]
    try:
        train(config(steps=2), out, model=model)
    except TrainError as error:
        told.write_text(str(error))


def said(function: Callable[..., None], *given: object, told: Path) -> str:
    """The error of a function that has a full disk, in a process of its own."""
    process = started(function, *given, told)
    process.join()
    assert process.exitcode == 0
    return told.read_text()


def test_the_step_does_not_count_and_the_run_goes_on_when_there_is_room(model: Path, tmp_path: Path) -> None:
    train(config(steps=3), tmp_path / "whole", model=model)
    train(config(steps=2), tmp_path / "run", model=model)
    saved = folder_of(tmp_path / "run" / "checkpoints", 2)
    files = {path: path.read_bytes() for path in saved.iterdir()}
    error = said(resume_without_room, tmp_path / "run", told=tmp_path / "told")
    assert "after-000003: could not be written (" in error
    assert "earlier checkpoints are complete: free disk space and resume the run" in error
    assert [path.name for path in saved.parent.iterdir()] == ["after-000002"], "half a checkpoint takes no room"
    assert {path: path.read_bytes() for path in saved.iterdir()} == files
    assert read_trace(tmp_path / "run").steps == [0, 1]
    train(config(steps=3), tmp_path / "run", resume=True)
    assert same_weights(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(("module", "folder", "steps"), [("run", "warm", []), ("loop", "model", [0, 1])])
def test_a_model_that_finds_no_room_is_one_sentence_and_is_written_when_the_run_is_resumed(
    model: Path, tmp_path: Path, module: str, folder: str, steps: list[int]
) -> None:
    """The one that training begins with, and the one that it ends with."""
    out = tmp_path / "run"
    error = said(save_without_room, module, out, model, told=tmp_path / "told")
    assert f"{out / folder}: the model could not be written (" in error
    assert not list(out.glob(f"{folder}*")), "half of a model takes no room, and is not taken for one"
    if steps:
        assert read_trace(out).steps == steps
    train(config(steps=2), out, resume=True, model=model)
    train(config(steps=2), tmp_path / "whole", model=model)
    assert same_weights(out, tmp_path / "whole")
