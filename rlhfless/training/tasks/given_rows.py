"""A data set that a user passes to the trainer: its rows, a run over all of them, and its task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from rlhfless.training.config import TrainConfig, TrainError
from rlhfless.training.problem import Task
from rlhfless.training.tasks.rows import Rows, read_rows

PROMPTS_PER_STEP = 32


class GivenRows(NamedTuple):
    """Rows of a data set, and its name in traces.

    Attributes:
        sizes_run: whether the number of rows decides how many prompts a run and its steps have, as no configuration does.
    """

    name: str
    rows: Rows
    sizes_run: bool = False


def run_over(config: TrainConfig | None, task: Task | None, dataset: Any) -> tuple[TrainConfig, GivenRows | None]:
    """Return the configuration of a run and the rows of its data set, None without one.

    Without a configuration the run has the default options, and visits all whole steps of the rows.

    Raises:
        TrainError: both a task and a data set are given.
        InputError, TraceError, MissingExtra: see ``read_rows``.
    """
    if dataset is None:
        return config or TrainConfig(), None
    if task is not None:
        raise TrainError("task and dataset are given together; choose one of them")
    name, rows = read_rows(dataset)
    given = GivenRows(name, rows, sizes_run=config is None)
    return config or of_whole_steps(TrainConfig(), min(PROMPTS_PER_STEP, len(rows)), len(rows)), given


def of_whole_steps(config: TrainConfig, per_step: int, prompts: int) -> TrainConfig:
    """Return a configuration with this many prompts per step, and as many whole steps in an epoch as there are prompts for."""
    task, rollout = (
        replace(config.task, prompts=prompts // per_step * per_step),
        replace(config.rollout, prompts_per_step=per_step),
    )
    return replace(config, task=task, rollout=rollout)
