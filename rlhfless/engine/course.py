"""The course that the responses of a simulated actor take if nothing disturbs it, and how far of it is committed.

Knows a timeline of ``solver.batching`` and positions in it; nothing of requests, arrivals or cuts. Everything is sorted once,
when the course begins, so that a commit and a look at the batch touch only what has changed since the last one.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from rlhfless.engine.columns import Spans
from rlhfless.engine.members import Members, there_tokens
from rlhfless.engine.protocol import EngineSpan
from solver.admission import Admission
from solver.batching import timeline
from solver.latency import LatencyModel
from solver.workload import FloatArray, IntArray

FEW = 8  # stretches that are told at once; where there are more, they wait (and keep the course) until somebody reads them


class Course:
    """The future of ``members`` from the boundary ``base_s``; ``commit`` makes a part of it the past.

    Args:
        running: how many of the members, the first ones, are in the batch.
        known_prompts: prompts whose KV cache is with the actor; those of responses that join are added when that is committed.

    Attributes:
        boundary_s: (I+1,) boundaries between iterations; done: the last one that is committed; clock_s: its time.
        next_s: before this time there is nothing to commit (what has no iterations is complete at ``base_s``).
        finish: (n,) boundaries at which responses end, in order; finishing: (n,) their rows in this order (ties by row).
        reported: how many of these are committed.
        members: noted in them is what is committed of starts, first tokens and prefill (tokens: see ``remaining``).
    """

    def __init__(
        self,
        members: Members,
        running: int,
        base_s: float,
        latency: LatencyModel,
        admission: Admission,
        known_prompts: set[int],
    ) -> None:
        self.members, self._running, self._known_prompts = members, running, known_prompts
        context = members["prompt_tokens"] + members["generated_tokens"]
        remaining = np.maximum(members["target_tokens"] - members["generated_tokens"], 0)
        most = members["prompt_tokens"] + members["limit_tokens"]
        there = there_tokens(members, remaining, known_prompts)
        self._timeline = timeline(remaining, context, most, there, latency, admission, running)
        self.boundary_s = base_s + self._timeline.boundary_s
        self._slots, self._seconds = admission.max_batch, np.diff(self.boundary_s)
        self._batch, self._kv_tokens = self._timeline.batch.astype(float), self._timeline.kv_tokens.astype(float)
        self._prefills: list[int] = np.flatnonzero(self._timeline.prefill_tokens > 0).tolist()
        stay = self._timeline.residency
        self._once = len(stay.response) == len(members)  # nobody is evicted
        finish = np.zeros(len(members), np.int64)
        np.maximum.at(finish, stay.response, stay.last)
        self.finishing = np.argsort(finish, kind="stable")
        self.finish = finish[self.finishing]
        joining = np.flatnonzero(stay.last > stay.first)
        self._joining = joining[np.argsort(stay.first[joining], kind="stable")]
        self._join_at = stay.first[self._joining]
        self._admitted = np.lexsort((stay.response, stay.first))  # stays in order of admission
        self._admitted_at, self._admitted_to = stay.first[self._admitted], stay.last[self._admitted]
        self._changes: IntArray | None = None  # boundaries at which batch or queue change
        self._responses = members["response"][self.finishing]
        self._base_tokens = members["generated_tokens"][self.finishing]
        if self._once:
            first = np.empty(len(members), np.int64)
            first[stay.response] = stay.first
            self._first = first[self.finishing]
        self._shares = bool((members["prompt"] >= 0).any())
        self.done = self.reported = self._joined = 0
        self.clock_s = base_s
        self.next_s = base_s if len(finish) and self.finish[0] == 0 else self._boundary_after(0)
        self._seen: tuple[float, int, tuple[int, ...], tuple[int, ...]] = (-1, 0, (), ())
        self._known: tuple[IntArray, IntArray] | None = None

    def _boundary_after(self, index: int) -> float:
        return float(self.boundary_s[index + 1]) if index + 1 < len(self.boundary_s) else math.inf

    @property
    def over(self) -> bool:
        """Whether nothing is left to commit."""
        return self.done == len(self.boundary_s) - 1

    def completion_index(self, completions: int) -> int | None:
        """The boundary of the ``completions``-th completion from now on; None when fewer are left."""
        place = self.reported + completions - 1
        return int(self.finish[place]) if place < len(self.finish) else None

    # --- what holds at the committed boundary ---------------------------------------------------------------------------

    def batch(self) -> IntArray:
        """Rows in the batch, in order of admission."""
        if not self.done:
            return np.arange(self._running)
        count = int(self._admitted_at.searchsorted(self.done))
        stays = self._admitted[:count][self._admitted_to[:count] > self.done]
        rows: IntArray = self._timeline.residency.response[stays]
        return rows

    def in_batch_and_queue(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Responses in the batch, in order of admission, and the others that are not complete; the same objects as before
        where nothing changed."""
        until, reported, running, waiting = self._seen
        if self.done < until and reported == self.reported:
            return running, waiting
        if self._changes is None:
            stay = self._timeline.residency
            self._changes = np.unique(np.concatenate([stay.first + 1, stay.last]))
        inside = self.batch()
        names = self.members["response"]
        running = tuple(names[inside].tolist())
        waiting = ()
        if len(names) > self.reported + len(inside):
            queued = np.ones(len(names), dtype=bool)
            queued[self.finishing[: self.reported]] = False
            queued[inside] = False
            waiting = tuple(names[queued].tolist())
        place = int(self._changes.searchsorted(self.done, side="right"))
        until = float(self._changes[place]) if place < len(self._changes) else np.inf
        self._seen = (until, self.reported, running, waiting)
        return running, waiting

    def tokens(self) -> tuple[IntArray, IntArray]:
        """Responses that are not complete, and their committed tokens; the same object as before where nothing changed."""
        if self._known is None:
            ahead = slice(self.reported, None)
            if self._once:  # who is not complete goes on beyond ``done``
                tokens = self._base_tokens[ahead] + np.maximum(self.done - self._first[ahead], 0)
            else:
                tokens = self._all_tokens()[self.finishing[ahead]]
            self._known = self._responses[ahead], tokens
        return self._known

    def _all_tokens(self) -> IntArray:
        """(n,) committed tokens of every row."""
        stay = self._timeline.residency
        tokens: IntArray = self.members["generated_tokens"].copy()
        np.add.at(tokens, stay.response, np.maximum(np.minimum(stay.last, self.done) - stay.first, 0))
        return tokens

    def remaining(self) -> tuple[Members, int]:
        """Who is not complete, as of the committed boundary: the batch, then the queue; and how many are in the batch.

        Evicted responses are at the front of the queue, the last evicted first.
        """
        stay, members, inside = self._timeline.residency, self.members.copy(), self.batch()
        members["generated_tokens"] = self._all_tokens()
        in_batch, joined, reported = (np.zeros(len(members), dtype=bool) for _ in range(3))
        in_batch[inside] = True
        joined[stay.response[(stay.first < self.done) & (stay.last > stay.first)]] = True
        reported[self.finishing[: self.reported]] = True
        members["has_kv"][joined] = in_batch[joined]
        members["there_tokens"][joined], members["prompt"][joined] = 0, -1  # who is evicted computes its whole context
        inside = inside[~reported[inside]]
        rest = ~in_batch & ~reported
        evicted = np.flatnonzero(rest & joined)
        if len(evicted):
            left = np.zeros(len(members), np.int64)
            gone = stay.last <= self.done
            np.maximum.at(left, stay.response[gone], stay.last[gone])
            evicted = evicted[np.argsort(-left[evicted], kind="stable")]
        return members[np.concatenate([inside, evicted, np.flatnonzero(rest & ~joined)])], len(inside)

    # --- committing -----------------------------------------------------------------------------------------------------

    def commit(self, until: int) -> tuple[Members, FloatArray, Sequence[EngineSpan]]:
        """Commit the iterations up to boundary ``until``: rows that are complete now, in order of time, when they were, and
        what the actor did.

        Starts, first tokens and prefill are noted in ``members``.
        """
        first, before = self.done, self.reported
        joined = int(self._join_at.searchsorted(until))
        if joined > self._joined:
            self._join(self._joining[self._joined : joined])
        self._joined, self.done, self._known = joined, until, None
        self.clock_s, self.next_s = float(self.boundary_s[until]), self._boundary_after(until)
        self.reported = int(self.finish.searchsorted(until, side="right"))
        over = slice(before, self.reported)
        return self.members[self.finishing[over]], self.boundary_s[self.finish[over]], self._spans(first, until)

    def _join(self, stays: IntArray) -> None:
        """Stays begin: note when, the first of a response counting."""
        stay, members = self._timeline.residency, self.members
        np.add.at(members["prefill_tokens"], stay.response[stays], stay.prefill[stays])
        if self._shares:
            self._known_prompts.update(members["prompt"][stay.response[stays]].tolist())
        for name, offset in (("start_s", 0), ("first_token_s", 1)):
            new = stays[np.isnan(members[name][stay.response[stays]])][::-1]  # of equal rows the last assignment holds
            members[name][stay.response[new]] = self.boundary_s[stay.first[new] + offset]

    def _spans(self, first: int, until: int) -> Sequence[EngineSpan]:
        """A prefill span wherever one was computed, and a decode span for every stretch between."""
        if until == first:
            return []
        prefills = self._prefills
        within = prefills[bisect.bisect_right(prefills, first) : bisect.bisect_left(prefills, until)]
        told = self._tell([first, *within, until])
        return Spans(lambda: list(told)) if len(within) > FEW else list(told)

    def _tell(self, stretches: Sequence[int]) -> Iterator[EngineSpan]:
        """The spans between boundaries of which all but the first and the last begin with a prefill."""
        t, at = self._timeline, self.boundary_s
        for a, b in itertools.pairwise(stretches):
            begin, seconds = float(at[a]), self._seconds[a:b]
            if t.prefill_tokens[a] > 0:
                seconds = seconds.copy()
                seconds[0] -= t.prefill_s[a]
                ready = begin + float(t.prefill_s[a])
                joined = (t.residency.first == a) & (t.residency.prefill > 0) & (t.residency.last > a)
                tokens = int(t.prefill_tokens[a])
                yield EngineSpan("prefill", begin, ready, float(joined.sum()), self._slots, tokens, float(tokens))
                begin = ready
            end = float(at[b])
            if b == a + 1:  # most commits of a step that is disturbed often
                total, x, y = float(seconds[0]), float(self._batch[a]), float(self._kv_tokens[a])
                batch, kv_tokens = (total * x / total, total * y / total) if total > 0 else (x, y)
                yield EngineSpan("decode", begin, end, batch, self._slots, int(x), kv_tokens)
                continue
            total = float(seconds.sum())
            batch, kv_tokens = (
                float(np.dot(seconds, x[a:b]) / total) if total > 0 else float(x[a]) for x in (self._batch, self._kv_tokens)
            )
            yield EngineSpan("decode", begin, end, batch, self._slots, int(t.batch[a:b].sum()), kv_tokens)
