"""Batch scheduler of an actor: the batch, the queue, and the admission rule applied to them.

Plans change nothing until they are entered, so a plan may be dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rlhfless.engine.common.empty_responses import EmptyResponses
from rlhfless.engine.common.sequence import SequenceState
from solver.model.admission import Admission


class NextBatch(NamedTuple):
    """The next planned batch.

    Attributes:
        start_s: when it can begin.
        batch: in admission order, newly admitted last; evicted: youngest first.
        kv_tokens: of the batch at its start.
    """

    start_s: float
    batch: list[SequenceState]
    kv_tokens: int
    admitted: list[SequenceState]
    evicted: list[SequenceState]


class BatchScheduler:
    """The responses of one actor.

    Attributes:
        running: in admission order.
        waiting: in the order in which they became available, evicted ones first.
        empty: responses of no tokens.
    """

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.running: list[SequenceState] = []
        self.waiting: list[SequenceState] = []
        self.empty = EmptyResponses[SequenceState]()
        self._reserved = 0  # tokens that the batch may come to hold

    def __iter__(self) -> Iterator[SequenceState]:
        yield from self.running
        yield from self.waiting
        yield from self.empty

    def add(self, responses: Iterable[SequenceState]) -> None:
        """Queue responses in the order in which they become available, those of no tokens separately."""
        responses = list(responses)
        self.waiting += [s for s in responses if s.stop_tokens]
        self.waiting.sort(key=_queued_s)
        self.empty.add(s for s in responses if not s.stop_tokens)

    def needed_slots(self) -> int:
        """Return the slots that all responses of the actor would use if memory were no limit."""
        return min(self.admission.max_batch, len(self.running) + len(self.waiting))

    def due_s(self, clock_s: float) -> float:
        """Return when the next response of no tokens ends if that is not after the next iteration begins; else infinite."""
        if not self.empty:
            return math.inf
        start_s = clock_s
        if not self.running:
            start_s = max(clock_s, self.waiting[0].queued_s) if self.waiting else math.inf
        return self.empty.due_s(clock_s, start_s)

    def changes_s(self, clock_s: float) -> float:
        """Return the first time after ``clock_s`` at which a queued response may join, or a response of no tokens end.

        Infinite where neither can happen before the batch changes: a response that does not fit now does not fit when the batch
        has more tokens.
        """
        first_s = self.empty.first_s
        if self.waiting and len(self.running) < self.admission.max_batch and (at_s := self.waiting[0].queued_s) > clock_s:
            return min(first_s, at_s)
        return first_s

    def holds(self, kv_tokens: int) -> float:
        """Return the iterations that the batch with ``kv_tokens`` can begin before its memory overflows; it does not overflow
        now.
        """
        batch, admission = len(self.running), self.admission
        if not admission.overflows(batch, admission.kv_capacity_tokens + 1):
            return math.inf
        return (admission.kv_capacity_tokens - kv_tokens) // batch + 1

    def changes(self, clock_s: float, kv_tokens: int) -> bool:
        """Return whether a response is admitted to the batch, which has ``kv_tokens``, or evicted from it, at ``clock_s``.

        Completed responses are not looked at.
        """
        batch, waiting, admission = len(self.running), self.waiting, self.admission
        if admission.overflows(batch, kv_tokens):
            return True
        if not waiting or batch == admission.max_batch or waiting[0].queued_s > clock_s:
            return False
        return admission.admits(batch, self._held(kv_tokens), self._needs(waiting[0], waiting[0].context_tokens))

    def plan(self, clock_s: float) -> NextBatch | None:
        """Return the next batch after ``clock_s``; None when no response is left. All tokens must be on the host."""
        admission, batch, start_s = self.admission, list(self.running), clock_s
        if not batch:
            if not self.waiting:
                return None
            start_s = max(start_s, self.waiting[0].queued_s)
        kv_tokens = sum([s.prompt_tokens + s.count for s in batch])
        held = self._held(kv_tokens)
        evicted: list[SequenceState] = []
        while admission.overflows(len(batch), held):
            evicted.append(batch.pop())
            held -= evicted[-1].context_tokens
            kv_tokens -= evicted[-1].context_tokens
        admitted: list[SequenceState] = []
        if not evicted:
            for s in self.waiting:
                needs = self._needs(s, s.context_tokens)
                if s.queued_s > start_s or not admission.admits(len(batch), held, needs):
                    break
                admitted.append(s)
                batch.append(s)
                held += needs
                kv_tokens += s.context_tokens
        return NextBatch(start_s, batch, kv_tokens, admitted, evicted)

    def enter(self, batch: list[SequenceState], admitted: Sequence[SequenceState], evicted: Sequence[SequenceState]) -> None:
        """Make a planned batch the current one."""
        self.running = batch
        del self.waiting[: len(admitted)]  # whoever joins is from the front
        self._reserved += sum(s.max_kv_tokens for s in admitted) - sum(s.max_kv_tokens for s in evicted)
        for s in evicted:
            s.queued_s = -math.inf
            self.waiting.insert(0, s)

    def remove(self, gone: set[SequenceState]) -> list[SequenceState]:
        """Remove responses for good; returns those that were in the batch."""
        left = [s for s in self.running if s in gone]
        self.running = [s for s in self.running if s not in gone]
        self._reserved -= sum(s.max_kv_tokens for s in left)
        if len(left) < len(gone):
            self.waiting = [s for s in self.waiting if s not in gone]
            self.empty.remove(gone)
        return left

    def _held(self, kv_tokens: int) -> int:
        """Return the KV tokens that the admission rule counts for the batch."""
        return self._reserved if self.admission.rule == "reserve" else kv_tokens

    def _needs(self, s: SequenceState, context_tokens: int) -> int:
        return self.admission.held_tokens(context_tokens, s.max_kv_tokens)


def _queued_s(s: SequenceState) -> float:
    return s.queued_s
