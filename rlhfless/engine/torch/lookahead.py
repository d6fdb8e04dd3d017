"""The next iterations of an actor's batch: planned, perhaps computed, not committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rlhfless.engine.common.sequence import SequenceState

if TYPE_CHECKING:
    from rlhfless.engine.common.batch_scheduler import NextBatch
    from rlhfless.engine.common.engine_drafts import Drafts
    from rlhfless.engine.torch.decode_run import DecodeRun
    from rlhfless.engine.torch.drafted_run import DraftedRun

NEVER = 1 << 62  # iterations
NOTHING: Mapping[Any, Any] = MappingProxyType({})


@dataclass(eq=False)
class BatchChange:
    """A batch that differs from that of the iteration before; all tokens of its responses are on the host.

    Attributes:
        batch: in admission order, newly admitted last; evicted: youngest first.
        cached_tokens: cached tokens of each admitted response's context.
        prefill_tokens: uncached tokens of all admitted responses. Prefill computes all but the last of each, which its first
            iteration feeds.
        rows: the batch in order of cache rows; shared: KV state of whole prompts, computed here, for others that will need it.
            Both are set once run.
    """

    batch: list[SequenceState]
    admitted: Sequence[SequenceState]
    evicted: Sequence[SequenceState]
    cached_tokens: Mapping[SequenceState, int]
    prefill_tokens: int
    rows: list[SequenceState] = field(default_factory=list)
    shared: Mapping[int, Any] = field(default_factory=lambda: NOTHING)

    @classmethod
    def of(cls, planned: NextBatch[SequenceState], cached_tokens: Mapping[SequenceState, int]) -> BatchChange:
        """Return the change to a planned batch, with the tokens that it has to compute."""
        tokens = sum([s.context_tokens - cached for s, cached in cached_tokens.items()])
        return cls(planned.batch, planned.admitted, planned.evicted, cached_tokens, tokens)


@dataclass(eq=False)
class PendingIterations:
    """Iterations of one batch, back to back.

    Attributes:
        batch: number of responses in it; kv_tokens: of the batch at the start of the first iteration, ``batch`` more at that of
            each that follows.
        change: the batch, where it is a new one. Where admitted or evicted responses make it so, that is one iteration.
        prefill_s: before the first; decode_s, ends_s: of each iteration, and the boundary at its end; empty while its time is
            unknown.
        drawn: what each of the iterations that were run sampled. decode_run: the run that computed them; None while rows of a
            new batch are still to be filled.
        drafts: what the iteration, which is a single one then, verifies; None where nothing is drafted. undrafted: iterations
            until something may be drafted, unlimited without drafts. drafting_s: measured seconds that deciding and drafting
            took; part of the first iteration.
        prepared_from_s: when preparing the shape of the first began, on a real clock; None: nothing was prepared.
    """

    start_s: float
    batch: int
    kv_tokens: int
    change: BatchChange | None = None
    prefill_s: float = 0.0
    decode_s: Sequence[float] = ()
    ends_s: Sequence[float] = ()
    drawn: Sequence[Any] = ()
    decode_run: DecodeRun | DraftedRun | None = None
    prepared_from_s: float | None = None
    drafts: Drafts | None = None
    undrafted: int = NEVER
    drafting_s: float = 0.0

    @property
    def drafted(self) -> int:
        """Return the number of drafted tokens that the iteration feeds."""
        return sum([len(draft) for draft in self.drafts.values()]) if self.drafts else 0

    @property
    def starts_s(self) -> Sequence[float]:
        """Return when each of the iterations begins."""
        return [self.start_s, *self.ends_s[:-1]]

    def set_times(self, prefill_s: float, decode_s: Sequence[float]) -> None:
        """Set the times of the iterations."""
        self.prefill_s, self.decode_s = prefill_s, decode_s
        _, *self.ends_s = accumulate(decode_s, initial=self.start_s + prefill_s)

    def drop(self, count: int) -> bool:
        """Remove the first ``count``, which are committed; returns whether any are left."""
        if count == len(self.ends_s):
            return False
        self.undrafted, self.drafting_s = self.undrafted - count, 0.0
        self.start_s, self.prefill_s, self.kv_tokens = self.ends_s[count - 1], 0.0, self.kv_tokens + self.batch * count
        self.decode_s, self.ends_s, self.drawn, self.change = self.decode_s[count:], self.ends_s[count:], (), None
        return True
