"""``ReadyItems``: which work items of a step may start now, in the list scheduler's order. It knows no servers."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

import numpy as np

from rlhfless.executor.step.work_items import Gpus, WorkItem


class ReadyItems:
    """The items of a step that have not started.

    Args:
        start_s: of the step.

    Attributes:
        unstarted: how many items have not started, by the GPUs that may run them.
    """

    def __init__(self, work: Sequence[WorkItem], start_s: float) -> None:
        self.work = work
        self.unstarted: dict[Gpus, int] = {}
        self._left = [len(set(item.responses)) + len(set(item.items)) for item in work]  # that each still waits for
        self._ready_s = [start_s + item.after_s for item in work]
        self._after_item: dict[int, list[int]] = {}
        self._after_response: dict[int, list[int]] = {}
        for i, item in enumerate(work):
            self.unstarted[item.gpus] = self.unstarted.get(item.gpus, 0) + 1
            for before in set(item.items):
                self._after_item.setdefault(before, []).append(i)
            for response in set(item.responses):
                self._after_response.setdefault(response, []).append(i)
        self._awaited = np.array(sorted(self._after_response), dtype=np.int64)  # responses that are not complete yet
        self._later = [(self._ready_s[i], i) for i, left in enumerate(self._left) if not left]  # that wait for their time only
        heapq.heapify(self._later)
        self._ready: dict[Gpus, list[tuple[float, float, int]]] = {gpus: [] for gpus in self.unstarted}

    def any(self, gpus: Gpus) -> bool:
        """Return whether an item of these GPUs may start."""
        return bool(self._ready[gpus])

    def next_time_s(self) -> float:
        """Return the next time at which an item may start that waits for nothing else."""
        return self._later[0][0] if self._later else math.inf

    def admit(self, now_s: float, complete: np.ndarray, completed_s: Callable[[int], float]) -> None:
        """Take in which responses are complete, and which items' time has come.

        Args:
            complete: (R,) which are. completed_s: when a response was.
        """
        if len(self._awaited):
            done = complete[self._awaited]
            for response in self._awaited[done].tolist():
                self._happened(self._after_response[response], completed_s(response))
            self._awaited = self._awaited[~done]
        while self._later and self._later[0][0] <= now_s:
            self._queue(heapq.heappop(self._later)[1])

    def ended(self, i: int, time_s: float) -> None:
        """Note that an item has ended."""
        self._happened(self._after_item.get(i, ()), time_s)

    def take(self, gpus: Gpus) -> int:
        """Return the item of these GPUs that starts first: by priority, then by the time at which it could start."""
        self.unstarted[gpus] -= 1
        return heapq.heappop(self._ready[gpus])[2]

    def put_back(self, i: int) -> None:
        """Note that an item that was taken has to be run again."""
        self.unstarted[self.work[i].gpus] += 1
        self._queue(i)

    def _happened(self, items: Sequence[int], time_s: float) -> None:
        for i in items:
            self._left[i] -= 1
            self._ready_s[i] = max(self._ready_s[i], time_s)
            if not self._left[i]:
                heapq.heappush(self._later, (self._ready_s[i], i))

    def _queue(self, i: int) -> None:
        item = self.work[i]
        heapq.heappush(self._ready[item.gpus], (float(item.priority), self._ready_s[i], i))
