"""Callbacks that log a run's metrics to TensorBoard, Weights & Biases, trackio, or a file of JSON lines.

Each imports its own library when it is made. A resumed run appends to the same log.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlhfless.errors import InputError, MissingExtra, missing_extra
from rlhfless.training.callbacks import Callback
from rlhfless.training.step_result import TrainedStep

LOGGERS = ("tensorboard", "wandb", "trackio", "jsonl")


class TensorBoard(Callback):
    """Logs metrics as TensorBoard scalars in ``folder``.

    Raises:
        MissingExtra: the package ``tensorboard`` is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise missing_extra("logging to TensorBoard", "tensorboard", "loggers") from None
        self._open = partial(SummaryWriter, str(folder))
        self._writer: Any = None  # made with the first step: before it nothing is written

    def on_step(self, trainer: Any, step: TrainedStep) -> None:
        """Write one scalar per metric at the step's number, and flush."""
        self._writer = self._writer or self._open()
        for name, value in step.metrics.items():
            self._writer.add_scalar(name, value, step.step)
        self._writer.flush()

    def on_end(self, trainer: Any) -> None:
        """Close the writer, if it was opened."""
        if self._writer is not None:
            self._writer.close()


class ExperimentTracker(Callback):
    """Logs metrics to Weights & Biases or to trackio, which has the same interface.

    The remote run has the run's own id from ``meta.json``. So a resumed run continues the same remote run, and no other run
    does, whatever its folder is called.

    Args:
        library: ``wandb`` or ``trackio``. project: name of the remote project. name: display name of the remote run.

    Raises:
        MissingExtra: the library is not installed.
    """

    def __init__(self, library: str, project: str, name: str) -> None:
        try:
            self._library: Any = importlib.import_module(library)
        except ImportError:
            raise MissingExtra(f"logging to {library} needs {library}, which is not installed: pip install {library}") from None
        self._knows_ids = library == "wandb"  # trackio finds a run again by its name
        self._project, self._name = project, name
        self._began = False

    def on_step(self, trainer: Any, step: TrainedStep) -> None:
        """Log all metrics at the step's number; the first call starts the remote run, or continues it."""
        if not self._began:
            run_id = step.meta["run_id"]
            identity = {"name": self._name, "id": run_id} if self._knows_ids else {"name": f"{self._name}-{run_id}"}
            self._library.init(project=self._project, config=trainer.config.to_options(), resume="allow", **identity)
            self._began = True
        self._library.log(step.metrics, step=step.step)

    def on_end(self, trainer: Any) -> None:
        """Finish the remote run, if it was started."""
        if self._began:
            self._library.finish()


class JsonLines(Callback):
    """Appends one JSON object per step to a file; NaN and infinities become null."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def on_step(self, trainer: Any, step: TrainedStep) -> None:
        """Append one line: ``step`` and all metrics by name."""
        numbers = {name: value if value == value else None for name, value in step.metrics.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step.step, **numbers}) + "\n")


def make_loggers(names: Sequence[str], folder: str | Path) -> list[Callback]:
    """Return the named loggers of a run in ``folder``: TensorBoard in ``folder/tensorboard``, JSON lines in ``metrics.jsonl``.

    Raises:
        InputError: a name is unknown. MissingExtra: a library is not installed.
    """
    made: list[Callback] = []
    folder = Path(folder)
    for name in dict.fromkeys(names):
        if name not in LOGGERS:
            raise InputError(f"logger {name!r} is unknown; choose from {', '.join(LOGGERS)}")
        if name == "tensorboard":
            made.append(TensorBoard(folder / "tensorboard"))
        elif name == "jsonl":
            made.append(JsonLines(folder / "metrics.jsonl"))
        else:
            made.append(ExperimentTracker(name, "rlhfless", folder.resolve().name))
    return made
