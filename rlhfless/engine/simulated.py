"""The simulated engine: lengths from a log, times from the full profile table.

Knows true lengths and the latency model; nothing of tokens. Its iterations are those of ``solver.batching`` (the planner's
own arithmetic), so an undisturbed actor is finished in one numpy call. Whatever disturbs it (an arrival, a cut) makes it
commit up to that boundary and compute its future anew.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlhfless.engine.protocol import Completion, EngineSpan, Progress, Request
from solver.admission import Admission
from solver.batching import Timeline, timeline
from solver.latency import LatencyModel
from solver.workload import IntArray

MOVED_KV = "kv"  # stands for the KV state of a simulated response: only its presence matters


@dataclass
class _Member:
    """A response that is with the engine: what it was at the base of the current timeline, and what was recorded of it."""

    request: Request
    generated_tokens: int
    has_kv: bool
    start_s: float | None
    first_token_s: float | None
    prefill_tokens: int


class SimulatedEngine:
    """An engine of ``rlhfless.engine.protocol`` that decodes nothing and takes the time that the profile says.

    Args:
        latency: charged with its measured table where it has one.
        admission: slots, KV memory and rule.
        clock_s: when it is ready.
    """

    def __init__(self, latency: LatencyModel, admission: Admission, clock_s: float = 0.0) -> None:
        self.slots = admission.max_batch
        self._latency, self._admission = latency, admission
        self._running: list[_Member] = []
        self._waiting: list[_Member] = []
        self._arriving: list[_Member] = []  # not yet available, earliest first
        self._base_s = clock_s
        self._plan(clock_s)

    @property
    def clock_s(self) -> float:
        """End of the last committed iteration."""
        return float(self._boundary_s[self._done])

    def add(self, requests: Sequence[Request]) -> None:
        """See the protocol. Every request needs ``target_tokens``."""
        for r in requests:
            if r.target_tokens is None:
                raise ValueError(f"response {r.response} has no target_tokens; the simulated engine needs its true length")
            self._arriving.append(
                _Member(r, r.generated_tokens, r.kv is not None, r.start_s, r.first_token_s, r.prefill_tokens_computed)
            )
        self._arriving.sort(key=lambda m: m.request.available_s)
        self._take_in(-math.inf)

    def peek_next_event_s(self, completions: int = 1) -> float:
        """See the protocol."""
        limit = self._next_arrival_index()
        ahead = self._finish[np.count_nonzero(self._reported) :]
        if len(ahead) >= completions:
            index = int(ahead[completions - 1])
            if limit is None or index <= limit:
                return float(self._boundary_s[index])
        return math.inf if limit is None else max(float(self._boundary_s[limit]), self._arriving[0].request.available_s)

    def advance(self, to_s: float) -> Progress:
        """See the protocol."""
        progress = Progress([], [])
        while True:
            limit = self._next_arrival_index()
            last = int(np.searchsorted(self._boundary_s, to_s, side="right")) - 1
            if last >= self._done:
                self._commit(last if limit is None else min(last, limit), progress)
            if not self._take_in(to_s):
                return progress

    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> tuple[list[Request], Progress]:
        """See the protocol."""
        progress = self.advance(at_s)
        if self.clock_s < at_s and self._done < len(self._boundary_s) - 1:
            self._commit(self._done + 1, progress)
        self._materialise()
        chosen = None if responses is None else set(responses)
        taken: list[Request] = []
        for members in (self._running, self._waiting, self._arriving):
            for m in list(members):
                if chosen is None or m.request.response in chosen:
                    members.remove(m)
                    taken.append(self._export(m))
        self._plan(self.clock_s)
        return taken, progress

    def generated_tokens(self) -> dict[int, int]:
        """See the protocol."""
        left = ~self._reported
        known = dict(zip(self._response[left].tolist(), self._tokens_now()[left].tolist(), strict=True))
        return known | {m.request.response: m.generated_tokens for m in self._arriving}

    def running(self) -> tuple[int, ...]:
        """See the protocol."""
        return tuple(self._response[self._in_batch()].tolist())

    def waiting(self) -> tuple[int, ...]:
        """See the protocol."""
        queued = ~self._reported
        queued[self._in_batch()] = False
        return (*self._response[queued].tolist(), *(m.request.response for m in self._arriving))

    def sync(self, weights: Any, weights_version: int) -> None:
        """Nothing to take over: lengths come from the log."""

    def close(self) -> None:
        """Nothing to give back."""

    # --- the current timeline -------------------------------------------------------------------------------------

    def _plan(self, base_s: float) -> None:
        """Compute the future of running and waiting responses from the boundary ``base_s``."""
        order = self._running + self._waiting
        remaining = np.array([m.request.target_tokens - m.generated_tokens for m in order], dtype=np.int64)  # type: ignore[operator]
        context = np.array([m.request.prompt_tokens + m.generated_tokens for m in order], dtype=np.int64)
        most = np.array([m.request.prompt_tokens + m.request.limit_tokens for m in order], dtype=np.int64)
        has_kv = np.array([m.has_kv for m in order], dtype=bool)
        self._order = order
        self._response = np.array([m.request.response for m in order], dtype=np.int64)
        self._before = np.array([m.generated_tokens for m in order], dtype=np.int64)
        self._timeline: Timeline = timeline(
            np.maximum(remaining, 0), context, most, has_kv, self._latency, self._admission, len(self._running)
        )
        self._base_s = base_s
        self._boundary_s = base_s + self._timeline.boundary_s
        finish = np.zeros(len(order), np.int64)
        np.maximum.at(finish, self._timeline.residency.response, self._timeline.residency.last)
        self._finish_of = finish
        self._finish = np.sort(finish)
        self._done = 0
        self._reported = np.zeros(len(order), dtype=bool)

    def _next_arrival_index(self) -> int | None:
        """The first boundary, from the committed one on, at which an arriving response may join; None without arrivals."""
        if not self._arriving:
            return None
        index = int(np.searchsorted(self._boundary_s, self._arriving[0].request.available_s, side="left"))
        return min(max(index, self._done), len(self._boundary_s) - 1)

    def _take_in(self, to_s: float) -> bool:
        """At the committed boundary, queue what is available and plan anew; an idle engine's clock jumps, ``to_s`` at most.

        Returns whether anything was taken in.
        """
        if not self._arriving:
            return False
        clock, first_s = self.clock_s, self._arriving[0].request.available_s
        idle = self._done == len(self._boundary_s) - 1
        if first_s > clock and not (idle and first_s <= to_s):
            return False
        self._materialise()
        clock = max(clock, first_s)
        while self._arriving and self._arriving[0].request.available_s <= clock:
            self._waiting.append(self._arriving.pop(0))
        self._plan(clock)
        return True

    def _in_batch(self) -> list[int]:
        """Members in the batch at the committed boundary, in order of admission."""
        r = self._timeline.residency
        inside = np.flatnonzero((r.first < self._done) & (r.last > self._done))
        order = np.lexsort((r.response[inside], r.first[inside]))
        return [int(i) for i in r.response[inside][order]] if self._done else list(range(len(self._running)))

    def _tokens_now(self) -> IntArray:
        """Committed tokens of the responses of the current timeline."""
        r = self._timeline.residency
        tokens = self._before.copy()
        np.add.at(tokens, r.response, np.clip(np.minimum(r.last, self._done) - r.first, 0, None))
        return tokens

    def _materialise(self) -> None:
        """Write the committed state back into the members, so that a new timeline can start here."""
        inside = self._in_batch()
        batch = set(inside)
        tokens = self._tokens_now().tolist()
        r = self._timeline.residency
        joined = np.zeros(len(self._order), dtype=bool)
        joined[r.response[(r.first < self._done) & (r.last > r.first)]] = True
        for i, m in enumerate(self._order):
            m.generated_tokens = tokens[i]
            if joined[i]:
                m.has_kv = i in batch
        self._running = [self._order[i] for i in inside if not self._reported[i]]
        rest = [i for i in range(len(self._order)) if i not in batch and not self._reported[i]]
        # evicted responses went to the front of the queue, the last evicted first
        evicted = [i for i in rest if joined[i]]
        evicted.sort(key=lambda i: -int(r.last[(r.response == i) & (r.last <= self._done)].max()))
        self._waiting = [self._order[i] for i in evicted] + [self._order[i] for i in rest if not joined[i]]

    def _export(self, m: _Member) -> Request:
        return replace(
            m.request,
            generated_tokens=m.generated_tokens,
            kv=MOVED_KV if m.has_kv else None,
            start_s=m.start_s,
            first_token_s=m.first_token_s,
            prefill_tokens_computed=m.prefill_tokens,
        )

    # --- committing -----------------------------------------------------------------------------------------------

    def _commit(self, until: int, progress: Progress) -> None:
        """Commit iterations up to boundary ``until``: note starts and first tokens, report completions and spans."""
        first, r, at = self._done, self._timeline.residency, self._boundary_s
        for v in np.flatnonzero((r.first >= first) & (r.first < until) & (r.last > r.first)):
            m = self._order[int(r.response[v])]
            if m.start_s is None:
                m.start_s = float(at[r.first[v]])
            if m.first_token_s is None:
                m.first_token_s = float(at[r.first[v] + 1])
            m.prefill_tokens += int(r.prefill[v])
        self._done = until
        over = np.flatnonzero((self._finish_of <= until) & ~self._reported)
        for i in over[np.argsort(self._finish_of[over], kind="stable")]:
            m, end = self._order[int(i)], float(at[self._finish_of[i]])
            self._reported[i] = True
            assert m.request.target_tokens is not None
            progress.completions.append(
                Completion(
                    m.request.response,
                    end,
                    m.request.target_tokens,
                    m.request.target_finish,
                    end if m.first_token_s is None else m.first_token_s,
                    end if m.start_s is None else m.start_s,
                    m.prefill_tokens,
                )
            )
        self._spans(first, until, progress.spans)

    def _spans(self, first: int, until: int, spans: list[EngineSpan]) -> None:
        """A prefill span wherever one was computed, and a decode span for every stretch between."""
        if until == first:
            return
        t, at = self._timeline, self._boundary_s
        cuts = [first, *(first + 1 + np.flatnonzero(t.prefill_tokens[first + 1 : until] > 0)).tolist(), until]
        for a, b in itertools.pairwise(cuts):
            begin = float(at[a])
            if t.prefill_tokens[a] > 0:
                ready = begin + float(t.prefill_s[a])
                joined = (t.residency.first == a) & (t.residency.prefill > 0) & (t.residency.last > a)
                tokens = int(t.prefill_tokens[a])
                spans.append(EngineSpan("prefill", begin, ready, float(joined.sum()), self.slots, tokens, float(tokens)))
                begin = ready
            seconds = np.diff(at[a : b + 1])
            seconds[0] -= t.prefill_s[a]
            total = float(seconds.sum())
            mean = [float(np.dot(seconds, x[a:b]) / total) if total > 0 else float(x[a]) for x in (t.batch, t.kv_tokens)]
            spans.append(EngineSpan("decode", begin, float(at[b]), mean[0], self.slots, int(t.batch[a:b].sum()), mean[1]))
