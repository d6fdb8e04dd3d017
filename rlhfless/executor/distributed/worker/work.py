"""Runs functions of work items in a process of the pool: the orders, and the answers. It knows no engine."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlhfless.executor.distributed.messages import ItemAnswer


@dataclass(frozen=True)
class StartWork:
    """Order: serve work items. ``origin_s`` is the run's start on the monotonic clock; the weights' version is the step's."""

    origin_s: float
    weights_version: int


@dataclass(frozen=True)
class RunItem:
    """Order: run the function of item ``index``. ``call`` is pickled: the function and its two arguments."""

    index: int
    call: bytes

    @classmethod
    def of(cls, index: int, function: Any, completions: Sequence[Any], results: Sequence[Any]) -> RunItem:
        """Return the order to call ``function`` with these completions and results."""
        return cls(index, pickle.dumps((function, tuple(completions), tuple(results)), pickle.HIGHEST_PROTOCOL))

    def answer(self, now_s: Callable[[], float]) -> ItemAnswer:
        """Run the item's function and return its result, or what it failed with; ``now_s``: seconds since the run's start."""
        start_s = now_s()
        try:
            function, completions, results = pickle.loads(self.call)
            result = pickle.dumps(function(completions, results), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            return ItemAnswer(self.index, start_s, now_s(), error=said, trace=traceback.format_exc())
        return ItemAnswer(self.index, start_s, now_s(), result)
