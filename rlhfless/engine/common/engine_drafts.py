"""What an engine drafts: lengths by ``DraftControl``, tokens by the drafter, for the next pass of its batch.

Engines see drafted tokens only. Every draft ends before an end of text, because no token follows one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from rlhfless.engine.common.checked_drafter import CheckedDrafter
from rlhfless.engine.common.draft_control import NEVER, DraftControl
from rlhfless.engine.common.drafter import drafter_of
from rlhfless.engine.common.sequence import SequenceState
from rlhfless.engine.common.stop_ids import stop_ids
from solver.lengths.remaining import RemainingLengths
from solver.model.admission import Admission
from solver.model.drafting import Drafting
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel
from solver.model.workload import FloatArray

READ_TOKEN_S = 1e-5  # that a suffix trie in plain Python takes per token of an earlier text, until it is measured
READ_PRIOR_TOKENS = 200.0  # measured tokens that weigh as much as READ_TOKEN_S

Drafts = Mapping[SequenceState, list[int]]
"""The drafted tokens of every response of a batch, by response."""


class PassDrafts(Protocol):
    """Decides what passes verify, and what is kept of it: ``EngineDrafts``, or a replay of recorded passes."""

    @property
    def kv_reads(self) -> str:
        """How often a pass reads a response's KV cache, as in ``Drafting``."""
        ...

    @property
    def off(self) -> str | None:
        """Return why there are no drafts any more, as part of a sentence; None while there are."""
        ...

    def start(self, responses: Sequence[SequenceState]) -> None:
        """Begin responses that the engine was given."""
        ...

    def remove(self, responses: Sequence[SequenceState]) -> None:
        """Forget responses that are complete or were taken off the engine."""
        ...

    def undrafted_passes(self, batch: Sequence[SequenceState], kv_tokens: int) -> int:
        """Return for how many passes, from the next one on, nothing is drafted as long as ``batch`` stays.

        The arguments are those of ``plan``, which is called where it is 0.
        """
        ...

    def plan(self, batch: Sequence[SequenceState], kv_tokens: int) -> Drafts:
        """Return what the next pass of ``batch`` verifies; the same again until a pass is committed.

        Args:
            batch: in admission order. kv_tokens: of the batch at the start of the pass.
        """
        ...

    def kept(self, s: SequenceState, drafted: Sequence[int], sampled: Sequence[int]) -> int:
        """Return how many of the tokens that a pass sampled for a response are its next ones: up to the first that was not
        drafted.

        Args:
            sampled: one token more than ``drafted``: the first follows the response, the others follow drafted tokens.
        """
        ...

    def commit(self, committed: Mapping[SequenceState, tuple[int, list[int]]]) -> None:
        """Note what a pass drafted for each response of its batch, and the tokens that it committed."""
        ...

    def commit_undrafted(self, passes: int) -> None:
        """Note passes, at most ``undrafted_passes``, that yielded one token per response; tokens need not be on the host."""
        ...

    def observe_seconds(self, batch: int, kv_tokens: int, drafted: int, seconds: float) -> None:
        """Note the measured seconds of a pass, drafting included; not called where a latency model gives the seconds."""
        ...


class EngineDrafts:
    """The drafts of one engine's responses.

    Args:
        drafting: the settings. latency: by which lengths are chosen.
        admission: of the engine: drafts have to fit into its KV memory, so that no draft evicts a response.
        vocabulary: number of tokens of the model. eos_id: the token, or the tokens, that end a response.
        remaining: predicted remaining lengths, by response of the step; the draft length ``critical`` needs them.

    Attributes:
        kv_reads: as in ``drafting``.

    Raises:
        PlanningError: the draft length is ``critical``, and nothing is predicted.
    """

    def __init__(
        self,
        drafting: Drafting,
        latency: LatencyModel,
        admission: Admission,
        vocabulary: int,
        eos_id: int | Sequence[int],
        remaining: RemainingLengths | None = None,
    ) -> None:
        if drafting.length == "critical" and remaining is None:
            raise PlanningError(
                "the draft length is critical, but the engine has no predicted remaining lengths; give them to its factory as "
                "remaining, or choose adaptive"
            )
        self._remaining = remaining
        self._drafter = CheckedDrafter(drafter_of(drafting), vocabulary)
        self._control = DraftControl(drafting, latency)
        self._control.affords = self._affords
        self._admission, self._stop_ids, self.kv_reads = admission, frozenset(stop_ids(eos_id)), drafting.kv_reads
        self._known: dict[SequenceState, int] = {}  # tokens of each response that the drafter has seen
        self._drafted: set[SequenceState] = set()  # for whom the drafter was asked: the first time it takes longer
        self._first_draft = False  # whether one of them was asked for since seconds were last noted
        self._siblings = drafting.siblings
        self._read_tokens, self._read_s = READ_PRIOR_TOKENS, READ_PRIOR_TOKENS * READ_TOKEN_S  # of earlier texts, as measured
        self._behind = False  # whether responses may have more tokens than that
        self._planned: tuple[int, list[SequenceState], Drafts] | None = None
        self._undrafted: tuple[int, list[SequenceState], int] | None = None
        self._passes = 0

    @property
    def off(self) -> str | None:
        """See ``PassDrafts``."""
        return self._drafter.off

    def start(self, responses: Sequence[SequenceState]) -> None:
        """See ``PassDrafts``."""
        for s in responses:
            request = s.request
            if s.stop_tokens and request.prompt_ids is not None:
                self._known[s] = s.count
                self._control.start(request.response, request.prompt)
                self._drafter.start(request.response, request.prompt, request.prompt_ids, request.history, s.ids)

    def remove(self, responses: Sequence[SequenceState]) -> None:
        """See ``PassDrafts``."""
        for s in responses:
            if s in self._known:
                self._catch_up(s)
                del self._known[s]
                self._drafted.discard(s)
                self._control.remove(s.request.response)
                self._drafter.remove(s.request.response)

    def undrafted_passes(self, batch: Sequence[SequenceState], kv_tokens: int) -> int:
        """See ``PassDrafts``."""
        if self.off is not None:
            return NEVER
        names = [s.request.response for s in batch]
        if self._behind:
            self._try_drafts(batch)
        return self._control.undrafted_passes(names, kv_tokens, self._remaining_of(batch, names))

    def plan(self, batch: Sequence[SequenceState], kv_tokens: int) -> Drafts:
        """See ``PassDrafts``."""
        if self._planned is not None and self._planned[0] == self._passes and self._planned[1] == batch:
            return self._planned[2]
        if self._behind:
            for s in self._known:
                self._catch_up(s)
            self._behind = False
        drafts: Drafts = {s: self._draft(s, most) for s, most in zip(batch, self._lengths(batch, kv_tokens), strict=True)}
        self._planned = self._passes, list(batch), drafts
        return drafts

    def kept(self, s: SequenceState, drafted: Sequence[int], sampled: Sequence[int]) -> int:
        """See ``PassDrafts``."""
        kept = 1
        for token, guess in zip(sampled, drafted, strict=False):
            if token != guess:
                break
            kept += 1
        return kept

    def commit(self, committed: Mapping[SequenceState, tuple[int, list[int]]]) -> None:
        """See ``PassDrafts``."""
        self._passes += 1
        names = [s.request.response for s in committed]
        self._control.observe(
            names, [drafted for drafted, _ in committed.values()], [len(tokens) - 1 for _, tokens in committed.values()]
        )
        for s, (_, tokens) in committed.items():
            self._drafter.extend(s.request.response, tokens)
            self._known[s] = s.count

    def commit_undrafted(self, passes: int) -> None:
        """See ``PassDrafts``."""
        self._passes += passes
        self._behind = True
        if self.off is None:
            self._control.skip(passes)

    def observe_seconds(self, batch: int, kv_tokens: int, drafted: int, seconds: float) -> None:
        """See ``PassDrafts``. Passes before which the drafter read earlier texts say nothing about others."""
        if not self._first_draft:
            self._control.observe_seconds(batch, kv_tokens, drafted, seconds)
        self._first_draft = False

    def _try_drafts(self, batch: Sequence[SequenceState]) -> None:
        """Compare what a few responses would have drafted with the tokens that passes without drafts yielded since.

        Only for as many as ``DraftControl.new_trials`` earlier texts are read that were not read yet.
        """
        began_s, new, read = time.thread_time(), self._control.new_trials(), {self._source(s) for s in self._drafted}
        for place in self._control.trials(len(batch)):
            s = batch[place]
            if (source := self._source(s)) not in read:
                new, read = new - 1, read | {source}
                if new < 0:
                    continue
            tokens = s.ids_from(self._known.get(s, s.count)).tolist()
            drafted = self._draft(s, min(len(tokens), self._control.max_draft_tokens))
            self._control.observe([s.request.response], [len(drafted)], [self.kept(s, drafted, tokens) - 1])
        self._control.observe_trials(time.thread_time() - began_s)

    def _catch_up(self, s: SequenceState) -> None:
        """Tell the drafter of the tokens that passes without drafts yielded."""
        if s.count > self._known[s]:
            self._drafter.extend(s.request.response, s.ids_from(self._known[s]).tolist())
            self._known[s] = s.count

    def _lengths(self, batch: Sequence[SequenceState], kv_tokens: int) -> list[int]:
        if self.off is not None:
            return [0] * len(batch)
        room = [s.stop_tokens - s.count - 1 for s in batch]
        limit = None
        if self._admission.rule == "preempt":  # under "reserve" every response has its room up to its limit
            limit = len(batch) + max(0, self._admission.kv_capacity_tokens - kv_tokens)
        contexts = [s.context_tokens for s in batch]
        names = [s.request.response for s in batch]
        return self._control.lengths(names, room, contexts, self._remaining_of(batch, names), limit)

    def _affords(self, responses: Sequence[int], saved_s: float) -> bool:
        """Return whether drafts save more than the drafter takes to read the earlier texts that it has not read yet.

        Responses are taken to become as long as their prompt's earlier ones.
        """
        here = {s.request.response: s for s in self._known}
        new = [s for response in responses if (s := here.get(response)) is not None and s not in self._drafted]
        read = {self._source(s) for s in self._drafted}
        texts = {key: s.request.history for s in new if (key := self._source(s)) not in read}
        sizes = [len(text) for history in texts.values() for text in history]
        if not sizes:
            return True
        left = float(np.mean([max(float(np.mean(sizes)) - s.count, 0.0) for s in new]))
        return sum(sizes) * self._read_s / self._read_tokens <= saved_s * left

    def _source(self, s: SequenceState) -> object:
        """Return what a drafter reads earlier texts for: once for all responses of a prompt, or for each response."""
        return s.request.prompt if self._siblings else s.request.response

    def _remaining_of(self, batch: Sequence[SequenceState], names: list[int]) -> Callable[[], FloatArray] | None:
        if (predicted := self._remaining) is None:
            return None
        return lambda: predicted.expected_tokens(np.array(names, np.int64), [s.count for s in batch])

    def _draft(self, s: SequenceState, most: int) -> list[int]:
        if not most:
            return []
        new, began_s = s not in self._drafted, time.thread_time()
        drafted = self._drafter.draft(s.request.response, most)
        if new:
            self._first_draft = True
            self._drafted.add(s)
            self._read_s += time.thread_time() - began_s
            self._read_tokens += sum(map(len, s.request.history))
        if self._stop_ids.isdisjoint(drafted):
            return drafted
        return drafted[: next(k for k, token in enumerate(drafted) if token in self._stop_ids)]
