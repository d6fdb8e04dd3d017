"""Callbacks that log a run's metrics to TensorBoard, Weights & Biases, trackio, or a file of JSON lines.

Each imports its own library when it is made. A resumed run continues the same log. Steps that it repeats, because an interrupt
or a kill undid them, replace those of the log in TensorBoard and in JSON lines. Weights & Biases keeps the first values of a
step and ignores later ones: its rewind is a preview that it enables for some accounts. trackio has no way back, and keeps both.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlhfless.errors import InputError, MissingExtra, missing_extra
from rlhfless.trace.storage import write_text
from rlhfless.training.callbacks import Callback
from rlhfless.training.step_result import TrainedStep, evaluation_metrics
from solver.model.errors import as_given

BEFORE = -1
"""Number of a step under which the evaluation before the first one is logged."""
LOGGERS = ("tensorboard", "wandb", "trackio", "jsonl")


class MetricLog(Callback):
    """Base class of loggers: calls ``_go_on_at`` before ``_write`` wherever steps do not follow each other."""

    _next_step: int | None = None

    def on_step(self, trainer: Any, step: TrainedStep) -> None:
        """Log the step. The first one of a trainer, and the first one that is repeated, begin a new part of the log."""
        if step.step != self._next_step:
            self._go_on_at(step, trainer)
        if step.baseline:
            self._write(BEFORE, evaluation_metrics(step.baseline))
        self._write(step.step, step.metrics)
        self._next_step = step.step + 1

    def _go_on_at(self, step: TrainedStep, trainer: Any) -> None:
        """Open the log; what it has of this step and of later ones was undone."""

    def _write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write metrics at a step's number, or at ``BEFORE``."""
        raise NotImplementedError


class TensorBoard(MetricLog):
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

    def _go_on_at(self, step: TrainedStep, trainer: Any) -> None:
        """Begin an event file that hides this step and later ones of earlier files."""
        self.on_end(trainer)
        self._writer = self._open(purge_step=step.step)

    def _write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one scalar per metric, and flush."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def on_end(self, trainer: Any) -> None:
        """Close the writer, if it was opened."""
        if self._writer is not None:
            self._writer.close()


class ExperimentTracker(MetricLog):
    """Logs metrics to Weights & Biases or to trackio, which has the same interface.

    The remote run has the run's own id from ``meta.json``. So a resumed run continues the same remote run, and no other run
    does, whatever its folder is called. The library decides what it shows of a step that is repeated (header of this file).

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

    def _go_on_at(self, step: TrainedStep, trainer: Any) -> None:
        """Start the remote run, or continue it, unless this was done."""
        if not self._began:
            run_id = step.meta["run_id"]
            identity = {"name": self._name, "id": run_id} if self._knows_ids else {"name": f"{self._name}-{run_id}"}
            self._library.init(project=self._project, config=trainer.config.to_dict(), resume="allow", **identity)
            self._began = True

    def _write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log all metrics; the remote run begins with step 0, so what comes before it is left out."""
        if step != BEFORE:
            self._library.log(dict(metrics), step=step)

    def on_end(self, trainer: Any) -> None:
        """Finish the remote run, if it was started."""
        if self._began:
            self._library.finish()


class JsonLines(MetricLog):
    """Writes a JSON object per step as a line of a file: ``step``, and all metrics by name. NaN and infinities become null.

    The evaluation before the first step, if there is one, is a line of step -1.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def _go_on_at(self, step: TrainedStep, trainer: Any) -> None:
        """Remove this step and later ones, and a line that a kill left unfinished."""
        if self._path.exists():
            lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
            write_text(self._path, "".join(line for line in lines if step.step > 0 and _is_before(line, step.step)))

    def _write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line."""
        numbers = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **numbers}) + "\n")


def _is_before(line: str, step: int) -> bool:
    """Return whether a line of JSON is of an earlier step; a line that is incomplete is of none."""
    try:
        return int(json.loads(line)["step"]) < step
    except (ValueError, TypeError, KeyError):
        return False


def as_callbacks(given: Callback | str | Sequence[Callback | str], folder: Path | None) -> list[Callback]:
    """Return the callbacks of a run, in the order in which they are given, with loggers in place of their names.

    Args:
        folder: of the run: TensorBoard is in ``folder/tensorboard``, JSON lines in ``metrics.jsonl``. None: it has none.

    Raises:
        InputError: a name is unknown, or needs a folder, or it is no callback. MissingExtra: a library is not installed.
    """
    made: list[Callback] = []
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    for name in dict.fromkeys(several):
        if not isinstance(name, str):
            if not all(callable(getattr(name, method, None)) for method in ("on_step", "on_end")):
                raise InputError(
                    f"callbacks has {as_given(name)}; a Callback with on_step and on_end, or the name of a logger is needed: "
                    f"{', '.join(LOGGERS)}"
                )
            made.append(name)
            continue
        if name not in LOGGERS:
            raise InputError(f"logger {name!r} is unknown; choose from {', '.join(LOGGERS)}")
        if folder is None:
            raise InputError(f"logger {name!r} needs the folder of the run; give folder=FOLDER")
        if name == "tensorboard":
            made.append(TensorBoard(folder / "tensorboard"))
        elif name == "jsonl":
            made.append(JsonLines(folder / "metrics.jsonl"))
        else:
            made.append(ExperimentTracker(name, "rlhfless", folder.resolve().name))
    return made
