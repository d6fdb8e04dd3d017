"""Journal of an actor's iterations, the only record of them: batches, token counts and seconds.

Spans are read from it (``spans.spans_of``), iterations are replayed and retimed from it. It holds token ids only where the
prefix cache of an engine depends on them. A batch that
stays unchanged needs one entry however many iterations it lasts, so keeping a journal costs an iteration well under a
microsecond.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhfless.engine.common.spans import IterationRun, PrefillPart


class AdmittedResponse(NamedTuple):
    """A response that joins the batch.

    Attributes:
        context_tokens: KV tokens of its context at its first iteration here.
        cached_tokens: cached tokens among them, which prefill need not compute.
        forced: its length was given, so that the end of text is not checked.
    """

    response: int
    context_tokens: int
    cached_tokens: int
    forced: bool

    @property
    def prefill_tokens(self) -> int:
        """Return the uncached tokens of its context: what a latency model charges prefill for."""
        return self.context_tokens - self.cached_tokens

    @property
    def computed_tokens(self) -> int:
        """Return the tokens that prefill computes: the uncached ones but the last, which its first iteration feeds."""
        return max(0, self.prefill_tokens - 1)


class JournalledBatch(NamedTuple):
    """A new batch that is decoded from ``iteration`` on.

    Attributes:
        batch: number of responses that get a token; rows: fed rows, padding included (0 for an engine without rows).
        width: cache cells that the first of its iterations attends over, one more in each that follows.
        kv_tokens: of the batch at the first of its iterations; without drafts, ``batch`` more in each that follows.
        left: responses that left the batch since the last change, finished or not.
        joined: in admission order; the uncached tokens of their contexts, but for the last token of each, are computed before
            ``iteration``.
        chunks: (response, tokens) that ``iteration`` computes of contexts, one entry for each response that is charged.
    """

    iteration: int
    batch: int
    rows: int
    width: int
    kv_tokens: int
    left: tuple[int, ...]
    joined: tuple[AdmittedResponse, ...]
    chunks: tuple[tuple[int, int], ...]

    @property
    def prefill_tokens(self) -> int:
        """Return the uncached tokens of the admitted contexts."""
        return sum(new.prefill_tokens for new in self.joined)

    @property
    def prefill(self) -> PrefillPart | None:
        """Return what ``iteration`` computes of contexts; None where it computes none."""
        if not self.chunks:
            return None
        return PrefillPart(len(self.chunks), sum([n for _, n in self.chunks]), [chunk for chunk in self.chunks if chunk[1]])


class VerifiedPass(NamedTuple):
    """The drafts of an iteration of an engine with drafts.

    Attributes:
        kv_tokens: of the batch at its start.
        drafted, accepted: (B,) tokens of each response of the batch, in admission order.
    """

    kv_tokens: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]


class CommittedRun(NamedTuple):
    """Iterations of one batch that were committed together, back to back.

    Attributes:
        iteration: the first of them.
        start_s: when it begins, with its prefill; prefill_s: seconds of that (0 where there is none).
        end_s: end of the last.
        prepared_from_s: when preparing its shape for the device began, on a real clock; None: nothing was prepared.
    """

    iteration: int
    start_s: float
    prefill_s: float
    end_s: float
    prepared_from_s: float | None = None


class Replayed(NamedTuple):
    """Measured times of a journal's iterations, replayed alone and back to back.

    Attributes:
        seconds: (iterations, 2) of the prefill before each iteration (0 where there is none), and of the rest of it.
        warm_up_s: seconds spent on warming up and preparing shapes for the device; not part of ``seconds``.
        differing: iterations that fed other tokens than those of the journal.
    """

    seconds: NDArray[np.float64]
    warm_up_s: float
    differing: int = 0


@dataclass
class EngineJournal:
    """Committed iterations of one actor.

    Attributes:
        slots: of the actor.
        start_s: when it was ready.
        changes: of its batch, in order.
        finished: (iterations committed by then, response) of every completion. first_tokens: the same of first tokens, of an
            engine that feeds contexts in chunks; elsewhere they come in the iteration in which a response joins.
        contexts: token ids with which a response joined, by response and iteration, of an engine that shares equal prefixes.
        host_s: CPU seconds of planning each iteration, of an engine whose replays do not plan.
        runs: committed iterations, in order.
        decode_s: seconds charged for each iteration, without its prefill.
        passes: the drafts of each iteration; empty without drafts.
        prepare_s: total seconds of preparing shapes for the device (CUDA graphs); no iteration is charged for them.
    """

    slots: int
    start_s: float = 0.0
    changes: list[JournalledBatch] = field(default_factory=list)
    finished: list[tuple[int, int]] = field(default_factory=list)
    first_tokens: list[tuple[int, int]] = field(default_factory=list)
    contexts: dict[tuple[int, int], np.ndarray] = field(default_factory=dict, repr=False)
    host_s: array[float] = field(default_factory=lambda: array("d"), repr=False)
    runs: list[CommittedRun] = field(default_factory=list)
    decode_s: array[float] = field(default_factory=lambda: array("d"))
    passes: list[VerifiedPass] = field(default_factory=list)
    prepare_s: float = 0.0
    _left: list[int] = field(default_factory=list, repr=False)

    def __len__(self) -> int:
        """Return the number of committed iterations."""
        return len(self.decode_s)

    @property
    def end_s(self) -> float:
        """Return the end of the last committed iteration; ``start_s`` before the first."""
        return self.runs[-1].end_s if self.runs else self.start_s

    @property
    def prefill_s(self) -> NDArray[np.float64]:
        """Return (iterations,) the seconds charged for the prefill of each."""
        seconds = np.zeros(len(self))
        for run in self.runs:
            seconds[run.iteration] = run.prefill_s
        return seconds

    def commit(
        self,
        start_s: float,
        prefill_s: float,
        decode_s: Sequence[float],
        end_s: float,
        prepared_from_s: float | None = None,
    ) -> None:
        """Append committed iterations, the first of which begins with a prefill if that takes any time."""
        self.runs.append(CommittedRun(len(self), start_s, prefill_s, end_s, prepared_from_s))
        self.decode_s.extend(decode_s)

    def change(
        self,
        batch: int,
        kv_tokens: int,
        joined: Sequence[AdmittedResponse] = (),
        *,
        rows: int = 0,
        width: int = 0,
        chunks: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        """Note that the next committed iteration is the first of another batch.

        Args:
            chunks: None: of every admitted response all that is not cached.
        """
        if chunks is None:
            chunks = [(new.response, new.computed_tokens) for new in joined if new.prefill_tokens > 0]
        left, self._left = tuple(self._left), []
        self.changes.append(JournalledBatch(len(self), batch, rows, width, kv_tokens, left, tuple(joined), tuple(chunks)))

    def leave(self, responses: Iterable[int]) -> None:
        """Note responses that have left the batch."""
        self._left += responses

    def finish(self, responses: Iterable[int]) -> None:
        """Note responses that end with the last committed iteration."""
        self.finished += [(len(self), response) for response in responses]

    def intervals(self) -> Iterator[tuple[JournalledBatch, int]]:
        """Yield every change with the iteration before which the next one comes."""
        ends = [later.iteration for later in self.changes[1:]]
        return zip(self.changes, [*ends, len(self)], strict=False)

    def iteration_runs(self, first: int = 0) -> Iterator[IterationRun]:
        """Yield the committed runs from number ``first`` on, for ``spans.spans_of``."""
        runs, changes, decode_s = self.runs, self.changes, self.decode_s
        if first == len(runs):
            return
        at = bisect_right(changes, runs[first].iteration, key=_iteration) - 1
        for number in range(first, len(runs)):
            iteration, start_s, prefill_s, end_s, prepared_from_s = runs[number]
            until = runs[number + 1].iteration if number + 1 < len(runs) else len(self)
            while at + 1 < len(changes) and changes[at + 1].iteration <= iteration:
                at += 1
            change = changes[at]
            batch, seconds = change.batch, decode_s[iteration:until]
            kv_tokens = change.kv_tokens + batch * (iteration - change.iteration)
            drafts = None
            if self.passes:  # then a run is one pass, or several without drafts
                kv_tokens, drafted, accepted = self.passes[iteration]
                drafts = sum(drafted), sum(accepted)
            yield IterationRun(
                start_s,
                start_s + prefill_s if batch else end_s,
                end_s,
                batch * len(seconds) + (drafts[1] if drafts else 0),
                batch * sum(seconds),
                sum([(kv_tokens + batch * k) * each for k, each in enumerate(seconds)]),
                change.prefill if iteration == change.iteration else None,
                prepared_from_s,
                drafts,
            )

    def retimed(self, starts_s: Sequence[float], seconds: NDArray[np.float64], ends_s: Sequence[float]) -> EngineJournal:
        """Return the same iterations at other times.

        Args:
            starts_s, ends_s: of each iteration; seconds: (iterations, 2) of its prefill, and of the rest of it.
        """
        prefill_s, decode_s = seconds.T.tolist()
        runs = [CommittedRun(*row) for row in zip(range(len(self)), starts_s, prefill_s, ends_s, strict=True)]
        return replace(self, runs=runs, decode_s=array("d", decode_s))


def _iteration(change: JournalledBatch) -> int:
    return change.iteration
