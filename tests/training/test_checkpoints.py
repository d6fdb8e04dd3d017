"""Checkpoints every few steps: a run that is killed, interrupted or taken back ends as the run that nobody disturbed."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from error_messages import refused, warned
from training_samples import config, variety

from rlhfless.trace import TraceError, TraceWriter, read_trace
from rlhfless.training.checkpoint import save_checkpoint, saved_steps
from rlhfless.training.config import LearnerError, TrainError, UnsavedWarning
from rlhfless.training.loop import Trainer
from rlhfless.training.run_state import RunState
from rlhfless.training.tasks.arithmetic import ArithmeticTask

STEPS = 5


@pytest.fixture(autouse=True)
def _rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArithmeticTask, "reward", variety)


def run(folder: Path | None, model: Path, until: int = STEPS, **options: Any) -> Trainer:
    """A run of so many steps in all; it is not closed, as if it had been killed."""
    resume = options.pop("resume", False)
    given = {"steps": STEPS, "policy": "static", "save_every": 2, "save_total_limit": 9, **options}
    trainer = Trainer(config(**given), folder, model=None if resume is not False else model, resume=resume, progress=False)
    while trainer.next_step < until:
        trainer.step()
    return trainer


@pytest.fixture(scope="module")
def whole(untrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ArithmeticTask, "reward", variety)
        run(folder, untrained).close()
    return folder


def assert_same(folder: Path, whole: Path) -> None:
    """The same trace, and the same learner after the last step."""
    ours, theirs = read_trace(folder), read_trace(whole)
    assert ours.steps == theirs.steps == list(range(STEPS)) == [plan["step"] for plan in ours.plans]
    for table in ("rollouts", "allocations", "events"):
        pd.testing.assert_frame_equal(getattr(ours, table), getattr(theirs, table))
    last = Path("checkpoints") / f"after-{STEPS:06d}"
    for file in (whole / last).iterdir():
        assert (folder / last / file.name).read_bytes() == file.read_bytes(), file.name


def test_they_are_written_every_few_steps_and_after_the_last(whole: Path) -> None:
    assert saved_steps(whole / "checkpoints") == [0, 2, 4, 5]


def test_a_killed_run_repeats_the_steps_since_the_last_one(whole: Path, untrained: Path, tmp_path: Path) -> None:
    run(tmp_path / "run", untrained, until=4)
    killed = tmp_path / "run"
    shutil.rmtree(killed / "checkpoints" / "after-000004")
    again = run(killed, untrained, until=2, resume=True)
    assert (again.next_step, read_trace(killed).steps, saved_steps(killed / "checkpoints")) == (2, [0, 1], [0, 2])
    run(killed, untrained, resume=True).close()
    assert_same(killed, whole)


@pytest.mark.full
@pytest.mark.parametrize("closed", [True, False])
def test_a_run_is_resumed_from_any_of_them(whole: Path, untrained: Path, tmp_path: Path, closed: bool) -> None:
    """Whether the steps after it are in the trace's tables already or in folders of their own."""
    folder = tmp_path / "run"
    trainer = run(folder, untrained)
    if closed:
        trainer.close()
    with refused(TrainError, str(folder), "3", "[0, 2, 4, 5]"):
        run(folder, untrained, resume=3)
    assert read_trace(folder).steps == list(range(STEPS)), "nothing is removed before it is refused"
    assert run(folder, untrained, until=2, resume=2).next_step == 2
    assert read_trace(folder).steps == [0, 1]
    run(folder, untrained, resume=True).close()
    assert_same(folder, whole)


def test_a_run_that_is_closed_early_has_one_of_its_last_step(whole: Path, untrained: Path, tmp_path: Path) -> None:
    run(tmp_path / "run", untrained, until=3, save_total_limit=1).close()
    assert saved_steps(tmp_path / "run" / "checkpoints") == [3]
    run(tmp_path / "run", untrained, resume=True).close()
    assert_same(tmp_path / "run", whole)


@pytest.mark.parametrize("traced", [True, False])
def test_an_interrupt_takes_back_what_has_none(
    whole: Path, untrained: Path, tmp_path: Path, traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = run(tmp_path / "run" if traced else None, untrained, until=3)
    clock_s = float(read_trace(whole).allocations.query("step < 2")["end_s"].max())

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunState, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trainer.step()
    position = trainer.state.position
    assert (position.next_step, position.clock_s, sorted(set(position.history["step"]))) == (2, clock_s, [0, 1])
    while trainer.next_step < STEPS:
        trainer.step()
    trainer.close()
    if traced:
        assert_same(tmp_path / "run", whole)


def test_a_process_killed_while_it_removes_steps_leaves_a_trace_without_gaps(
    untrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    run(folder, untrained, until=4)
    renamed, rename = [], os.rename

    def killed(*paths: Any) -> None:
        if renamed:
            raise OSError(5, "killed")
        renamed.append(paths)
        rename(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        with refused(TraceError, str(folder)):
            TraceWriter.resume(folder, 1)
    assert read_trace(folder).steps == [0, 1, 2]
    assert TraceWriter.resume(folder, 1).steps == [0]
    assert TraceWriter.resume(folder, 0).steps == []


def test_steps_are_removed_from_the_tables_of_a_closed_trace(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    for _ in range(2):
        assert TraceWriter.resume(folder, 4).steps == [0, 1, 2, 3]
        trace = read_trace(folder)
        assert [plan["step"] for plan in trace.plans] == trace.steps == sorted(set(trace.rollouts["step"])) == [0, 1, 2, 3]


@pytest.mark.parametrize("left_of", [3, STEPS], ids=["a step that is repeated", "a later step"])
def test_what_a_kill_leaves_of_a_checkpoint_is_no_checkpoint(
    left_of: int, untrained: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its files may be written already: it was killed just before the folder got its name."""
    folder = tmp_path / "run"
    stopped = run(folder, untrained, 2)

    class Killed(BaseException):
        pass

    def killed(draft: Path, target: Path) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(Killed):
            save_checkpoint(folder / "checkpoints", left_of, stopped.state.learner)
    (draft,) = set((folder / "checkpoints").iterdir()) - set((folder / "checkpoints").glob("after-*"))
    assert (draft / "state.json").is_file()
    assert saved_steps(folder / "checkpoints") == [0, 2]
    run(folder, untrained, resume=True).close()
    assert_same(folder, whole)
    assert not draft.exists()


def blocked(folder: Path, steps: int) -> Path:
    """A file where a checkpoint would be prepared, so that it cannot be written."""
    obstacle = folder / "checkpoints" / f".after-{steps:06d}.tmp"
    obstacle.write_text("")
    return obstacle


def test_a_last_checkpoint_that_cannot_be_written_is_reported(whole: Path, untrained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trainer = run(folder, untrained, until=3)
    obstacle = blocked(folder, 3)
    with warned(UnsavedWarning, str(folder), "after-000003", "exists", "step 2", "resume"):
        trainer.close()
    obstacle.unlink()
    with warned(UnsavedWarning, str(folder), "step 2", "after-000002", "save_every"):
        again = run(folder, untrained, until=2, resume=True)
    assert again.next_step == 2
    while again.next_step < STEPS:
        again.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnsavedWarning)
        again.close()
    assert_same(folder, whole)


def test_a_learner_that_cannot_write_the_last_checkpoint_is_reported(
    untrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(folder: Path) -> None:
        raise LearnerError("process 1 of the learner was killed by SIGKILL during 'write'")

    trainer = run(tmp_path / "run", untrained, until=3)
    monkeypatch.setattr(trainer.state.learner, "write", lost)
    with warned(UnsavedWarning, str(tmp_path / "run"), "SIGKILL", "step 2"):
        trainer.close()


def test_tables_that_cannot_be_merged_are_reported_and_read_as_they_are(
    untrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(writer: TraceWriter) -> None:
        raise TraceError(f"{writer.folder}: could not be written (No space left on device)")

    trainer = run(tmp_path / "run", untrained, until=2)
    with monkeypatch.context() as patch:
        patch.setattr(TraceWriter, "close", full)
        with warned(UnsavedWarning, str(tmp_path / "run"), "No space left on device"):
            trainer.close()
    assert read_trace(tmp_path / "run").steps == [0, 1]


@pytest.mark.parametrize("traced", [True, False])
def test_an_interrupt_that_undoes_steps_reports_them(
    untrained: Path, tmp_path: Path, traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = run(tmp_path / "run" if traced else None, untrained, until=3)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunState, "commit", interrupted)
    with warned(UnsavedWarning, "step 2", "after-000002", "save_every"), pytest.raises(KeyboardInterrupt):
        trainer.step()


def test_a_run_that_was_closed_is_resumed_without_a_warning(untrained: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnsavedWarning)
        run(tmp_path / "run", untrained, until=3).close()
        run(tmp_path / "run", untrained, until=4, resume=True).close()
        run(tmp_path / "run", untrained, until=2, resume=2).close()
