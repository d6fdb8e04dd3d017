"""Batch scheduler of an actor: the batch, the queue, and the admission rule applied to them, one iteration at a time.

``solver.timing.batching`` has the same rule for whole schedules in arrays. With a token budget an iteration feeds prompts in
chunks beside decoding. Without one every context is computed in the iteration in which its response joins. Plans change nothing
until they are entered, so a plan may be dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from rlhfless.engine.common.empty_responses import EmptyResponses
from solver.model.admission import Admission

NOTHING: Mapping[Any, int] = MappingProxyType({})


class Schedulable(Protocol):
    """A response in an actor's batch or queue.

    Attributes:
        queued_s: its position in the queue: when it became available; evicted responses are first.
    """

    queued_s: float

    @property
    def context_tokens(self) -> int:
        """Return the KV tokens that it takes at its next iteration."""
        ...

    @property
    def stop_tokens(self) -> int:
        """Return the most tokens that it can get; a response of none needs no slot."""
        ...

    @property
    def max_kv_tokens(self) -> int:
        """Return the most KV tokens that it can take."""
        ...


S = TypeVar("S", bound=Schedulable)


@dataclass(eq=False)
class NextBatch(Generic[S]):
    """The batch of the next iteration.

    Attributes:
        start_s: when it can begin.
        batch: in admission order, newly admitted last; evicted: youngest first.
        kv_tokens: of the batch at its start.
        chunks: with a token budget, the tokens that the iteration feeds of each context that was not complete before it.
        missing: of these, the tokens that are missing afterwards, where some are; all others of the batch get a token.
    """

    start_s: float
    batch: list[S]
    kv_tokens: int
    admitted: list[S]
    evicted: list[S]
    chunks: dict[S, int] = field(default_factory=dict)
    missing: dict[S, int] = field(default_factory=dict)


class BatchScheduler(Generic[S]):
    """The responses of one actor.

    Args:
        token_budget: the most tokens that an iteration feeds, at least the slots; None: as many as join.

    Attributes:
        running: in admission order.
        waiting: in the order in which they became available, evicted ones first.
        empty: responses of no tokens.
        missing: with a token budget, the tokens that contexts in the batch lack, where they lack some.
    """

    def __init__(self, admission: Admission, token_budget: int | None = None) -> None:
        self.admission, self.token_budget = admission, token_budget
        self.running: list[S] = []
        self.waiting: list[S] = []
        self.empty = EmptyResponses[S]()
        self.missing: Mapping[S, int] = NOTHING
        self._reserved = 0  # tokens that the batch may come to hold

    def __iter__(self) -> Iterator[S]:
        yield from self.running
        yield from self.waiting
        yield from self.empty

    def add(self, responses: Iterable[S]) -> None:
        """Queue responses in the order in which they become available, those of no tokens separately."""
        responses = list(responses)
        self.waiting += [s for s in responses if s.stop_tokens]
        self.waiting.sort(key=_queued_s)
        self.empty.add(s for s in responses if not s.stop_tokens)

    def needed_slots(self) -> int:
        """Return the slots that all responses of the actor would use if memory were no limit."""
        return min(self.admission.max_batch, len(self.running) + len(self.waiting))

    def due_s(self, clock_s: float, start_s: float | None = None) -> float:
        """Return when the next response of no tokens ends if that is not after the next iteration begins; else infinite.

        Args:
            start_s: when the next iteration begins, if that is known.
        """
        if not self.empty:
            return math.inf
        if start_s is None:
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

    def plan(self, clock_s: float, uncached: Callable[[S], int] | None = None) -> NextBatch[S] | None:
        """Return the next batch after ``clock_s``; None when no response is left. All tokens must be on the host.

        Args:
            uncached: with a token budget, returns the tokens of a context that are not cached; it is called once for every
                response that joins, in order.
        """
        admission, batch, start_s = self.admission, list(self.running), clock_s
        if not batch:
            if not self.waiting:
                return None
            start_s = max(start_s, self.waiting[0].queued_s)
        kv_tokens = sum([s.context_tokens for s in batch])
        held = self._held(kv_tokens)
        evicted: list[S] = []
        while admission.overflows(len(batch), held):
            evicted.append(batch.pop())
            held -= evicted[-1].context_tokens
            kv_tokens -= evicted[-1].context_tokens
        admitted: list[S] = []
        feeding = _Feeding[S](self.token_budget, batch, self.missing)
        if not evicted:
            for s in self.waiting:
                needs = self._needs(s, s.context_tokens)
                if s.queued_s > start_s or not feeding.room or not admission.admits(len(batch), held, needs):
                    break
                admitted.append(s)
                batch.append(s)
                held += needs
                kv_tokens += s.context_tokens
                if uncached is not None:
                    feeding.feed(s, uncached(s))
        return NextBatch(start_s, batch, kv_tokens, admitted, evicted, feeding.chunks, feeding.missing)

    def enter(self, batch: list[S], admitted: Sequence[S], evicted: Sequence[S], missing: Mapping[S, int] = NOTHING) -> None:
        """Make a planned batch the current one; ``missing`` are the tokens that its contexts lack after the iteration."""
        self.running, self.missing = batch, missing
        for s in admitted:
            self.waiting.remove(s)  # from its front, unless another came first since it was planned
        self._reserved += sum(s.max_kv_tokens for s in admitted) - sum(s.max_kv_tokens for s in evicted)
        for s in evicted:
            s.queued_s = -math.inf
            self.waiting.insert(0, s)

    def remove(self, gone: set[S]) -> list[S]:
        """Remove responses for good; returns those that were in the batch."""
        left = [s for s in self.running if s in gone]
        self.running = [s for s in self.running if s not in gone]
        if self.missing:
            self.missing = {s: tokens for s, tokens in self.missing.items() if s not in gone}
        self._reserved -= sum(s.max_kv_tokens for s in left)
        if len(left) < len(gone):
            self.waiting = [s for s in self.waiting if s not in gone]
            self.empty.remove(gone)
        return left

    def _held(self, kv_tokens: int) -> int:
        """Return the KV tokens that the admission rule counts for the batch."""
        return self._reserved if self.admission.rule == "reserve" else kv_tokens

    def _needs(self, s: S, context_tokens: int) -> int:
        return self.admission.held_tokens(context_tokens, s.max_kv_tokens)


class _Feeding(Generic[S]):
    """Tokens that an iteration feeds under a token budget: first one of each response that decodes, then missing contexts.

    Attributes:
        room: what is left of the budget; chunks, missing: as in ``NextBatch``.
    """

    def __init__(self, token_budget: int | None, batch: Sequence[S], missing: Mapping[S, int]) -> None:
        self.chunks: dict[S, int] = {}
        self.missing: dict[S, int] = {}
        self.room: float = math.inf
        if token_budget is not None:
            lacking = [s for s in batch if s in missing] if missing else []
            self.room = token_budget - (len(batch) - len(lacking))
            for s in lacking:
                self.feed(s, missing[s])

    def feed(self, s: S, tokens: int) -> None:
        """Feed a context that lacks ``tokens``, as far as the budget goes; at least its last token is fed."""
        needs = max(1, tokens)
        fed = int(min(needs, self.room))
        self.room -= fed
        if fed:
            self.chunks[s] = fed
        if fed < needs:
            self.missing[s] = needs - fed


def _queued_s(s: Schedulable) -> float:
    return s.queued_s
