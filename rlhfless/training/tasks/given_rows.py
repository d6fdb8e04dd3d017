"""A data set that a user passes to the trainer: its rows, a run over all of them, and its task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rlhfless.trace.limits import Limits
from rlhfless.training.config import TrainConfig, TrainError
from rlhfless.training.problem import Task, TextTokenizer
from rlhfless.training.tasks.dataset import DatasetTask
from rlhfless.training.tasks.rows import Rows, read_rows

PROMPTS_PER_STEP = 32


class GivenRows(NamedTuple):
    """Rows of a data set, and its name in traces."""

    name: str
    rows: Rows


def read_given(dataset: Any, limits: Limits | None = None) -> GivenRows:
    """Return the rows of a data set; see ``read_rows`` for what it may be.

    Raises:
        InputError: it cannot be read, or is empty.
        TraceError: a parquet file is damaged, or a file is larger than the limits.
        MissingExtra: it is on the hub and ``datasets`` is not installed.
    """
    return GivenRows(*read_rows(dataset, limits=limits))


def run_over(config: TrainConfig | None, task: Task | None, dataset: Any) -> tuple[TrainConfig, GivenRows | None]:
    """Return the configuration of a run and the rows of its data set, None without one.

    Without a configuration the run has the default options, and visits all whole steps of the rows.

    Raises:
        TrainError: both a task and a data set are given. InputError, TraceError, MissingExtra: see ``read_given``.
    """
    if dataset is None:
        return config or TrainConfig(), None
    if task is not None:
        raise TrainError("task and dataset are given together; choose one of them")
    given = read_given(dataset, None if config is None else config.task.limits)
    per_step = min(PROMPTS_PER_STEP, len(given.rows))
    return config or TrainConfig.from_options(prompts=len(given.rows) // per_step * per_step, prompts_per_step=per_step), given


def task_of(
    given: GivenRows, tokenizer: TextTokenizer, *, seed: int, prompts: int, rewarded: bool, columns: Mapping[str, Any]
) -> DatasetTask:
    """Return the task of a data set.

    Args:
        rewarded: rewards were given; then rows without the column ``answer`` are accepted. columns: options of ``DatasetTask``.

    Raises:
        InputError: see ``DatasetTask``.
    """
    options = dict(columns)
    if rewarded and "answer_column" not in options and not any("answer" in row for row in given.rows):
        options["answer_column"] = None
    return DatasetTask(given.rows, tokenizer, seed=seed, prompts=prompts, name=given.name, **options)
