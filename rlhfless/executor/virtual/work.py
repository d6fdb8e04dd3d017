"""Runs a step's work items on the virtual clock: their functions here, one after another; their times by the list scheduler.

Items never run on GPUs of an actor that decodes and change nothing of generation. So their functions run when all responses
are complete, in the order in which their inputs were. Then all items are placed into the step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from rlhfless.executor.step.actor_state import Allocation
from rlhfless.executor.step.failure import ActorError
from rlhfless.executor.step.record import StepRecord
from rlhfless.executor.step.step_state import RunningStep
from rlhfless.executor.step.work_items import WorkItem, named
from rlhfless.executor.step.work_order import in_order
from rlhfless.executor.step.work_rows import ExecutedWork, place_work
from rlhfless.executor.virtual.actors import VirtualActor


class VirtualWork:
    """The work items of a step on the virtual clock; see ``rlhfless.executor.step.event_loop.StepWork``.

    Attributes:
        seconds, results: of the items, once their functions have run.
    """

    def __init__(self, work: Sequence[WorkItem], step: RunningStep[VirtualActor]) -> None:
        self.work, self.step = work, step
        self.seconds = [0.0 if item.seconds is None else float(item.seconds) for item in work]
        self.results: list[Any] = [None] * len(work)
        self._executed: ExecutedWork = ((), ())

    def finish(self) -> None:
        """See ``StepWork``.

        Raises:
            ActorError: an item's function failed.
        """
        if self.work:
            for i in self._in_turn():
                self._run(i)
            self._executed = self.placed(self.step.record, self.step.held)

    def executed(self) -> ExecutedWork:
        """See ``StepWork``: nothing before all functions have run."""
        return self._executed

    def placed(self, record: StepRecord, held: Sequence[Allocation]) -> ExecutedWork:
        """Return the items at their times in a step with these completions and allocations."""
        released = [(actor.plan.gpu_ids, actor.done_s) for actor in held]
        return place_work(self.work, record, released, seconds=self.seconds, results=self.results)

    def _in_turn(self) -> list[int]:
        """Return the items in the order in which their inputs are complete."""
        start_s, completions = self.step.record.start_s, self.step.record.completions
        inputs_s: dict[int, float] = {}
        latest_s: dict[tuple[int, int], float] = {}  # of what several items wait for
        ordered = in_order([item.items for item in self.work])
        for i in ordered:
            item = self.work[i]
            key = id(item.responses), id(item.items)
            if key not in latest_s:
                times_s = [*(completions[r].time_s for r in item.responses), *(inputs_s[before] for before in item.items)]
                latest_s[key] = max(times_s, default=-math.inf)
            inputs_s[i] = max(start_s + item.after_s, latest_s[key])
        return sorted(ordered, key=inputs_s.__getitem__)

    def _run(self, i: int) -> None:
        item = self.work[i]
        if item.run is None:
            return
        responses = tuple(self.step.record.completions[r] for r in item.responses)
        began = time.perf_counter()
        try:
            results = tuple(self.results[before] for before in item.items)
            self.results[i] = item.run(responses, results)
        except Exception as error:
            raise ActorError(f"{named(i, item)} failed with {type(error).__name__}: {error}") from error
        if item.seconds is None:
            self.seconds[i] = time.perf_counter() - began
