"""A simulated engine with drafts: lengths and accepted runs are given, times come from the full profile table.

It computes one pass after the other, because what a pass feeds depends on what earlier ones accepted. A pass that is planned
but not committed yet changes nothing, and is kept until the engine is disturbed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from rlhfless.engine.common.batch_scheduler import BatchScheduler, NextBatch
from rlhfless.engine.common.draft_lengths import DraftLengths, shortened
from rlhfless.engine.common.pool_engines import Capabilities, PoolEngines
from rlhfless.engine.protocol import Progress, Request
from rlhfless.engine.simulated.accepted_runs import AcceptedRuns
from rlhfless.engine.simulated.drafted_batch import DraftedBatch, DraftedResponse
from rlhfless.engine.simulated.drafted_pass import Committed, Joining, Pass
from rlhfless.engine.simulated.real_time import SIMULATED, sleep_until
from rlhfless.engine.simulated.requests import refusal
from rlhfless.errors import InputError
from solver.lengths.remaining import RemainingLengths
from solver.model.admission import Admission
from solver.model.drafting import Drafting
from solver.model.latency import LatencyModel
from solver.model.workload import FloatArray, IntArray
from solver.timing.draft_length import DRAFT_CALL_S, DRAFT_TOKEN_S


@dataclass(frozen=True, eq=False)
class DraftedEngineFactory(PoolEngines):
    """Makes simulated engines with drafts, one per actor.

    Args:
        drafting: how many tokens are drafted; its drafter is not asked.
        runs: what drafts would accept.
        remaining: predicted remaining lengths, by response of the step; ``critical`` needs them.
    """

    drafting: Drafting
    runs: AcceptedRuns
    remaining: RemainingLengths | None = None

    capabilities: ClassVar[Capabilities] = SIMULATED

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> DraftedEngine:
        """Return the engine of the next actor."""
        return DraftedEngine(latency, admission, start_s, self)


class DraftedEngine:
    """An engine of ``rlhfless.engine.protocol`` that verifies drafts and takes the seconds of the profile.

    Args:
        latency: charged with its measured table where it has one. admission: slots, KV memory and rule.
        clock_s: when it is ready. given: drafting and accepted runs.

    Attributes:
        sleep: waits on the wall clock for a number of seconds.
    """

    reuses_prefixes = True
    sleep: Callable[[float], None] = staticmethod(time.sleep)

    def __init__(self, latency: LatencyModel, admission: Admission, clock_s: float, given: DraftedEngineFactory) -> None:
        self.slots, self.clock_s = admission.max_batch, clock_s
        self._latency, self._given = latency, given
        self._queue = BatchScheduler[DraftedResponse](admission, latency.token_budget)
        self._lengths = DraftLengths(given.drafting, latency)
        self._batch = DraftedBatch([])
        self._planned: Pass | None = None
        self._shortest_s = latency.one_iteration_s(1, 0) if latency.table is None else float(latency.table.iteration_s.min())
        self._cached_prompts: set[int | None] = set()  # whose KV cache is here for all that share it

    def add(self, requests: Sequence[Request]) -> None:
        """See the protocol. Every request needs ``target_tokens``."""
        for r in requests:
            if (reason := refusal(r)) is not None:
                raise InputError(reason)
        added = []
        for r in requests:
            assert r.target_tokens is not None, "the request was validated"
            runs = self._given.runs.of(r.response, r.target_tokens)
            added.append(DraftedResponse.of(r, runs, max(r.available_s, self.clock_s)))
            self._lengths.start(r.response, r.prompt)
        self._queue.add(added)
        if self._planned is not None and any(s.queued_s <= self._planned.start_s for s in added):
            self._planned = None

    def peek_next_event_s(self, completions: int = 1) -> float:
        """See the protocol: as early as if every draft were accepted, and every later pass the shortest."""
        queue, planned, least = self._queue, self._next(), self._shortest_s
        times_s = [max(self.clock_s, s.queued_s) for s in queue.empty]
        if planned is not None:
            self._batch.settle()
            end_s, most = planned.end_s, 1 + self._lengths.max_draft_tokens
            for s in (*queue.running, *queue.waiting):
                times_s.append(max(end_s, s.queued_s) + ((s.stop_tokens - 1) // most) * least)
        return sorted(times_s)[completions - 1] if len(times_s) >= completions else math.inf

    def advance(self, to_s: float) -> Progress:
        """See the protocol."""
        committed = Committed()
        self._commit_while(lambda planned: planned.end_s <= to_s, to_s, committed)
        return committed.progress(self.slots)

    def step(self, from_s: float, clock: Callable[[], float]) -> Progress:
        """Run one pass in real time, as ``RealTimeEngine.step`` does an iteration."""
        if from_s > self.clock_s:
            self.clock_s, self._planned = from_s, None
        planned = self._next()
        end_s = self.clock_s if planned is None else planned.end_s
        sleep_until(end_s, clock, self.sleep)
        return self.advance(end_s)

    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> tuple[list[Request], Progress]:
        """See the protocol."""
        committed = Committed()
        self._commit_while(lambda planned: planned.end_s <= at_s, at_s, committed)
        if self.clock_s < at_s and (planned := self._next()) is not None and planned.start_s < at_s:
            self._commit(planned, committed)
        self._batch.settle()
        queue, wanted = self._queue, None if responses is None else set(responses)
        taken = [
            s
            for s in (*queue.running, *sorted((*queue.waiting, *queue.empty), key=lambda s: s.queued_s))
            if wanted is None or s.request.response in wanted
        ]
        requests = [s.export() for s in taken]
        self._leave(taken)
        return requests, committed.progress(self.slots)

    def generated_tokens(self) -> dict[int, int]:
        """See the protocol."""
        return {s.request.response: s.count for s in self._queue} | self._batch.counts()

    def token_arrays(self) -> tuple[IntArray, IntArray, int]:
        """See ``SupportsTokenArrays``."""
        running, tokens = self.running(), self.generated_tokens()
        responses = (*running, *self.waiting())
        return np.array(responses, dtype=np.int64), np.array([tokens[r] for r in responses], dtype=np.int64), len(running)

    def running(self) -> tuple[int, ...]:
        """See the protocol."""
        return tuple([s.request.response for s in self._queue.running])

    def waiting(self) -> tuple[int, ...]:
        """See the protocol."""
        queue = self._queue
        return tuple([s.request.response for s in sorted((*queue.waiting, *queue.empty), key=lambda s: s.queued_s)])

    def sync(self, weights: Any, weights_version: int) -> None:
        """Do nothing: lengths come from the log."""

    def close(self) -> None:
        """Do nothing: there is no memory to free."""

    # --- planning --------------------------------------------------------------------------------------------------------

    def _next(self) -> Pass | None:
        """Return the pass after the last committed one; None when nothing is left. Changes nothing but what it remembers."""
        if self._planned is None:
            queue, batch = self._queue, self._batch
            if len(batch) and not queue.missing and not queue.changes(self.clock_s, int(batch.context.sum())):
                self._planned = self._timed(Pass(self.clock_s, batch))
            else:
                batch.settle()
                joining = Joining(self._cached_prompts)
                change = queue.plan(self.clock_s, None if queue.token_budget is None else joining.uncached)
                if change is None:
                    return None
                self._planned = self._timed(self._changed(change, joining))
        return self._planned

    def _changed(self, change: NextBatch[DraftedResponse], joining: Joining) -> Pass:
        """Return a pass of another batch, with the contexts that it computes."""
        decoding = DraftedBatch([s for s in change.batch if s not in change.missing])
        planned = Pass(change.start_s, decoding, change)
        if self._latency.mixes:
            for s, fed in change.chunks.items():
                planned.computed[s] = max(0, fed - (s not in change.missing))
            planned.computing = sum(tokens > 0 for tokens in planned.computed.values())
            planned.prompt_tokens = sum(planned.computed.values())
        else:
            uncached = {s: joining.uncached(s) for s in change.admitted}
            planned.computed = {s: max(0, tokens - 1) for s, tokens in uncached.items()}
            planned.computing = sum(tokens > 0 for tokens in uncached.values())
            charged = sum(uncached.values())
            planned.prefill_s = float(self._latency.prefill_s(charged)) if charged else 0.0
        return planned

    def _timed(self, planned: Pass) -> Pass:
        """Choose the drafts of a pass, and with them when it ends."""
        batch, latency, mixed = planned.batch, self._latency, planned.prompt_tokens if self._latency.mixes else 0
        kv_tokens = int(batch.context.sum())
        planned.drafted = drafted = self._drafts(batch, kv_tokens, mixed)
        drafts = int(drafted.sum())
        fed = len(batch) + drafts
        pass_s = latency.one_iteration_s(fed, kv_tokens, mixed)
        joins_s = latency.join_s * (len(planned.change.admitted) if planned.change is not None else 0)
        drafts_s = DRAFT_CALL_S + DRAFT_TOKEN_S * drafts if drafts else 0.0
        if mixed:
            planned.prefill_s = pass_s * mixed / (fed + mixed) if fed else pass_s + joins_s
        took_s = pass_s + joins_s + drafts_s
        planned.end_s = planned.start_s + took_s + (0.0 if latency.mixes else planned.prefill_s)
        return planned

    def _drafts(self, batch: DraftedBatch, kv_tokens: int, prompt_tokens: int) -> IntArray:
        """Return (B,) the tokens to draft; drafts never need memory that makes a response wait or leave."""
        if not len(batch):
            return np.zeros(0, np.int64)
        budget, admission = self._latency.token_budget, self._queue.admission
        remaining = None if self._given.remaining is None else partial(self._expected, batch)
        asked = self._lengths.next(
            batch.names, batch.room.clip(min=0).tolist(), batch.context.tolist(), remaining,
            None if budget is None else budget - prompt_tokens,
        )  # fmt: skip
        if admission.rule == "preempt" and kv_tokens + sum(asked) > admission.kv_capacity_tokens:
            asked = shortened(asked, admission.kv_capacity_tokens - kv_tokens)
        return batch.drafted(asked)

    def _expected(self, batch: DraftedBatch) -> FloatArray:
        assert self._given.remaining is not None
        tokens = np.array(list(batch.counts().values()), dtype=np.int64)
        return self._given.remaining.expected_tokens(np.array(batch.names, dtype=np.int64), tokens)

    # --- committing ------------------------------------------------------------------------------------------------------

    def _commit_while(self, wanted: Callable[[Pass], bool], to_s: float, committed: Committed) -> None:
        """Commit passes while they are wanted, and complete responses of no tokens that end by ``to_s``."""
        while True:
            due_s = self._queue.due_s(self.clock_s)
            if due_s <= to_s and due_s < math.inf:
                self.clock_s, self._planned = max(self.clock_s, due_s), None
                due = self._queue.empty.take_due(due_s)
                self._forget(due)
                committed.completions += [s.completion(due_s) for s in due]
            elif due_s == math.inf and (planned := self._next()) is not None and wanted(planned):
                self._commit(planned, committed)
            else:
                if not self._queue.running and self._planned is not None and self._planned.start_s <= to_s:
                    self.clock_s = self._planned.start_s  # an idle engine's clock jumps
                return

    def _commit(self, planned: Pass, committed: Committed) -> None:
        self._planned, self.clock_s = None, planned.end_s
        if planned.change is not None:
            self._change_batch(planned, planned.change)
        batch, kv_tokens = planned.batch, int(planned.batch.context.sum())
        accepted = batch.verify(planned.drafted)
        committed.runs.append(planned.run(int(accepted.sum()), kv_tokens))
        over = batch.left == 0
        verified = np.where(over, 0, planned.drafted)  # the last pass of a response refuses what is behind its end
        self._lengths.observe(batch.names, verified, accepted)
        self._lengths.ran()
        if over.any():
            batch.settle()
            done = [s for s, ends in zip(batch.responses, over, strict=True) if ends]
            committed.completions += [s.completion(self.clock_s) for s in done]
            self._leave(done)
        self._evict()

    def _change_batch(self, planned: Pass, change: NextBatch[DraftedResponse]) -> None:
        for s in change.admitted:
            s.start_s = planned.start_s if s.start_s is None else s.start_s
        for s, tokens in planned.computed.items():
            s.prefill_tokens += tokens
        for s in planned.batch.responses:
            s.has_kv = True
            s.first_token_s = planned.end_s if s.first_token_s is None else s.first_token_s
        self._cached_prompts.update(s.request.prompt for s in planned.batch.responses if s.shares)
        self._queue.enter(change.batch, change.admitted, change.evicted, change.missing)
        self._batch = planned.batch

    def _evict(self) -> None:
        """Evict the youngest responses at a boundary where the batch exceeds the memory."""
        queue, batch = self._queue, self._batch
        held = int(batch.context.sum()) + sum(s.context_tokens for s in queue.missing)
        if not queue.admission.overflows(len(queue.running), held):
            return
        batch.settle()
        change = queue.plan(self.clock_s)
        if change is not None and change.evicted:
            for s in change.evicted:
                s.lose_kv()
            missing = {s: tokens for s, tokens in queue.missing.items() if s not in change.evicted}
            queue.enter(change.batch, [], change.evicted, missing)
            self._batch = DraftedBatch([s for s in change.batch if s not in missing])

    def _leave(self, leaving: Sequence[DraftedResponse]) -> None:
        self._planned = None
        if self._queue.remove(set(leaving)):
            self._batch = DraftedBatch([s for s in self._queue.running if s not in self._queue.missing])
        self._forget(leaving)

    def _forget(self, gone: Sequence[DraftedResponse]) -> None:
        for s in gone:
            self._lengths.remove(s.request.response)
