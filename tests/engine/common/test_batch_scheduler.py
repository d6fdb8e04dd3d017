"""The batch scheduler, one iteration after the other, gives every random queue the batches of ``solver.timing.batching``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_strategies import Queue, admissions, queues

from rlhfless.engine.common.batch_scheduler import BatchScheduler, NextBatch
from solver.model.admission import Admission
from solver.timing.batching import schedule
from solver.timing.residency import Residency


@dataclass(eq=False)
class Counted:
    """A response that is counted and not decoded."""

    index: int
    context_tokens: int
    stop_tokens: int
    max_kv_tokens: int
    cached_tokens: int
    queued_s: float = 0.0


class Fed(NamedTuple):
    """An iteration: responses in the batch, those that get a token, and chunks of contexts (response, tokens), all sorted."""

    batch: list[int]
    decoded: list[int]
    chunks: list[tuple[int, int]]


def scheduled(queue: Queue, admission: Admission, token_budget: int | None, running: int) -> list[Fed]:
    """Every iteration until all are complete; an iteration takes a second, and a response ends after its tokens."""
    rows = zip(*(column.tolist() for column in (queue.context, queue.remaining, queue.most, queue.there)), strict=True)
    responses = [Counted(i, *row) for i, row in enumerate(rows)]
    uncached = {s: s.context_tokens - s.cached_tokens for s in responses}
    scheduler, now_s, found = BatchScheduler[Counted](admission, token_budget), 0.0, []
    inside = [s for s in responses[:running] if s.stop_tokens]
    missing = {s: max(1, uncached[s]) for s in inside} if token_budget else {}
    computed = dict.fromkeys(inside, False)  # whether the context was computed before, where there is no budget
    scheduler.add(responses)
    scheduler.remove({s for s in responses[:running] if not s.stop_tokens})
    scheduler.enter(inside, inside, [], missing)
    while (planned := scheduler.plan(now_s, uncached.__getitem__ if token_budget else None)) is not None:
        assert planned.start_s == now_s
        for s in planned.evicted:
            uncached[s] = s.context_tokens
        decoding = [s for s in planned.batch if s not in planned.missing]
        found.append(Fed(*map(sorted, (
            (s.index for s in planned.batch),
            (s.index for s in decoding),
            chunks_of(planned, uncached, computed, whole=token_budget is None),
        ))))  # fmt: skip
        scheduler.enter(planned.batch, planned.admitted, planned.evicted, planned.missing)
        for s in decoding:
            s.context_tokens += 1
            s.stop_tokens -= 1
        scheduler.remove({s for s in decoding if not s.stop_tokens})
        now_s += 1.0
    assert scheduler.due_s(now_s) in (0.0, now_s, math.inf)  # responses of no tokens need no slot
    return found


def chunks_of(
    planned: NextBatch[Counted], uncached: dict[Counted, int], computed: dict[Counted, bool], *, whole: bool
) -> list[tuple[int, int]]:
    """Tokens of contexts that the iteration computes; a response whose whole context is cached feeds its last token again."""
    if not whole:
        return [(s.index, tokens) for s, tokens in planned.chunks.items() if uncached[s]]
    for s in (*planned.evicted, *planned.admitted):
        computed[s] = False
    new = [s for s in planned.batch if not computed[s]]
    computed.update(dict.fromkeys(new, True))
    return [(s.index, uncached[s]) for s in new if uncached[s]]


def in_arrays(residency: Residency) -> list[Fed]:
    """The same of a schedule."""
    at, of, tokens = residency.chunks
    columns = residency.response, residency.first, residency.ready, residency.last
    return [
        Fed(
            sorted(residency.response[(columns[1] <= now) & (now < columns[3])].tolist()),
            sorted(residency.response[(columns[2] <= now) & (now < columns[3])].tolist()),
            sorted(zip(residency.response[of[at == now]].tolist(), tokens[at == now].tolist(), strict=True)),
        )
        for now in range(int(residency.last.max(initial=0)))
    ]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Queue, Admission, int | None, int]:
    """A queue, slots and memory, perhaps a token budget, and how many of the queue are in the batch already."""
    queue = draw(queues())
    admission = draw(admissions(queue))
    fits = min(admission.max_batch, len(queue.remaining))
    if admission.rule == "reserve":
        fits = min(fits, int(np.searchsorted(np.cumsum(queue.most), admission.kv_capacity_tokens, side="right")))
    running = draw(st.integers(0, fits))
    token_budget = draw(st.none() | st.integers(admission.max_batch, admission.max_batch + 20))
    computed = running if token_budget is None else max(0, running - 1)  # the youngest may be half computed
    queue.there[:computed] = queue.context[:computed]
    return queue, admission, token_budget, running


@given(cases())
@settings(max_examples=300, deadline=None)
def test_every_iteration_has_the_batch_that_the_arrays_have(case: tuple[Queue, Admission, int | None, int]) -> None:
    """With separate and mixed prefill, with either admission rule, from an empty batch or a running one."""
    queue, admission, token_budget, running = case
    assert scheduled(*case) == in_arrays(schedule(queue.batch(admission, running), token_budget))


def test_a_plan_that_is_dropped_changes_nothing() -> None:
    responses = [Counted(i, 4, 3, 9, 0) for i in range(5)]
    scheduler = BatchScheduler[Counted](Admission(3, 30), 3)
    scheduler.add(responses)
    for _ in range(2):
        planned = scheduler.plan(0.0, lambda s: s.context_tokens)
        assert planned is not None
        assert (planned.batch, planned.chunks, planned.missing) == (responses[:1], {responses[0]: 3}, {responses[0]: 1})
        assert (scheduler.running, scheduler.waiting, dict(scheduler.missing)) == ([], responses, {})


def test_who_came_first_meanwhile_stays_in_the_queue() -> None:
    """The batch of a planned iteration joins, though another response is in front of it by then."""
    first, later = Counted(0, 4, 3, 9, 0, queued_s=2.0), Counted(1, 4, 3, 9, 0, queued_s=1.0)
    scheduler = BatchScheduler[Counted](Admission(1, 30))
    scheduler.add([first])
    planned = scheduler.plan(0.0)
    assert planned is not None
    scheduler.add([later])
    scheduler.enter(planned.batch, planned.admitted, planned.evicted)
    assert (scheduler.running, scheduler.waiting) == ([first], [later])
