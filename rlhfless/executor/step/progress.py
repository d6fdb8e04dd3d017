"""Progress of a running step for callbacks: its phase, completed responses, and the rows of its trace if it ended now.

Rows are only built when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from rlhfless.executor.step.actor_state import Actor, Allocation
from rlhfless.executor.step.record import Row, StepRecord, holder_of


@dataclass(frozen=True)
class StepProgress:
    """State of a step when its first actor is ready, and whenever more of its responses are complete.

    Attributes:
        completed, of: number of complete and of all responses; none is complete when the first actor is ready.
        now_s: that moment, or the time of the latest completion, in seconds since the run's start.
        record: of the step up to now; its tables keep growing.
    """

    completed: int
    of: int
    now_s: float
    record: StepRecord
    _live: Collection[Actor] = field(repr=False)
    _held: Collection[Allocation] = field(repr=False)

    def allocations(self) -> list[Row]:
        """Return the GPU allocations of each holder, which end now at the latest."""
        record = StepRecord(self.record.run, self.record.step, self.record.plan, self.record.start_s)
        held = [(actor.number, actor.role, actor.plan, actor.start_s, actor.done_s) for actor in self._held]
        held += [(actor.index, "decode", actor.plan, actor.start_s, self.now_s) for actor in self._live]
        for number, role, actor, start_s, until_s in sorted(held, key=lambda actor: actor[0]):
            end_s = max(start_s, until_s if actor.release == "done" else self.now_s)
            record.allocate(holder_of(number), role, actor, start_s, end_s)
        return record.allocations

    def spans(self) -> list[Row]:
        """Return the spans reported by now; an engine may have reported iterations beyond ``now_s``."""
        return [{**row, "kv_tokens": None if (kv := row["kv_tokens"]) is None else round(kv)} for row in self.record.spans]


OnProgress = Callable[[StepProgress], None]
"""Told of the step when its first actor is ready, and whenever more responses are complete. What it raises ends the step as an
interrupt does."""

PHASES = ("starting", "generating", "preparing", "learning", "evaluating", "saving")
"""Phases of a training step, in order: planning and starting actors; decoding; rewards; the learner's passes and updates; an
evaluation on held-out prompts, where one is due; writing checkpoint and trace. A step of an ``Executor`` has the first two."""

OnPhase = Callable[[int, str], object]
"""Told of a step's number and of the phase, one of ``PHASES``, that it enters. What it raises ends the step as an interrupt
does."""
