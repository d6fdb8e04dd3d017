"""The simulated engine: lengths from a log, times from the full profile table, no tokens.

Its iterations are those of ``solver.timing.batching`` (the planner's own arithmetic), so an undisturbed actor is finished in
one numpy call. A response that joins or leaves changes a batch in place where all responses decode (``running_batch.py``). Else
another schedule takes over: after a cut from the committed boundary on, after an arrival from where it can join.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhfless.engine.protocol import Progress, Request
from rlhfless.engine.simulated.committed import CommittedParts
from rlhfless.engine.simulated.requests import (
    MOVED_KV,
    Members,
    Requests,
    changed,
    exported,
    members_of,
    refusal,
    row_of,
    together,
)  # fmt: skip
from rlhfless.engine.simulated.running_batch import RunningBatch
from rlhfless.engine.simulated.start import Schedule, followed, scheduled
from rlhfless.errors import InputError
from solver.model.admission import Admission
from solver.model.latency import LatencyModel
from solver.model.workload import IntArray


class SimulatedEngine:
    """An engine that computes no tokens: responses have given lengths, and times come from the latency profile.

    Args:
        latency: gives the seconds of iterations, from its measured table if it has one.
        admission: slots, KV memory and admission rule.
        clock_s: time at which the engine is ready.
    """

    reuses_prefixes = True

    def __init__(self, latency: LatencyModel, admission: Admission, clock_s: float = 0.0) -> None:
        self.slots = admission.max_batch
        self._latency, self._admission = latency, admission
        self._requests: dict[int, Request] = {}
        self._unread: list[Requests] = []  # not in ``_requests`` yet
        self._arriving: list[Request] = []  # not yet available, earliest first
        self._members: Members = members_of([])  # while there is no schedule: the batch, then the queue, at ``_base_s``
        self._running = 0  # how many of them are in the batch
        self._base_s = clock_s
        self._upcoming: Schedule | None = None  # from there on; None until it is asked for
        self._later: list[tuple[Schedule, int]] = []  # schedules after it, with how many arrivals they begin
        self._cached_prompts: set[int] = set()  # whose KV cache is here for all that share it

    @property
    def clock_s(self) -> float:
        """Return the end of the last committed iteration."""
        return self._base_s if self._upcoming is None else self._upcoming.clock_s

    def add(self, requests: Sequence[Request]) -> None:
        """See the protocol. Every request needs ``target_tokens``."""
        if isinstance(requests, Requests) and requests.at_once and not self._arriving:
            self._unread.append(requests)
            if requests.available_s[0] <= self.clock_s:
                self._leave_schedule()
                self._members = together(self._members, requests.rows)
                return
        else:
            self._read_requests()
            for r in requests:
                if (reason := refusal(r)) is not None:
                    raise InputError(reason)
                self._requests[r.response] = r
        for r in requests:
            bisect.insort(self._arriving, r, key=_available_s)
            while self._later and self._later[-1][0].base_s >= r.available_s:
                self._later.pop()
            last = self._later[-1][0] if self._later else self._upcoming
            if isinstance(last, RunningBatch):
                last.take_back(r.available_s)
        self._queue_available(-math.inf)

    def peek_next_event_s(self, completions: int = 1) -> float:
        """See the protocol. Includes arrivals, unless their prefill depends on which responses have joined by then."""
        schedule, later, taken = self._schedule(), 0, 0
        while True:
            taken += self._let_join(schedule, taken, count=completions)
            limit = self._next_arrival_index(schedule, taken)
            known, at_s = schedule.completes(completions, limit)
            if known == completions:
                return at_s
            if limit is None:
                return math.inf
            completions -= known
            if schedule.shares:
                return max(schedule.iterations.end_s(limit), self._arriving[taken].available_s)
            if later == len(self._later):
                self._later.append(self._after_arrivals(schedule, limit, schedule.reported + known, taken))
            schedule, taken = self._later[later][0], taken + self._later[later][1]
            later += 1

    def advance(self, to_s: float) -> Progress:
        """See the protocol."""
        batch = self._upcoming
        if not self._arriving and isinstance(batch, RunningBatch) and batch.iterations.last_by(to_s) <= batch.done:
            return Progress([], [])
        committed = CommittedParts()
        while True:
            # right after a cut the clock may be ahead: then there is nothing to commit, and the schedule may change again
            schedule = self._schedule()
            if to_s >= schedule.clock_s:
                taken = self._let_join(schedule, until_s=to_s)
                until = schedule.iterations.last_by(to_s)
                if taken < len(self._arriving) and self._arriving[taken].available_s <= to_s:
                    until = min(until, max(schedule.iterations.first_from(self._arriving[taken].available_s), schedule.done))
                if until > schedule.done or schedule.begins_with_completions:
                    self._commit(schedule, until, committed)
            if not self._arriving or not self._queue_available(to_s):
                return committed.progress()

    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> tuple[list[Request], Progress]:
        """See the protocol."""
        committed = CommittedParts(self.advance(at_s))
        schedule, self._later = self._schedule(), []
        if isinstance(schedule, RunningBatch):
            schedule.take_back()
        if self.clock_s < at_s and not schedule.over:
            self._commit(schedule, schedule.done + 1, committed)
        self._read_requests()
        if isinstance(schedule, RunningBatch):
            taken = [exported(self._requests[row[0]], row) for row in schedule.leave(responses)]
            if schedule.over:
                self._members, self._running, self._base_s, self._upcoming = members_of([]), 0, schedule.clock_s, None
            return taken + self._export_arriving(responses), committed.progress()
        members, running = schedule.remaining(schedule.done, schedule.reported)
        leaves = np.ones(len(members), dtype=bool)
        if responses is not None:
            leaves = np.isin(members["response"], np.array(responses, dtype=np.int64))
        taken = [exported(self._requests[row[0]], row) for row in members[leaves].tolist()]
        going_on = members[~leaves]
        left = running - int(np.count_nonzero(leaves[:running]))
        after = None
        if len(going_on) and running == len(members):
            after = followed(schedule, schedule.done, going_on, left, schedule.clock_s, self._latency, self._admission)
        self._members, self._running, self._base_s, self._upcoming = going_on, left, schedule.clock_s, after
        return taken + self._export_arriving(responses), committed.progress()

    def generated_tokens(self) -> dict[int, int]:
        """See the protocol."""
        responses, tokens, _ = self.token_arrays()
        return dict(zip(responses.tolist(), tokens.tolist(), strict=True))

    def token_arrays(self) -> tuple[IntArray, IntArray, int]:
        """See ``SupportsTokenArrays``."""
        responses, tokens, running = (self._upcoming or self._schedule()).tokens()
        if self._arriving:
            responses = np.append(responses, [r.response for r in self._arriving])
            tokens = np.append(tokens, [r.generated_tokens for r in self._arriving])
        return responses, tokens, running

    def running(self) -> tuple[int, ...]:
        """See the protocol."""
        responses, _, running = self.token_arrays()
        return tuple(responses[:running].tolist())

    def waiting(self) -> tuple[int, ...]:
        """See the protocol."""
        responses, _, running = self.token_arrays()
        return tuple(responses[running:].tolist())

    def sync(self, weights: Any, weights_version: int) -> None:
        """Do nothing: lengths come from the log."""

    def close(self) -> None:
        """Do nothing: there is no memory to free."""

    # --- disturbances -----------------------------------------------------------------------------------------------

    def _schedule(self) -> Schedule:
        """Return the schedule after the boundary ``base_s``, and how much of it is committed."""
        if self._upcoming is None:
            self._upcoming = scheduled(
                self._members, self._running, self._base_s, self._latency, self._admission, self._cached_prompts
            )
        return self._upcoming

    def _let_join(self, schedule: Schedule, begun: int = 0, until_s: float = math.inf, count: float = math.inf) -> int:
        """Let responses that arrive by then join a batch, until it knows so many completions, while nothing else changes for
        it; return how many are coming.

        Args:
            begun: arriving responses with which it begins, or which have joined before.
        """
        if not self._arriving or not isinstance(schedule, RunningBatch):
            return 0
        coming, iterations = schedule.waited_for, schedule.iterations
        last = not self._later or self._later[-1][0] is schedule
        while last and (taken := begun + coming) < len(self._arriving):
            available_s = self._arriving[taken].available_s
            if available_s > until_s:
                break
            at = max(iterations.first_from(available_s), schedule.done)
            base_s = iterations.end_s(at)
            if schedule.ending_by(at) >= count or base_s < available_s:
                break
            until = bisect.bisect_right(self._arriving, base_s, taken, key=_available_s)
            if not schedule.join(at, [row_of(r) for r in self._arriving[taken:until]]):
                break
            coming = until - begun
        return coming

    def _leave_schedule(self) -> None:
        """Make the committed boundary the base from which another schedule can start."""
        if self._upcoming is not None:
            schedule, self._upcoming, self._later = self._upcoming, None, []
            self._base_s = schedule.clock_s
            self._members, self._running = schedule.remaining(schedule.done, schedule.reported)

    def _next_arrival_index(self, schedule: Schedule, taken: int = 0) -> int | None:
        """Return the first boundary, from the committed one on, at which an arriving response may join; None without one.

        The first ``taken`` arriving responses are skipped.
        """
        if taken == len(self._arriving):
            return None
        return max(schedule.iterations.first_from(self._arriving[taken].available_s), schedule.done)

    def _after_arrivals(self, schedule: Schedule, at: int, reported: int, taken: int = 0) -> tuple[Schedule, int]:
        """Return the schedule from a boundary on with the responses that can join there, and their number.

        Args:
            reported: completions of this schedule by then. taken: number of arriving responses that have joined before.
        """
        base_s = max(schedule.iterations.end_s(at), self._arriving[taken].available_s)
        count = bisect.bisect_right(self._arriving, base_s, taken, key=_available_s) - taken
        members, running = schedule.remaining(at, reported)
        everyone = together(members, members_of(self._arriving[taken : taken + count]))
        after = None
        if running == len(members):
            after = followed(schedule, at, everyone, running, base_s, self._latency, self._admission)
        if after is None:
            return scheduled(everyone, running, base_s, self._latency, self._admission, self._cached_prompts), count
        return after, count

    def _queue_available(self, to_s: float) -> bool:
        """At the committed boundary, queue available responses; an idle engine's clock jumps, ``to_s`` at most.

        Returns whether any response was queued.
        """
        if not self._arriving:
            return False
        clock_s, first_s = self.clock_s, self._arriving[0].available_s
        if first_s > clock_s and not (first_s <= to_s and self._schedule().over):
            return False
        schedule = self._schedule()
        if coming := self._let_join(schedule, until_s=clock_s):
            assert isinstance(schedule, RunningBatch)
            schedule.enter()
            del self._arriving[: coming - schedule.waited_for]
            return True
        if not self._later:
            self._later.append(self._after_arrivals(schedule, schedule.done, schedule.reported))
        self._upcoming, count = self._later.pop(0)
        del self._arriving[:count]
        return True

    def _read_requests(self) -> None:
        for requests in self._unread:
            self._requests.update(zip(requests.rows["response"].tolist(), requests, strict=True))
        self._unread.clear()

    def _finish_of(self, response: int) -> str:
        if self._unread:
            self._read_requests()
        return self._requests[response].target_finish

    def _export_arriving(self, responses: Sequence[int] | None) -> list[Request]:
        """Take responses that have not arrived yet (all when None) off the engine."""
        leaving = [r for r in self._arriving if responses is None or r.response in responses]
        for r in leaving:
            self._arriving.remove(r)
        return [changed(r, kv=None if r.kv is None else MOVED_KV, cached_tokens=0, shares_prompt=False) for r in leaving]

    def _commit(self, schedule: Schedule, until: int, committed: CommittedParts) -> None:
        """Commit iterations up to boundary ``until`` and note their completions."""
        first, coming = schedule.done, 0
        if isinstance(schedule, RunningBatch):
            coming = schedule.waited_for
        before, _ = schedule.commit(until)
        if isinstance(schedule, RunningBatch):
            del self._arriving[: coming - schedule.waited_for]
        elif schedule.shares:
            self._cached_prompts.update(schedule.members["prompt"][schedule.computing(first, until)].tolist())
        committed.add(schedule, self.slots, first, before, self._finish_of)


def _available_s(request: Request) -> float:
    return request.available_s
