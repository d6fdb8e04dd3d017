"""A training run that is driven by buttons: stopped, it stands at its last complete step, on the disk too."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from error_messages import refused
from training_samples import config

from rlhfless.executor.step.progress import StepProgress
from rlhfless.trace import read_trace
from rlhfless.training.loop import Trainer
from rlhfless.widgets import LiveRun, steps_of


def test_a_stopped_run_stands_at_its_last_step_and_goes_on_to_the_same_end(model: Path, tmp_path: Path) -> None:
    with Trainer(config(), tmp_path / "whole", model=model, progress=False) as trainer:
        whole = trainer.run()
    with Trainer(config(), tmp_path / "stopped", model=model, progress=False) as trainer:
        live_run = LiveRun(steps_of(trainer))
        inner, reached, opened = trainer.on_progress, threading.Event(), threading.Event()
        assert inner is not None

        def on_progress(progress: StepProgress) -> None:
            if progress.record.step == 1 and progress.completed > 3 and not opened.is_set():
                reached.set()
                assert opened.wait(300)
            inner(progress)

        trainer.on_progress = on_progress
        live_run.run()
        assert reached.wait(300)

        def open_for_a_stop() -> None:
            while not live_run._stops:
                time.sleep(0.002)
            opened.set()

        threading.Thread(target=open_for_a_stop, daemon=True).start()
        live_run.stop(300)
        assert (live_run.state, trainer.next_step) == ("stopped", 1)
        assert read_trace(tmp_path / "stopped").steps == [0]
        live_run.run()
        assert live_run.wait(300)
    assert live_run.state == "done"
    assert live_run.table["step"].tolist() == [0, 1, 2]
    assert live_run.table["mean_reward"].notna().all()
    assert whole is not None
    ended = read_trace(tmp_path / "stopped").rollouts
    assert ended["response_tokens"].tolist() == whole.rollouts["response_tokens"].tolist()
    assert ended["reward"].tolist() == whole.rollouts["reward"].tolist()


@pytest.mark.parametrize(("steps", "state"), [(2, "stopped"), (1, "done")])
def test_a_step_that_learns_stands_before_the_run_is_stopped(
    steps: int, state: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Trainer(config(steps=steps), tmp_path / "run", model=model, progress=False) as trainer:
        learn, learns, opened = trainer.state.learner.learn, threading.Event(), threading.Event()

        def held(*given: Any, **named: Any) -> Any:
            learns.set()
            assert opened.wait(300)
            return learn(*given, **named)

        monkeypatch.setattr(trainer.state.learner, "learn", held)
        live_run = LiveRun(steps_of(trainer))
        live_run.run()
        assert learns.wait(300)
        with refused(TimeoutError):
            live_run.stop(0.05)
        opened.set()
        assert live_run.wait(300)
        assert (live_run.state, trainer.next_step, len(live_run.traces)) == (state, 1, 1)
    assert read_trace(tmp_path / "run").steps == [0]
