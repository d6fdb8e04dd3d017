"""A training run that is watched and driven by buttons: it shows what its steps do, and stopped, it stands at its last complete
step, on the disk too."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from error_messages import refused
from training_samples import config

from rlhfless.executor.step.progress import StepProgress
from rlhfless.trace import read_trace, step_metrics
from rlhfless.training.loop import Trainer
from rlhfless.widgets import LiveRun, live, live_view, steps_of

STEP = ["starting", "generating", "preparing", "learning", "saving"]
STREAMED = ["starting", "generating", "learning", "saving"]
LOCAL = {"executor": "local", "policy": "static"}


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


def hold_learner(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Let the learner wait for the second event when it begins, which sets the first one."""
    learn, learns, opened = trainer.state.learner.learn, threading.Event(), threading.Event()

    def held(*given: Any, **named: Any) -> Any:
        learns.set()
        assert opened.wait(300)
        return learn(*given, **named)

    monkeypatch.setattr(trainer.state.learner, "learn", held)
    return learns, opened


@pytest.mark.parametrize(("steps", "state"), [(2, "stopped"), (1, "done")])
def test_a_step_that_learns_stands_before_the_run_is_stopped(
    steps: int, state: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Trainer(config(steps=steps), tmp_path / "run", model=model, progress=False) as trainer:
        learns, opened = hold_learner(trainer, monkeypatch)
        live_run = LiveRun(steps_of(trainer))
        live_run.run()
        assert learns.wait(300)
        with refused(TimeoutError):
            live_run.stop(0.05)
        opened.set()
        assert live_run.wait(300)
        assert (live_run.state, trainer.next_step, len(live_run.traces)) == (state, 1, 1)
    assert read_trace(tmp_path / "run").steps == [0]


@pytest.mark.parametrize(
    ("options", "phases"),
    [
        pytest.param({}, STEP, id="virtual"),
        pytest.param({"learning": "stream"}, STREAMED, id="virtual, in a stream"),
        pytest.param({**LOCAL, "gpus": 1, "gpus_per_node": 1}, STEP, id="local"),
        pytest.param(
            {**LOCAL, "gpus": 2, "gpus_per_node": 2, "learning": "stream"}, STREAMED, id="local, in a stream",
            marks=pytest.mark.full,
        ),
    ],
)  # fmt: skip
def test_a_step_goes_through_its_phases_in_order(options: dict[str, Any], phases: list[str], model: Path) -> None:
    seen: list[tuple[int, str]] = []
    with Trainer(config(steps=2, **options), model=model, progress=False) as trainer:
        trainer.on_phase = lambda step, phase: seen.append((step, phase))
        trainer.run()
    assert seen == [(step, phase) for step in (0, 1) for phase in phases]


def test_an_evaluation_is_a_phase_where_one_is_due(model: Path) -> None:
    seen: list[tuple[int, str]] = []
    with Trainer(config(steps=2, eval_every=2, eval_prompts=2), model=model, progress=False) as trainer:
        trainer.on_phase = lambda step, phase: seen.append((step, phase))
        trainer.run()
    last = [*STEP[:-1], "evaluating", "saving"]
    assert seen == [(0, "evaluating"), *((0, phase) for phase in STEP), *((1, phase) for phase in last)]


def test_what_a_callback_for_phases_raises_undoes_the_step(model: Path) -> None:
    def interrupt(step: int, phase: str) -> None:
        if phase == "learning" and not seen:
            seen.append(phase)
            raise KeyboardInterrupt

    seen: list[str] = []
    with Trainer(config(steps=1), model=model, progress=False) as trainer:
        trainer.on_phase = interrupt
        with pytest.raises(KeyboardInterrupt):
            trainer.step()
        assert trainer.next_step == 0
        trainer.step()
        assert trainer.next_step == 1


def test_the_view_is_alive_while_the_learner_computes(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is generated then, so no progress is reported that could update it."""
    monkeypatch.setattr(live_view, "BEAT_S", 0.01)
    with Trainer(config(steps=1), model=model, progress=False) as trainer:
        learns, opened = hold_learner(trainer, monkeypatch)
        view = live(trainer)
        view.run.run()
        assert learns.wait(300)
        shown: set[str] = set()
        beats = view.panes.beat
        until = time.monotonic() + 300
        while len(shown) < 3:  # its seconds go on
            assert time.monotonic() < until
            if view.panes.beat > beats:
                shown.add(view.panes.pane_phase)
            time.sleep(0.01)
        assert all("<b>learning</b>" in text and "<b>12 of 12</b>" in text for text in shown)
        snapshot = view.run.snapshot
        assert snapshot is not None
        assert snapshot.completed == 12, "the end of generation"
        while f"{snapshot.cost.gpu_seconds!r}" not in view.panes.pane_cost:  # is drawn while the learner computes
            assert time.monotonic() < until
            time.sleep(0.01)
        opened.set()
        assert view.run.wait(300)
    assert "<b>done</b>" in view.panes.pane_phase


@pytest.mark.parametrize("profile", ["cpu-tiny-qwen2", "h100-qwen2.5-3b-tp1"])
def test_the_cost_of_training_is_the_traces_or_unknown(profile: str, model: Path) -> None:
    """Emulated GPUs of the machine at hand have no price."""
    with Trainer(config(steps=2, profile=profile), model=model, progress=False) as trainer:
        live_run = LiveRun(steps_of(trainer))
        live_run.run()
        assert live_run.wait(300)
    assert live_run.error is None
    assert live_run.trace is not None
    sums = step_metrics(live_run.trace)
    assert [cost.gpu_seconds for cost in live_run.costs] == pytest.approx(sums["gpu_seconds"].tolist())
    assert [cost.idle_gpu_seconds for cost in live_run.costs] == pytest.approx(sums["idle_gpu_seconds"].tolist())
    if profile.startswith("cpu"):
        assert live_run.table["cost_usd"].isna().all()
    else:
        assert live_run.table["cost_usd"].tolist() == pytest.approx(sums["cost_usd"].tolist())
        assert (live_run.table["cost_usd"] > 0).all()
