"""A process of a reward function: judges responses, one by one or in batches, until its pipe ends.

The function comes from a user's file or from a format's regular expression. Answers are numbers, or the reason why there are
none.
"""

from __future__ import annotations

import importlib.util
import random
import sys
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from rlhfless.errors import InputError
from rlhfless.system.child import serve
from rlhfless.training.rewards.called_with import RewardLog, TrainerState
from rlhfless.training.rewards.calling import FORMS, Refused, call_batch, takes_batch
from rlhfless.training.rewards.response import Response, number_of, reason_of
from rlhfless.training.rewards.rules import matches

MODULE = "rlhfless_reward_file"
Result = TypeVar("Result")


def main(pipe: Connection, *work: str) -> None:
    """Run the process until its pipe ends."""
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]  # what a function prints is seen, however it ends
    serve(pipe, lambda: Judge(*work))


class Judge:
    """The function of a process, which parents call; see ``FunctionProcesses``."""

    def __init__(self, kind: str, *arguments: str) -> None:
        self._function = make_function(kind, *arguments)
        self.ready = takes_batch(self._function, ":".join(arguments))

    def judge(self, seed: int, problem: Mapping[str, Any], *response: Any) -> float:
        """Return the number of a response, with random streams of this seed.

        Raises:
            Refused: there is none.
        """
        return self._refused(seed, lambda: number_of(self._function(Response(SimpleNamespace(**problem), *response))))

    def judge_batch(
        self, seed: int, arguments: Mapping[str, list[Any]], count: int, state: TrainerState
    ) -> tuple[list[float | str], dict[str, list[str | None]], dict[str, list[float]]]:
        """Return the numbers of a batch, or reasons, and the columns and numbers that the function logged.

        Raises:
            Refused: the function failed.
        """
        log = RewardLog(count)
        return self._refused(seed, lambda: (call_batch(self._function, arguments, count, state, log), log.columns, log.numbers))

    def _refused(self, seed: int, call: Callable[[], Result]) -> Result:
        _seed(seed)
        try:
            return call()
        except Refused:
            raise
        except BaseException as error:  # a function that exits says so of this response only
            raise Refused(reason_of(error, _place(error))) from None


def make_function(kind: str, *arguments: str) -> Callable[..., Any]:
    """Return ``("format", REGEX)`` or ``("file", FILE, NAME)`` as a function.

    Raises:
        InputError: the regular expression is invalid, or the file cannot be loaded or lacks the function.
    """
    return matches(*arguments) if kind == "format" else _from_file(*arguments)


def _from_file(path: str, name: str) -> Callable[..., Any]:
    """Return a function of a user's file."""
    if not Path(path).is_file():
        raise InputError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # a file that exits, too
        raise InputError(f"{path}: cannot be loaded: {type(error).__name__}: {error}") from error
    function: Any = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{path}: has no function {name!r}; a reward is a function {FORMS}")
    return function  # type: ignore[no-any-return]


def _place(error: BaseException) -> str:
    """Return where in the user's file an exception was raised, in brackets; the empty text if it was raised elsewhere."""
    file = str(getattr(sys.modules.get(MODULE), "__file__", ""))
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" ({Path(file).name}, line {lines[-1]})" if lines else ""


def _seed(seed: int) -> None:
    """Seed the random streams that a function may use, so that draws do not depend on earlier responses."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (the stream that others draw from)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
