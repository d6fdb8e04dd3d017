"""The decode loop of one actor: plans iterations from the committed state, runs them and commits them.

Planned or computed iterations are invisible until they are committed, so those that were planned or run too early are simply
dropped. While the batch is unchanged, as many iterations are planned, run and committed at once as can pass without a change.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence

from rlhfless.engine.common.batch_scheduler import BatchScheduler
from rlhfless.engine.common.engine_drafts import PassDrafts
from rlhfless.engine.common.journal import AdmittedResponse, EngineJournal, VerifiedPass
from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.common.sequence import SequenceState
from rlhfless.engine.common.spans import spans_of
from rlhfless.engine.common.stop_ids import stop_ids
from rlhfless.engine.protocol import Completion, EngineSpan
from rlhfless.engine.torch.decode_run import DecodeRun
from rlhfless.engine.torch.decode_step import decode_step
from rlhfless.engine.torch.drafted_run import DraftedRun
from rlhfless.engine.torch.iteration_clock import IterationClock
from rlhfless.engine.torch.kv_rows import KVRows
from rlhfless.engine.torch.lookahead import BatchChange, PendingIterations
from rlhfless.engine.torch.row_model import RowModel
from solver.model.admission import Admission
from solver.model.latency import LatencyModel


class DecodeLoop:
    """Decodes the responses of a queue; works in inference mode only. Arguments are those of ``TorchEngine``.

    Attributes:
        queue: the responses of the actor. rows: their rows of the KV cache.
        upcoming: the next iterations, as far as they are known.
        decode_run: the current batch; None once a response joined or left.
        clock_s: end of the last committed iteration.
        journal: the committed iterations.
    """

    def __init__(
        self,
        model: RowModel,
        admission: Admission,
        charge: LatencyModel | str,
        eos_id: int | Sequence[int],
        sampling: Sampling,
        start_s: float,
        drafts: PassDrafts | None = None,
    ) -> None:
        self._clock, self._stop_ids, self.drafts = IterationClock(charge, model.device), stop_ids(eos_id), drafts
        self._ends = frozenset(self._stop_ids)
        self.step = decode_step(model, sampling, self._stop_ids)
        self.queue = BatchScheduler[SequenceState](admission)
        self.rows = KVRows(model, admission.max_batch, sampling, drafts)
        self.upcoming: PendingIterations | None = None
        self.decode_run: DecodeRun | DraftedRun | None = None
        self.clock_s = start_s
        self.journal = EngineJournal(admission.max_batch, start_s)
        self._undrafted = 0  # passes until something may be drafted, while the batch stays
        self._reported = 0  # runs of the journal whose spans were returned

    def close(self) -> None:
        """Free all memory, even if other objects refer to it; clock and journal stay. Idempotent."""
        coming = () if self.upcoming is None or self.upcoming.change is None else self.upcoming.change.batch
        for s in (*self.queue, *coming):
            s.kv = None
            s.forget_prefix()
        if self.drafts is not None:
            self.drafts.remove(list(self.queue))
        self.queue = BatchScheduler[SequenceState](self.queue.admission)
        self.upcoming = self.decode_run = None
        self.step.release()
        self.rows.close()
        self.rows = KVRows(self.rows.model, self.rows.slots, self.rows.sampling, self.drafts)

    # Planning

    def next(self) -> PendingIterations | None:
        """Return the iterations after the last committed one, with their times; None when nothing is left."""
        if self.upcoming is None and (pending := self.plan()) is not None:
            self.upcoming = pending
            if self._clock.model is None:
                pending.set_times(*self.run(pending, 1))
            elif pending.decode_run is not None:
                pending.set_times(0.0, self._unchanged_s(pending))
            else:
                assert pending.change is not None
                (decode_s,) = self._steps_s(pending, 1)
                pending.set_times(
                    self._clock.prefill_s(pending.change.prefill_tokens),
                    [decode_s + self._clock.joins_s(len(pending.change.admitted))],
                )
        return self.upcoming

    def next_completion_s(self) -> float:
        """Return a lower bound on the time of the next completion; infinite when nothing is left."""
        pending = self.next()
        if pending is None:
            return math.inf
        ends_with_last = pending.decode_run is not None and not pending.decode_run.may_stop_early
        return pending.ends_s[-1] if ends_with_last else pending.ends_s[0]

    def nothing_by(self, to_s: float) -> bool:
        """Return whether it is already known that nothing ends by this time."""
        pending = self.upcoming
        return pending is not None and pending.ends_s[0] > to_s and self.queue.due_s(self.clock_s) > to_s

    def plan(self) -> PendingIterations | None:
        """Return the next batch's iterations; changes nothing."""
        queue, same = self.queue, self.decode_run
        if same is not None and not queue.changes(self.clock_s, same.kv_tokens):
            pending = PendingIterations(self.clock_s, len(queue.running), same.kv_tokens, decode_run=same)
            if self.drafts is not None:
                self._plan_drafts(pending, queue.running, self._undrafted)
                if (drafted := pending.drafts is not None) != isinstance(same, DraftedRun):
                    self.copy_tokens_to_host()
                    pending.decode_run = self.decode_run = self.rows.run_of(same.rows, drafted)
            return pending
        self.copy_tokens_to_host()
        planned = queue.plan(self.clock_s)
        if planned is None:
            return None
        change = BatchChange.of(planned, self.rows.cached_tokens(planned.admitted))
        pending = PendingIterations(planned.start_s, len(planned.batch), planned.kv_tokens, change)
        if self.drafts is not None:
            self._plan_drafts(pending, planned.batch, 0)
        # Where some have only left, no row has to be filled: the rest goes on for as long as nothing can change.
        if not (change.admitted or change.evicted):
            pending.decode_run = self.rows.make(change, drafted=pending.drafts is not None)
        return pending

    def _plan_drafts(self, pending: PendingIterations, batch: Sequence[SequenceState], undrafted: int) -> None:
        """Plan drafts, unless it is known that none come for as many passes as ``undrafted``."""
        assert self.drafts is not None
        begin = self._clock.now_s()
        if not undrafted:
            self.copy_tokens_to_host()
            undrafted = self.drafts.undrafted_passes(batch, pending.kv_tokens)
        pending.undrafted, pending.drafts = undrafted, None if undrafted else self.drafts.plan(batch, pending.kv_tokens)
        pending.drafting_s = self._clock.now_s() - begin

    def _steps_s(self, pending: PendingIterations, count: int) -> list[float]:
        """Return the latency model's seconds of ``count`` iterations."""
        if self.drafts is None or pending.drafts is None:
            return self._clock.steps_s(pending.batch, pending.kv_tokens, count)
        return [self._clock.pass_s(pending.batch, pending.kv_tokens, pending.drafted)]

    def _unchanged_s(self, pending: PendingIterations) -> list[float]:
        """Return the latency model's seconds of the iterations until the batch may change at the earliest."""
        assert pending.decode_run is not None
        count = min(pending.decode_run.steps_until_change, pending.undrafted, self.queue.holds(pending.kv_tokens))
        seconds = self._steps_s(pending, int(count))
        until_s = self.queue.changes_s(pending.start_s)
        if until_s < math.inf:
            pending.set_times(0.0, seconds)
            seconds = seconds[: max(1, bisect_left(pending.starts_s, until_s))]
        return seconds

    # Running

    def run(self, pending: PendingIterations, count: int) -> tuple[float, list[float]]:
        """Compute the tokens of the first iterations, at most ``count``; returns the seconds of the prefill before them, and of
        each.

        Writes no cell of the cache that belongs to a committed token, so the iterations may still be dropped.
        """
        cache, clock, change = self.rows.cache, self._clock, pending.change
        if pending.decode_run is None:
            assert change is not None
            pending.decode_run = self.rows.make(change, drafted=pending.drafts is not None)
            if change.evicted:  # rows have changed places
                self.decode_run = None
        decode_run = pending.decode_run
        if isinstance(decode_run, DraftedRun):
            assert pending.drafts is not None
            decode_run.drafts = pending.drafts
        clock.wait()
        self.journal.prepare_s += decode_run.prepare(self.step, cache)
        begin = decode = clock.now_s()
        if change is not None and change.admitted:
            self.rows.compute(change, self.queue.waiting)
            clock.wait()
            decode = clock.now_s()
        pending.drawn = decode_run.run(self.step, cache, count, self._ends)
        clock.wait()
        computes = change is not None and change.prefill_tokens
        return (decode - begin if computes else 0.0), [clock.now_s() - decode + pending.drafting_s]

    def run_now(self, pending: PendingIterations, clock: Callable[[], float]) -> None:
        """Run the first iteration in real time: it begins once its shape is prepared, and ends at the time that ``clock``
        returns.
        """
        before_s = self.journal.prepare_s
        prefill_s, _ = self.run(pending, 1)
        if (prepare_s := self.journal.prepare_s - before_s) > 0:
            pending.prepared_from_s = pending.start_s
            pending.start_s += prepare_s
        pending.set_times(prefill_s, [clock() - (pending.start_s + prefill_s)])

    # Committing

    def commit_while(self, wanted: Callable[[PendingIterations], int], to_s: float) -> list[Completion]:
        """Commit iterations while ``wanted`` asks for more, and complete responses of no tokens that end by ``to_s``."""
        completions: list[Completion] = []
        while True:
            due_s = self.queue.due_s(self.clock_s)
            if due_s <= to_s and due_s < math.inf:
                completions += self.complete_due(due_s)
            elif due_s == math.inf and (pending := self.next()) is not None and (count := wanted(pending)):
                completions += self.commit(pending, count)
            else:
                return completions

    def commit(self, pending: PendingIterations, count: int) -> list[Completion]:
        """Commit at most ``count`` iterations; returns the responses that the last of them finished."""
        if not pending.drawn:
            self.run(pending, count)
        assert pending.decode_run is not None
        done = len(pending.drawn)
        if pending.change is not None:
            self._change_batch(pending, pending.change, pending.decode_run)
        self.clock_s = pending.ends_s[done - 1]
        decode_s = pending.decode_s[:done]
        self.journal.commit(pending.start_s, pending.prefill_s, decode_s, self.clock_s, pending.prepared_from_s)
        if pending.change is not None:
            for s in pending.change.admitted:
                s.first_token_s = self.clock_s if s.first_token_s is None else s.first_token_s
        ends = pending.decode_run.commit(pending.drawn, self._ends)
        if self.drafts is not None:
            self._note_passes(self.drafts, pending, done)
        self.upcoming = pending if pending.drop(done) and not ends else None
        return self._finish(ends) if ends else []

    def _note_passes(self, drafts: PassDrafts, pending: PendingIterations, done: int) -> None:
        batch, kv_tokens, run = len(self.queue.running), pending.kv_tokens, pending.decode_run
        if not isinstance(run, DraftedRun):
            drafts.commit_undrafted(done)
            self._undrafted, nothing = pending.undrafted - done, (0,) * batch
            self.journal.passes += [VerifiedPass(kv_tokens + batch * k, nothing, nothing) for k in range(done)]
            return
        committed, self._undrafted = run.committed, 0
        drafts.commit(committed)
        by_response = [committed[s] for s in self.queue.running]
        drafted, accepted = [n for n, _ in by_response], [len(ids) - 1 for _, ids in by_response]
        self.journal.passes.append(VerifiedPass(kv_tokens, tuple(drafted), tuple(accepted)))

    def _change_batch(self, pending: PendingIterations, change: BatchChange, decode_run: DecodeRun | DraftedRun) -> None:
        for s in change.evicted:
            s.cached_tokens, s.shares = 0, False
        self.journal.leave(s.request.response for s in change.evicted)
        cached, batch = change.cached_tokens, len(decode_run.rows)
        joined = [AdmittedResponse(s.request.response, s.context_tokens, cached[s], s.forced) for s in change.admitted]
        rows, width = batch + decode_run.padding, decode_run.longest
        self.journal.change(batch, pending.kv_tokens, joined, rows=rows, width=width)
        for s, new in zip(change.admitted, joined, strict=True):
            s.prefill_tokens += new.computed_tokens
            s.start_s = pending.start_s if s.start_s is None else s.start_s
            s.kv = None
        self.queue.enter(change.batch, change.admitted, change.evicted)
        self.rows.commit(change, self.queue.waiting)
        self.decode_run = decode_run

    def add(self, responses: Sequence[SequenceState]) -> None:
        """Queue responses; upcoming iterations that one of them may join are forgotten."""
        self.queue.add(responses)
        if self.drafts is not None:
            self.drafts.start(responses)
        self.rows.reserve(self.queue.needed_slots())
        if self.upcoming is not None and any(s.queued_s <= self.upcoming.starts_s[-1] for s in responses):
            self.upcoming = None

    def new_spans(self) -> list[EngineSpan]:
        """Return the spans of the iterations that were committed since the last call, in order of time."""
        first, self._reported = self._reported, len(self.journal.runs)
        return spans_of(self.journal.iteration_runs(first), self.journal.slots) if first < self._reported else []

    def _finish(self, ends: Sequence[SequenceState]) -> list[Completion]:
        self.copy_tokens_to_host()
        left = self.leave(ends)
        self.journal.finish(s.request.response for s in left)
        return [s.completion(self.clock_s, self._stop_ids, self.drafts is not None) for s in left]

    def complete_due(self, due_s: float) -> list[Completion]:
        """Complete the responses of no tokens whose time is ``due_s``, if it is finite."""
        if due_s == math.inf:
            return []
        self.clock_s, self.upcoming = max(self.clock_s, due_s), None
        due = self.queue.empty.take_due(due_s)
        self.journal.finish(s.request.response for s in due)
        return [s.completion(due_s, self._stop_ids, self.drafts is not None) for s in due]

    def leave(self, leaving: Sequence[SequenceState]) -> list[SequenceState]:
        """Remove responses; returns those that were in the batch, in admission order, whose rows are freed.

        The tokens of all responses must be on the host (``copy_tokens_to_host``).
        """
        left = self.queue.remove(set(leaving))
        if self.drafts is not None:
            self.drafts.remove(leaving)
        for s in left:
            self.rows.free(s)
        self.journal.leave(s.request.response for s in left)
        self.decode_run = None if left else self.decode_run
        return left

    def copy_tokens_to_host(self) -> None:
        """Copy the ids of committed iterations to the responses on the host."""
        if self.decode_run is not None:
            self.decode_run.copy_tokens_to_host()
