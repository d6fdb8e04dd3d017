"""Interrupts: whenever they come, the run goes on in the same kernel, or resumed, as if nothing had happened."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pytest
import torch
from training_samples import config, variety

from rlhfless.trace import read_trace
from rlhfless.training import checkpoint, loop, preparation, responses, run_state, step_learning
from rlhfless.training.algorithms import policy_gradient
from rlhfless.training.learner import learner
from rlhfless.training.loop import Trainer
from rlhfless.training.run_state import RunState
from rlhfless.training.tasks.arithmetic import ArithmeticTask

Start: TypeAlias = Callable[..., Trainer]
STEPS = 3
PACKAGE = Path(run_state.__file__).parents[1]
FILES = {
    module.__file__ for module in (checkpoint, policy_gradient, learner, loop, preparation, responses, run_state, step_learning)
} | {str(PACKAGE / "trace" / f"{name}.py") for name in ("io", "storage", "writer")}
"""Where interrupts come: between any two lines of these."""


class Interrupts:
    """Raises KeyboardInterrupt when the lines of ``FILES`` that were executed within it reach one of ``at``.

    ``places`` are the numbers of executed lines by place in the source.
    """

    def __init__(self, at: Iterable[int] = ()) -> None:
        self.at, self.lines, self.came = set(at), 0, 0
        self.places: dict[tuple[str, int], list[int]] = {}

    def __enter__(self) -> Interrupts:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def drawn(self, seed: int, count: int) -> set[int]:
        """Moments of a run that was traced: a file first, then a line, then one of its times, so that short parts are hit."""
        rng, moments = np.random.default_rng(seed), set()
        for _ in range(count):
            file = sorted(FILES)[rng.integers(len(FILES))]
            places = [times for (name, _), times in self.places.items() if name == file]
            moments.add(int(rng.choice(places[rng.integers(len(places))])))
        return moments

    def _call(self, frame: FrameType, event: str, value: Any) -> Any:
        return self._line if frame.f_code.co_filename in FILES else None

    def _line(self, frame: FrameType, event: str, value: Any) -> Any:
        if event == "line":
            self.lines += 1
            self.places.setdefault((frame.f_code.co_filename, frame.f_lineno), []).append(self.lines)
            if self.lines in self.at:
                self.came += 1
                raise KeyboardInterrupt
        return self._line


@pytest.fixture(scope="module")
def start(untrained: Path) -> Iterator[Start]:
    """Makes trainers of one and the same run."""

    def make(folder: Path | None, **options: Any) -> Trainer:
        given = {} if options.get("resume") else {"model": untrained}
        return Trainer(config(steps=STEPS, policy="static"), folder, progress=False, **given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ArithmeticTask, "reward", variety)
        yield make


@pytest.fixture(scope="module")
def whole(start: Start, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, Interrupts]:
    """The run that nobody interrupts, and how many lines it executes."""
    trainer, counted = start(tmp_path_factory.mktemp("whole")), Interrupts()
    go_on(trainer, counted)
    return trainer, counted


def go_on(trainer: Trainer, interrupts: Interrupts) -> None:
    """Run the rest, however often it is interrupted."""
    while trainer.next_step < STEPS:
        try:
            with interrupts:
                trainer.train()
        except KeyboardInterrupt:
            pass


def state(trainer: Trainer) -> list[torch.Tensor]:
    """Weights, and the optimizer's moments and counts."""
    moments = trainer.state.learner.algorithm.optimizer.state_dict()["state"]
    kept = [torch.as_tensor(value) for _, values in sorted(moments.items()) for _, value in sorted(values.items())]
    return [*trainer.model.state_dict().values(), *kept]


def assert_same(trainer: Trainer, undisturbed: Trainer) -> None:
    """The same texts, weights, optimizer and lengths; and the same trace, if one is kept."""
    ours, theirs = state(trainer), state(undisturbed)
    assert len(ours) == len(theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    position, expected = trainer.state.position, undisturbed.state.position
    assert position.clock_s == expected.clock_s
    columns = ["step", "prompt_id", "sample", "response", "reward", "start_s", "end_s"]
    pd.testing.assert_frame_equal(position.history[columns], expected.history[columns], check_dtype=False)
    if trainer.state.writer is not None:
        kept, whole = (read_trace(one.state.writer.folder) for one in (trainer, undisturbed) if one.state.writer)
        assert kept.steps == trainer.state.writer.steps == list(range(STEPS)) == [plan["step"] for plan in kept.plans]
        for name in ("rollouts", "allocations", "spans", "events"):
            ours, theirs = (getattr(one, name).drop(columns="detail", errors="ignore") for one in (kept, whole))
            pd.testing.assert_frame_equal(ours, theirs)  # details tell what things took here
    assert [folder.name for folder in trainer.state.checkpoints.iterdir()] == [f"after-{STEPS:06d}"]


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 2))])
@pytest.mark.parametrize("traced", [True, False])
def test_a_run_interrupted_at_random_moments(
    tmp_path: Path, start: Start, whole: tuple[Trainer, Interrupts], seed: int, traced: bool
) -> None:
    """It has the texts, weights and trace of the one that was not; resuming it finds nothing left to do."""
    undisturbed, counted = whole
    trainer, interrupts = start(tmp_path if traced else None), Interrupts(counted.drawn(seed, 5))
    go_on(trainer, interrupts)
    assert interrupts.came >= 1
    assert_same(trainer, undisturbed)
    if traced:
        assert_same(start(tmp_path, resume=True), undisturbed)


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("counts", [True, False])
def test_an_interrupt_on_the_way_back(
    tmp_path: Path, start: Start, whole: tuple[Trainer, Interrupts], monkeypatch: pytest.MonkeyPatch, traced: bool, counts: bool
) -> None:
    """Ctrl-C twice: in the commit, before or after the step counts, and while the last state is read again."""
    trainer, commit, load = start(tmp_path if traced else None), RunState.commit, run_state.load_checkpoint

    def interrupted_commit(kept: RunState, *step: Any) -> None:
        if counts:
            commit(kept, *step)
        raise KeyboardInterrupt

    def interrupted_load(*where: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunState, "commit", interrupted_commit)
        patch.setattr(run_state, "load_checkpoint", interrupted_load)
        with pytest.raises(KeyboardInterrupt):
            trainer.step()
    assert run_state.load_checkpoint is load
    trainer.step()
    assert trainer.next_step == 1 + counts
    go_on(trainer, Interrupts())
    assert_same(trainer, whole[0])


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
def test_an_interrupt_while_a_checkpoint_is_written(
    tmp_path: Path, start: Start, whole: tuple[Trainer, Interrupts], monkeypatch: pytest.MonkeyPatch, traced: bool, file: str
) -> None:
    """The step does not count, though its weights were there already."""
    trainer, save = start(tmp_path if traced else None), learner.save_file
    trainer.step()

    def interrupted_save(tensors: Any, path: Path) -> None:
        save(tensors, path)
        if path.name == file:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(learner, "save_file", interrupted_save)
        with pytest.raises(KeyboardInterrupt):
            trainer.step()
    assert trainer.next_step == 1
    go_on(trainer, Interrupts())
    assert_same(trainer, whole[0])


def test_a_run_interrupted_before_it_began_can_be_started_anew(
    tmp_path: Path, start: Start, whole: tuple[Trainer, Interrupts], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    for name in ("save_checkpoint", "save_model", "TraceWriter"):
        with monkeypatch.context() as patch:
            patch.setattr(run_state, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                start(tmp_path)
    trainer = start(tmp_path)
    go_on(trainer, Interrupts())
    assert_same(trainer, whole[0])


def test_without_a_folder_nothing_stays_on_the_disk(start: Start) -> None:
    trainer = start(None)
    folder = trainer.state.checkpoints
    assert folder.is_dir()
    del trainer
    gc.collect()
    assert not folder.exists()
