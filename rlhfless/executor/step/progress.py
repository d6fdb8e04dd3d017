"""Progress of a running step for callbacks: its phase, completed responses, and the rows of its trace if it ended now.

Rows are only built when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from rlhfless.executor.step.actor_state import Actor, Allocation
from rlhfless.executor.step.record import Row, StepRecord, holder_of


class WorkSoFar(NamedTuple):
    """Work items of a running step on the wall clock: rows of their spans, in the order in which they began, and allocations.

    Both end now at the latest. The last span of a holder grows while its item runs.
    """

    spans: Sequence[Row] = ()
    allocations: Sequence[Row] = ()


@dataclass(frozen=True)
class StepProgress:
    """State of a step when its first actor is ready, when more of its responses are complete, and now and then in between.

    Attributes:
        completed, of: number of complete and of all responses; none is complete when the first actor is ready.
        now_s: that moment, or the time of the latest of these completions, in seconds since the run's start.
        record: of the step up to now; its tables keep growing. They get the rows of ``work`` when all of it has ended.
    """

    completed: int
    of: int
    now_s: float
    record: StepRecord
    _live: Collection[Actor] = field(repr=False)
    _held: Collection[Allocation] = field(repr=False)
    _work: Callable[[float], WorkSoFar] | None = field(default=None, repr=False)

    @cached_property
    def work(self) -> WorkSoFar:
        """The work items that have begun; none where they run after generation, as on the virtual clock."""
        return WorkSoFar() if self._work is None else self._work(self.now_s)

    def allocations(self) -> list[Row]:
        """Return the GPU allocations of each holder, which end now at the latest, those of work included."""
        record = StepRecord(self.record.run, self.record.step, self.record.plan, self.record.start_s)
        held = [(actor.number, actor.role, actor.plan, actor.start_s, actor.done_s) for actor in self._held]
        held += [(actor.index, "decode", actor.plan, actor.start_s, self.now_s) for actor in self._live]
        for number, role, actor, start_s, until_s in sorted(held, key=lambda actor: actor[0]):
            end_s = max(start_s, until_s if actor.release == "done" else self.now_s)
            taken_s = [row["start_s"] for row in self.work.allocations if not {*actor.gpu_ids}.isdisjoint(row["gpu_ids"])]
            record.allocate(holder_of(number), role, actor, start_s, min([end_s, *(max(until_s, s) for s in taken_s)]))
        return [*record.allocations, *self.work.allocations]


OFTEN_S = 0.5
"""Seconds of the wall clock, about, from one progress callback to the next while no response is complete."""

OnProgress = Callable[[StepProgress], None]
"""Told of the step when its first actor is ready, whenever more responses are complete, and about every ``OFTEN_S`` in between.
What it raises ends the step as an interrupt does."""

PHASES = ("starting", "weight sync", "generating", "rewards", "learning", "evaluating", "saving")
"""Phases of a training step, in order: planning; handing the step's weights to its actors, until the first of them is ready;
decoding; rewards; the learner's passes and updates; an evaluation on held-out prompts, where one is due; writing checkpoint and
trace. A step of an ``Executor`` is ``starting`` until its first actor is ready, and then ``generating``."""

BETWEEN_STEPS = "between steps"
"""Where a loop over a trainer has a complete step, and has not asked for the next one."""

OnStepEnd = Callable[[Any], object]
"""Called with the result of a step that is complete, whose ``trace`` it has, or with the exception that ended it."""

OnPhase = Callable[[int, str], object]
"""Told of a step's number and of the phase that it enters, one of ``PHASES`` or ``BETWEEN_STEPS``. What it raises ends the step
as an interrupt does."""
