"""The simulated engine: lengths from a log, times from the full profile table.

Knows true lengths and the latency model; nothing of tokens. Its iterations are those of ``solver.batching`` (the planner's
own arithmetic), so an undisturbed actor is finished in one numpy call. Whatever disturbs it (an arrival, a cut) makes it
commit up to that boundary and compute its course (``rlhfless.engine.course``) anew when it is next asked about it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlhfless.engine.columns import Completions, Spans, joined
from rlhfless.engine.course import Course
from rlhfless.engine.members import Members, Requests, members_of, refusal
from rlhfless.engine.protocol import Completion, EngineSpan, Progress, Request
from solver.admission import Admission
from solver.latency import LatencyModel
from solver.workload import IntArray

MOVED_KV = "kv"  # stands for the KV state of a simulated response: only its presence matters


class SimulatedEngine:
    """An engine of ``rlhfless.engine.protocol`` that decodes nothing and takes the time that the profile says.

    Args:
        latency: charged with its measured table where it has one.
        admission: slots, KV memory and rule.
        clock_s: when it is ready.
    """

    reuses_prefixes = True

    def __init__(self, latency: LatencyModel, admission: Admission, clock_s: float = 0.0) -> None:
        self.slots = admission.max_batch
        self._latency, self._admission = latency, admission
        self._requests: dict[int, Request] = {}
        self._given: list[Requests] = []  # not in ``_requests`` yet
        self._arriving: list[Request] = []  # not yet available, earliest first
        self._members: Members = members_of([])  # the batch, then the queue, at the boundary ``base_s``
        self._running = 0  # how many of them are in the batch
        self._base_s = clock_s
        self._ahead: Course | None = None  # from there on; None until it is asked for
        self._known_prompts: set[int] = set()  # whose KV cache is here for all that share it

    @property
    def clock_s(self) -> float:
        """End of the last committed iteration."""
        return self._base_s if self._ahead is None else self._ahead.clock_s

    def add(self, requests: Sequence[Request]) -> None:
        """See the protocol. Every request needs ``target_tokens``."""
        if isinstance(requests, Requests) and requests.at_once and not self._arriving:
            self._given.append(requests)
            if requests.available_s[0] <= self.clock_s:
                self._materialise()
                self._members = np.concatenate([self._members, requests.rows])
                return
        else:
            self._read_given()
            for r in requests:
                if (why := refusal(r)) is not None:
                    raise ValueError(why)
                self._requests[r.response] = r
        self._arriving.extend(requests)
        self._arriving.sort(key=lambda r: r.available_s)
        self._take_in(-math.inf)

    def peek_next_event_s(self, completions: int = 1) -> float:
        """See the protocol."""
        course = self._course()
        limit, index = self._next_arrival_index(course), course.completion_index(completions)
        if index is not None and (limit is None or index <= limit):
            return float(course.boundary_s[index])
        return math.inf if limit is None else max(float(course.boundary_s[limit]), self._arriving[0].available_s)

    def advance(self, to_s: float) -> Progress:
        """See the protocol."""
        committed = _Committed()
        while True:
            # right after a cut the clock may be ahead: then there is nothing to commit, and the course may change again
            if to_s >= self.clock_s and to_s >= (course := self._course()).next_s:
                last = int(course.boundary_s.searchsorted(to_s, side="right")) - 1
                limit = self._next_arrival_index(course)
                self._commit(course, last if limit is None else min(last, limit), committed)
            if not self._take_in(to_s):
                return committed.progress()

    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> tuple[list[Request], Progress]:
        """See the protocol."""
        committed = _Committed(self.advance(at_s))
        if self.clock_s < at_s and not (course := self._course()).over:
            self._commit(course, course.done + 1, committed)
        self._materialise()
        leaves = np.ones(len(self._members), dtype=bool)
        if responses is not None:
            leaves = np.isin(self._members["response"], np.array(responses, dtype=np.int64))
        taken = [self._export(row) for row in self._members[leaves].tolist()]
        self._running -= int(np.count_nonzero(leaves[: self._running]))
        self._members = self._members[~leaves]
        for r in [r for r in self._arriving if responses is None or r.response in responses]:
            self._arriving.remove(r)
            taken.append(replace(r, kv=None if r.kv is None else MOVED_KV, there_tokens=0, shares_prompt=False))
        return taken, committed.progress()

    def generated_tokens(self) -> dict[int, int]:
        """See the protocol."""
        responses, tokens = self.generated_arrays()
        return dict(zip(responses.tolist(), tokens.tolist(), strict=True))

    def generated_arrays(self) -> tuple[IntArray, IntArray]:
        """``generated_tokens`` as (n,) responses and (n,) committed tokens, for those who ask often."""
        responses, tokens = self._course().tokens()
        if self._arriving:
            responses = np.append(responses, [r.response for r in self._arriving])
            tokens = np.append(tokens, [r.generated_tokens for r in self._arriving])
        return responses, tokens

    def running(self) -> tuple[int, ...]:
        """See the protocol. The same object as before where nothing changed."""
        return self._course().in_batch_and_queue()[0]

    def waiting(self) -> tuple[int, ...]:
        """See the protocol. The same object as before where nothing changed."""
        queued = self._course().in_batch_and_queue()[1]
        return (*queued, *(r.response for r in self._arriving)) if self._arriving else queued

    def sync(self, weights: Any, weights_version: int) -> None:
        """Nothing to take over: lengths come from the log."""

    def close(self) -> None:
        """Nothing to give back."""

    # --- disturbances -----------------------------------------------------------------------------------------------

    def _course(self) -> Course:
        """What comes after the boundary ``base_s``, with what is committed of it."""
        if self._ahead is None:
            self._ahead = Course(
                self._members, self._running, self._base_s, self._latency, self._admission, self._known_prompts
            )
        return self._ahead

    def _materialise(self) -> None:
        """Take the committed boundary as the base: another course can start there."""
        if self._ahead is not None:
            self._base_s = self._ahead.clock_s
            self._members, self._running = self._ahead.remaining()
            self._ahead = None

    def _next_arrival_index(self, course: Course) -> int | None:
        """The first boundary, from the committed one on, at which an arriving response may join; None without arrivals."""
        if not self._arriving:
            return None
        index = int(course.boundary_s.searchsorted(self._arriving[0].available_s, side="left"))
        return min(max(index, course.done), len(course.boundary_s) - 1)

    def _take_in(self, to_s: float) -> bool:
        """At the committed boundary, queue what is available; an idle engine's clock jumps, ``to_s`` at most.

        Returns whether anything was taken in.
        """
        if not self._arriving:
            return False
        clock_s, first_s = self.clock_s, self._arriving[0].available_s
        if first_s > clock_s and not (first_s <= to_s and self._course().over):
            return False
        self._materialise()
        self._base_s = max(clock_s, first_s)
        count = sum(r.available_s <= self._base_s for r in self._arriving)
        self._members = np.concatenate([self._members, members_of(self._arriving[:count])])
        del self._arriving[:count]
        return True

    def _read_given(self) -> None:
        for given in self._given:
            self._requests.update((r.response, r) for r in given)
        self._given.clear()

    def _request(self, response: int) -> Request:
        """A response as it came last."""
        self._read_given()
        return self._requests[response]

    def _export(self, row: tuple[Any, ...]) -> Request:
        """A member as a request that another engine can go on with."""
        response, _, _, _, tokens, has_kv, _, _, start_s, first_token_s, prefill_tokens = row
        return replace(
            self._request(response),
            generated_tokens=tokens,
            kv=MOVED_KV if has_kv else None,
            there_tokens=0,
            shares_prompt=False,
            start_s=None if math.isnan(start_s) else start_s,
            first_token_s=None if math.isnan(first_token_s) else first_token_s,
            prefill_tokens_computed=prefill_tokens,
        )

    def _commit(self, course: Course, until: int, committed: _Committed) -> None:
        """Commit iterations up to boundary ``until`` and note what they completed."""
        rows, ends_s, spans = course.commit(until)
        committed.spans.append(spans)
        if not len(rows):
            return

        def make(i: int) -> Completion:
            response, _, _, target_tokens, *_, start_s, first_token_s, prefill_tokens = rows[i].item()
            end_s = float(ends_s[i])
            return Completion(
                response,
                end_s,
                target_tokens,
                self._request(response).target_finish,
                end_s if math.isnan(first_token_s) else first_token_s,
                end_s if math.isnan(start_s) else start_s,
                prefill_tokens,
            )

        committed.completions.append(Completions(rows["response"], ends_s, rows["target_tokens"], make))


class _Committed:
    """What is committed, part by part, after what ``before`` says."""

    def __init__(self, before: Progress | None = None) -> None:
        self.completions = [Completions.of(before.completions)] if before is not None and before.completions else []
        self.spans = [before.spans] if before is not None else []

    def progress(self) -> Progress:
        """All of it."""
        parts = self.spans
        spans: Sequence[EngineSpan] = Spans(lambda: list(itertools.chain(*parts))) if len(parts) > 1 else [*parts, []][0]
        return Progress(joined(self.completions), spans)
