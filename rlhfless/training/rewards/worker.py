"""Main function of a reward function's process: judges responses, one by one or in batches, until its pipe ends.

The function comes from a user's file or from a format's regular expression. Answers are JSON: numbers, or the reason why there
are none.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
import random
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from rlhfless.errors import InputError
from rlhfless.system.parent_death import die_with_parent
from rlhfless.training.rewards.called_with import RewardLog
from rlhfless.training.rewards.process import READY, REASON, RESULT, Refused
from rlhfless.training.rewards.response import Response, number_of
from rlhfless.training.rewards.rules import matches
from rlhfless.training.rewards.user_function import FORMS, call_batch, takes_batch

MODULE = "rlhfless_reward_file"


def main(handle: int) -> None:
    """Run the process: the first message names the function, every further one is a response or a batch of them.

    Args:
        handle: the pipe's.
    """
    die_with_parent()
    connection = Connection(handle)
    try:
        try:
            kind, *arguments = json.loads(connection.recv_bytes())
            function = make_function(kind, *arguments)
            batch = takes_batch(function, ":".join(arguments))
        except InputError as error:
            _say(connection, REASON, str(error))
            return
        _say(connection, READY, batch)
        while True:
            _say(connection, *_judged(function, batch, connection.recv_bytes()))
    except (EOFError, OSError):
        return  # the other side is gone


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


def _judged(function: Callable[..., Any], batch: bool, job: bytes) -> tuple[str, Any]:
    """Return the number of a response or the numbers of a batch, or the reason why there is none; ``job`` is what
    ``FunctionProcess`` packs.
    """
    try:
        seed, first, *rest = pickle.loads(job)
        _seed(seed)
        if batch:
            count, state = rest
            log = RewardLog(count)
            return RESULT, [call_batch(function, first, count, state, log), log.columns, log.numbers]
        return RESULT, number_of(function(Response(SimpleNamespace(**first), *rest)))
    except Refused as error:
        return REASON, str(error)
    except BaseException as error:  # a function that exits says so of this response only
        return REASON, f"{type(error).__name__}: {error}{_place(error)}"


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


def _say(connection: Connection, kind: str, what: Any) -> None:
    connection.send_bytes(json.dumps([kind, what]).encode())
