"""Where metrics can be written: TensorBoard, Weights & Biases, trackio, or a file of JSON lines; each by its own library.

Knows ``TrainedStep.metrics``; nothing of what the numbers mean. A run that is resumed goes on in the same place.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhfless.errors import InputError, MissingExtra, missing_extra
from rlhfless.training.callbacks import Callback
from rlhfless.training.trained_step import TrainedStep

LOGGERS = ("tensorboard", "wandb", "trackio", "jsonl")


class TensorBoard(Callback):
    """Scalars for TensorBoard, in ``folder``.

    Args:
        next_step: the first step that will be told; what an earlier process wrote of it and later ones is hidden.

    Raises:
        MissingExtra: the package ``tensorboard`` is not installed.
    """

    def __init__(self, folder: str | Path, next_step: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise missing_extra("logging to TensorBoard", "tensorboard", "loggers") from None
        self._writer: Any = SummaryWriter(str(folder), purge_step=next_step)

    def on_step(self, trainer: Any, step: TrainedStep) -> None:
        for name, value in step.metrics.items():
            self._writer.add_scalar(name, value, step.step)
        self._writer.flush()

    def on_end(self, trainer: Any) -> None:
        self._writer.close()


class Tracked(Callback):
    """A run of Weights & Biases or of trackio, which took over its interface.

    Args:
        library: ``wandb`` or ``trackio``. project, name: of the run there. config: what it was started with.

    Raises:
        MissingExtra: the library is not installed.
    """

    def __init__(self, library: str, project: str, name: str, config: Mapping[str, Any]) -> None:
        try:
            self._library: Any = importlib.import_module(library)
        except ImportError:
            raise MissingExtra(f"logging to {library} needs {library}, which is not installed: pip install {library}") from None
        given = {"id": name} if library == "wandb" else {}  # trackio finds a run again by its name
        self._library.init(project=project, name=name, config=dict(config), resume="allow", **given)

    def on_step(self, trainer: Any, step: TrainedStep) -> None:
        self._library.log(step.metrics, step=step.step)

    def on_end(self, trainer: Any) -> None:
        self._library.finish()


class JsonLines(Callback):
    """One JSON object per step, appended to a file; numbers that are none are null."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def on_step(self, trainer: Any, step: TrainedStep) -> None:
        numbers = {name: value if value == value else None for name, value in step.metrics.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step.step, **numbers}) + "\n")


def make_loggers(names: Sequence[str], folder: str | Path, config: Mapping[str, Any], next_step: int = 0) -> list[Callback]:
    """The loggers called so, for a run in ``folder``: TensorBoard in its ``tensorboard``, JSON lines in ``metrics.jsonl``.

    Raises:
        InputError: a name is unknown. MissingExtra: a library is not installed.
    """
    made: list[Callback] = []
    folder = Path(folder)
    for name in dict.fromkeys(names):
        if name not in LOGGERS:
            raise InputError(f"logger {name!r} is unknown; choose from {', '.join(LOGGERS)}")
        if name == "tensorboard":
            made.append(TensorBoard(folder / "tensorboard", next_step))
        elif name == "jsonl":
            made.append(JsonLines(folder / "metrics.jsonl"))
        else:
            made.append(Tracked(name, "rlhfless", folder.resolve().name, config))
    return made
