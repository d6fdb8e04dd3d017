"""What ended a step of training is the error that is seen, also when what follows it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from error_messages import refused
from training_samples import config

from rlhfless.executor import StepFailed
from rlhfless.training import loop
from rlhfless.training.loop import Trainer
from rlhfless.training.run_state import RunState


class Fails:
    """A callback whose end fails."""

    def on_step(self, trainer: Any, step: Any) -> None:
        raise ValueError("the callback fails")

    def on_end(self, trainer: Any) -> None:
        raise OSError("the log cannot be closed")


def test_a_callback_that_fails_is_not_hidden_by_its_end(model: Path) -> None:
    with (
        refused(ValueError, "the callback fails") as failed,
        Trainer(config(policy="static"), model=model, callbacks=[Fails()], progress=False) as trainer,
    ):
        trainer.step()
    assert "the log cannot be closed" in "\n".join(failed.value.__notes__)


def test_a_trainer_that_closes_says_the_first_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(state: RunState) -> None:
        raise RuntimeError("the learner cannot be stopped")

    trainer = Trainer(config(policy="static"), model=model, callbacks=[Fails()], progress=False)
    monkeypatch.setattr(RunState, "close", broken)
    with refused(OSError, "the log cannot be closed") as failed:
        trainer.close()
    assert "the learner cannot be stopped" in "\n".join(failed.value.__notes__)


def test_an_error_while_learning_is_not_hidden_by_the_way_back(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*given: Any) -> None:
        raise OSError("the checkpoint cannot be read")

    def broken(batch: Any) -> None:
        raise ValueError("the batch is wrong")

    with Trainer(config(policy="static"), model=model, progress=False) as trainer:
        with monkeypatch.context() as patch:
            patch.setattr("rlhfless.training.run_state.load_checkpoint", unreadable)
            patch.setattr(trainer.state.learner, "learn", broken)
            with refused(ValueError, "the batch is wrong") as failed:
                trainer.step()
        assert "the checkpoint cannot be read" in "\n".join(failed.value.__notes__)
        assert trainer.step().step == 0, "the step is repeated from the checkpoint"


def test_a_lost_step_is_not_hidden_by_what_cannot_be_kept(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = Trainer.generate

    def lossy(self: Trainer, *given: Any) -> Any:
        raise StepFailed(generate(self, *given), "no actor is left")

    def full(*given: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(Trainer, "generate", lossy)
    monkeypatch.setattr("rlhfless.training.run_state.keep_unfinished", full)
    with (
        refused(StepFailed, "no actor is left") as failed,
        loop.Trainer(config(policy="static"), tmp_path / "run", model=model, progress=False) as trainer,
    ):
        trainer.step()
    assert "the disk is full" in "\n".join(failed.value.__notes__)
