"""A run's folder that somebody removes while the run goes on: noticed at the step, in one sentence, and not made again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import run_rlhfless
from error_messages import refused, refused_command

torch = pytest.importorskip("torch")
from training_samples import config, same_weights  # noqa: E402

from rlhfless.trace import read_trace  # noqa: E402
from rlhfless.training.config import TrainError  # noqa: E402
from rlhfless.training.learner import learner  # noqa: E402
from rlhfless.training.loop import Trainer, train  # noqa: E402


@pytest.mark.parametrize("gone", ["", "warm", "checkpoints", "meta.json"])
@pytest.mark.parametrize("when", ["before the step", "while it learns"])
def test_what_is_gone_is_named_and_nothing_is_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str, when: str
) -> None:
    out = tmp_path / "run"
    away, put = out / gone if gone else out, tmp_path / "elsewhere"
    learn = learner.LocalLearner.learn

    def remove() -> None:
        shutil.move(away, put)

    def removed_meanwhile(*given: Any) -> Any:
        remove()
        return learn(*given)

    with Trainer(config(steps=2, policy="static"), out, model=model, progress=False) as trainer:
        trainer.step()
        if when == "before the step":
            remove()
        else:
            monkeypatch.setattr(learner.LocalLearner, "learn", removed_meanwhile)
        with pytest.raises(TrainError) as refused:
            trainer.step()
    assert str(refused.value).startswith(f"{away}: was removed during the run, so step 1 is not saved")
    assert "\n" not in str(refused.value)
    assert not away.exists()
    shutil.move(put, away)
    assert read_trace(out).steps == [0]


def test_put_back_the_run_goes_on(model: Path, tmp_path: Path) -> None:
    """In the same program, too."""
    train(config(policy="static"), tmp_path / "whole", model=model)
    with Trainer(config(policy="static"), tmp_path / "run", model=model, progress=False) as trainer:
        trainer.step()
        shutil.move(tmp_path / "run", tmp_path / "elsewhere")
        with refused(TrainError):
            trainer.step()
        shutil.move(tmp_path / "elsewhere", tmp_path / "run")
        assert trainer.step().step == 1
    train(config(policy="static"), tmp_path / "run", resume=True)
    assert same_weights(tmp_path / "run", tmp_path / "whole")


def test_the_command_line_says_it_in_one_sentence(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, learn = tmp_path / "run", learner.LocalLearner.learn

    def removed_meanwhile(*given: Any) -> Any:
        shutil.rmtree(out)
        return learn(*given)

    monkeypatch.setattr(learner.LocalLearner, "learn", removed_meanwhile)
    small = ["preset=demo", "steps=2", "task.prompts=8", "rollout.prompts_per_step=4", "rollout.samples_per_prompt=3"]
    given = [*small, "rollout.max_response_tokens=24", "planner.policy=static", f"model={model}", "-o", out]
    result = run_rlhfless("train", *map(str, given))
    refused_command(result, str(out), began=True)
    assert not out.exists()
