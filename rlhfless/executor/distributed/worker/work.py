"""Runs functions of work items in a process of the pool: the orders, and the answers. It knows no engine."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlhfless.executor.distributed.messages import LOADED, ActorReport, ItemAnswer
from rlhfless.executor.step.work_items import bytes_of


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


@dataclass(frozen=True)
class LoadWork:
    """Order: call a function with the device; the functions of later items get what it returns. ``call`` is it, pickled."""

    call: bytes

    @classmethod
    def of(cls, function: Any) -> LoadWork:
        """Return the order to call ``function``."""
        return cls(pickle.dumps(function, pickle.HIGHEST_PROTOCOL))


class ServedWork:
    """The server of work in a process on ``device``: what it has loaded."""

    def __init__(self, device: str) -> None:
        self._device, self._loaded = device, tuple[Any, ...]()

    def report(self, order: StartWork | LoadWork | RunItem, up_s: float, now_s: Callable[[], float]) -> ActorReport:
        """Obey an order; return the report that answers it.

        Args:
            up_s: when the process was up. now_s: seconds since the run's start.
        """
        if isinstance(order, StartWork):
            self.forget()
            return ActorReport(now_s(), ready_s=(up_s, now_s()))
        done = self._loads(order, now_s) if isinstance(order, LoadWork) else self._runs(order, now_s)
        return ActorReport(done.end_s, item=done)

    def forget(self) -> None:
        """Drop what was loaded."""
        self._loaded = ()

    def _loads(self, order: LoadWork, now_s: Callable[[], float]) -> ItemAnswer:
        start_s = now_s()
        try:
            self._loaded = (pickle.loads(order.call)(self._device),)
        except Exception as error:
            return _failed(LOADED, start_s, now_s(), error)
        return ItemAnswer(LOADED, start_s, now_s(), value=bytes_of(self._loaded[0]))

    def _runs(self, order: RunItem, now_s: Callable[[], float]) -> ItemAnswer:
        """Run the item's function and return its result, or what it failed with."""
        start_s = now_s()
        try:
            function, completions, results = pickle.loads(order.call)
            result = pickle.dumps(function(completions, results, *self._loaded), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            return _failed(order.index, start_s, now_s(), error)
        return ItemAnswer(order.index, start_s, now_s(), result)


def _failed(index: int, start_s: float, end_s: float, error: Exception) -> ItemAnswer:
    return ItemAnswer(index, start_s, end_s, error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
