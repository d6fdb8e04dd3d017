"""Reads a learner's checkpoint files: JSON, and tensors by name, one at a time; damaged files are one sentence."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhfless.errors import reason
from rlhfless.training import missing_torch

try:
    from safetensors import SafetensorError, safe_open
    from torch import Tensor
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.config import TrainError


class TensorFile:
    """The tensors of a safetensors file, read when they are asked for.

    Attributes:
        path: of the file. shapes: of its tensors, by name.

    Raises:
        TrainError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        opener: Any = safe_open  # typed calls of it are refused
        with self._read():
            self._file = opener(path, framework="pt")
            self.shapes = {name: tuple(self._file.get_slice(name).get_shape()) for name in self._file.keys()}  # noqa: SIM118

    def get(self, name: str) -> Tensor:
        """Return a tensor."""
        with self._read():
            tensor: Tensor = self._file.get_tensor(name)
            return tensor

    @contextlib.contextmanager
    def _read(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, SafetensorError) as error:
            raise TrainError(f"{self.path}: cannot be read ({error}); restore the file, or start a new run") from error


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        TrainError: it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrainError(f"{path}: cannot be read ({error}); restore the file, or start a new run") from error


@contextlib.contextmanager
def as_written(path: Path) -> Iterator[None]:
    """Context for using a checkpoint file's content: what no learner wrote becomes a ``TrainError``."""
    try:
        yield
    except TrainError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TrainError(f"{path}: is damaged ({reason(error)}); restore the file, or start a new run") from error
