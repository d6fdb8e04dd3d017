"""What reward functions of a batch get beside responses, as in TRL: the state of the run, and ways to log columns and numbers.

An ``async def`` is awaited in an event loop of the rewards' own, beside which a notebook's may run.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TrainerState:
    """How far a run is, with the names of transformers: reward functions get it as ``trainer_state``.

    Attributes:
        global_step: complete steps. max_steps: steps of the whole run. epoch: epochs that are over, with their parts.
    """

    global_step: int = 0
    max_steps: int = 0
    epoch: float = 0.0


@dataclass
class RewardLog:
    """What reward functions logged of some responses.

    Attributes:
        responses: their number. columns: texts of each response, by the column's name. numbers: by name, of every call.
    """

    responses: int
    columns: dict[str, list[str | None]] = field(default_factory=dict)
    numbers: dict[str, list[float]] = field(default_factory=dict)

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Log a value of each response, which becomes a column of the trace's rollouts, as text.

        Raises:
            ValueError: there is not a value per response.
        """
        texts = [None if value is None else str(value) for value in values]
        if len(texts) != self.responses:
            raise ValueError(
                f"log_extra({column!r}, ...) has {len(texts)} values; one per completion is needed, {self.responses}"
            )
        self.columns[str(column)] = texts

    def log_metric(self, name: str, value: Any) -> None:
        """Log a number, whose mean over a step's calls is among the step's metrics."""
        self.numbers.setdefault(str(name), []).append(float(value))

    def add(self, other: RewardLog) -> None:
        """Take over what was logged of the same responses elsewhere."""
        self.columns.update(other.columns)
        for name, values in other.numbers.items():
            self.numbers.setdefault(name, []).extend(values)

    @classmethod
    def joined(cls, logs: Sequence[RewardLog]) -> RewardLog:
        """Return the logs of groups of responses as that of all; a group that lacks a column has no values in it."""
        whole = cls(sum(log.responses for log in logs))
        for name in dict.fromkeys(name for log in logs for name in log.columns):
            whole.columns[name] = [text for log in logs for text in log.columns.get(name, [None] * log.responses)]
        for log in logs:
            whole.add(cls(log.responses, {}, log.numbers))
        return whole

    def metrics(self) -> dict[str, float]:
        """Return the mean of every number."""
        return {name: float(np.mean(values)) for name, values in self.numbers.items()}


class EventLoop:
    """An event loop in a thread of its own, which begins with the first use."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begins = threading.Lock()

    def run(self, coroutines: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        """Run coroutines at once, wait for all, and return their results; the first that failed raises its error."""
        with self._begins:  # parts of a batch are judged side by side
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run_for_ever, args=(self._loop,), name="rewards", daemon=True).start()
        future = asyncio.run_coroutine_threadsafe(_all_of(coroutines), self._loop)
        try:
            results = future.result()
        except BaseException:  # an interrupt, too
            future.cancel()
            raise
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return list(results)

    def close(self) -> None:
        """End the loop; another use would begin a new one."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None


def _run_for_ever(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _all_of(coroutines: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    return await asyncio.gather(*coroutines, return_exceptions=True)
