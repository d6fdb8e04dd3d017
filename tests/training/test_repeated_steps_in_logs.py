"""Logs of metrics show a step once, also one that an interrupt or a kill undid and that the run repeated."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
from training_samples import config

from rlhfless.training import run_state
from rlhfless.training.loggers import as_callbacks
from rlhfless.training.loop import Trainer

Rewards: TypeAlias = list[tuple[int, float]]
Read: TypeAlias = Callable[[Path], Rewards]


def of_tensorboard(folder: Path) -> Rewards:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    return [(scalar.step, scalar.value) for scalar in read.Scalars("reward_mean")]


def of_json_lines(folder: Path) -> Rewards:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(line["step"], line["reward_mean"]) for line in lines]


@pytest.fixture(params=["tensorboard", "jsonl"])
def log(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Read]:
    """The name of a logger, and what reads the mean rewards of its steps."""
    if request.param == "jsonl":
        return "jsonl", of_json_lines
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'rlhfless[loggers]'")
    from tensorboard.summary.writer import event_file_writer

    # TensorBoard reads files in the order of their names, which begin with the second of their start: no two are of the same
    seconds = itertools.count(1_700_000_000)
    monkeypatch.setattr(event_file_writer, "time", SimpleNamespace(time=lambda: next(seconds)))
    return "tensorboard", of_tensorboard


def trainer(folder: Path, log: str, **options: Any) -> Trainer:
    """A run of three steps whose only checkpoint on the way is the one before the first."""
    given = {"callbacks": as_callbacks([log], folder), "progress": False, **options}
    return Trainer(config(steps=3, save_every=50, policy="static"), folder, **given)


def mean_rewards(run: Trainer) -> list[tuple[int, Any]]:
    """The mean rewards of the run's steps, which its trace has."""
    means = run.state.position.history.groupby("step")["reward"].mean()
    return [(step, pytest.approx(mean)) for step, mean in means.items()]


def test_a_resumed_run_shows_the_steps_once_that_a_kill_undid(tmp_path: Path, model: Path, log: tuple[str, Read]) -> None:
    name, read = log
    killed = trainer(tmp_path, name, model=model)
    first = [killed.step().mean_reward for _ in range(2)]
    assert read(tmp_path) == [(0, pytest.approx(first[0])), (1, pytest.approx(first[1]))]
    with trainer(tmp_path, name, resume=True) as resumed:
        assert resumed.next_step == 0, "nothing was saved since the run began"
        resumed.step()
        assert read(tmp_path) == [(0, pytest.approx(first[0]))], "what is not repeated yet is not shown"
        resumed.train()
        assert read(tmp_path) == mean_rewards(resumed)
    assert [step for step, _ in read(tmp_path)] == [0, 1, 2]


def test_a_run_that_goes_on_after_an_interrupt_shows_the_undone_steps_once(
    tmp_path: Path, model: Path, log: tuple[str, Read], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same kernel, with the same loggers."""
    name, read = log

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with trainer(tmp_path, name, model=model) as run:
        run.step(), run.step()
        with monkeypatch.context() as patch:
            patch.setattr(run_state.RunState, "commit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run.step()
        assert run.next_step == 0
        run.train()
        assert read(tmp_path) == mean_rewards(run)
    assert [step for step, _ in read(tmp_path)] == [0, 1, 2]


def test_a_run_that_undid_nothing_keeps_all_that_was_logged(tmp_path: Path, model: Path, log: tuple[str, Read]) -> None:
    name, read = log
    with trainer(tmp_path, name, model=model) as run:
        first = [run.step().mean_reward for _ in range(2)]
    with trainer(tmp_path, name, resume=True) as resumed:
        last = resumed.step().mean_reward
    assert read(tmp_path) == [(step, pytest.approx(reward)) for step, reward in enumerate([*first, last])]


def test_a_line_that_a_kill_left_unfinished_goes(tmp_path: Path, model: Path) -> None:
    with trainer(tmp_path, "jsonl", model=model) as run:
        run.step()
    metrics = tmp_path / "metrics.jsonl"
    whole = metrics.read_text(encoding="utf-8")
    metrics.write_text(whole + whole[: len(whole) // 2], encoding="utf-8")
    with trainer(tmp_path, "jsonl", resume=True) as resumed:
        resumed.step()
    assert [step for step, _ in of_json_lines(tmp_path)] == [0, 1]


def test_json_lines_have_null_for_what_is_no_number(tmp_path: Path) -> None:
    """Infinities are no JSON, either."""
    (logger,) = as_callbacks(["jsonl"], tmp_path)
    numbers = {"a": 1.0, "b": math.nan, "c": math.inf, "d": -math.inf}
    logger.on_step(None, SimpleNamespace(step=0, baseline={}, metrics=numbers))  # type: ignore[arg-type]

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    line = json.loads((tmp_path / "metrics.jsonl").read_text(encoding="utf-8"), parse_constant=refuse)
    assert line == {"step": 0, "a": 1.0, "b": None, "c": None, "d": None}


def test_the_cost_is_unknown_in_a_log_of_gpus_without_a_price(tmp_path: Path, model: Path) -> None:
    """As those of the machine at hand are; NaN is null in JSON lines."""
    with trainer(tmp_path, "jsonl", model=model) as run:
        step = run.step()
    (line,) = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert math.isnan(step.metrics["cost_usd"])
    assert line["cost_usd"] is None
    assert line["gpu_seconds"] == step.metrics["gpu_seconds"] > 0
