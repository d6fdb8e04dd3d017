"""What an engine drafts: lengths by ``DraftLengths``, tokens by the drafter, for the next pass of its batch.

Engines see drafted tokens only. Every draft ends before an end of text, because no token follows one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rlhfless.engine.common.checked_drafter import CheckedDrafter
from rlhfless.engine.common.draft_lengths import NEVER, DraftLengths
from rlhfless.engine.common.drafter import drafter_of
from rlhfless.engine.common.sequence import SequenceState
from rlhfless.engine.common.stop_ids import stop_ids
from solver.model.admission import Admission
from solver.model.drafting import Drafting
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel

Drafts = Mapping[SequenceState, list[int]]
"""The drafted tokens of every response of a batch, by response."""


class PassDrafts(Protocol):
    """Decides what passes verify, and what is kept of it: ``EngineDrafts``, or a replay of recorded passes."""

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


def check_settings(drafting: Drafting) -> None:
    """Refuse settings with which only simulations or vLLM draft.

    Raises:
        PlanningError: the draft length is ``critical``, which needs predicted lengths; or the drafter is one of vLLM itself.
    """
    if drafting.length == "critical":
        raise PlanningError(
            "the draft length is critical, which needs predicted lengths, and only simulations have them; adaptive or a "
            "number of tokens is needed"
        )
    if drafting.vllm_method is not None:
        raise PlanningError(f"drafter {drafting.drafter!r} is vLLM's own; the engine vllm is needed, or drafter 'suffix'")


class EngineDrafts:
    """The drafts of one engine's responses.

    Args:
        drafting: the settings. latency: by which lengths are chosen.
        admission: of the engine: drafts have to fit into its KV memory, so that no draft evicts a response.
        vocabulary: number of tokens of the model. eos_id: the token, or the tokens, that end a response.

    Raises:
        PlanningError: see ``check_settings``.
    """

    def __init__(
        self, drafting: Drafting, latency: LatencyModel, admission: Admission, vocabulary: int, eos_id: int | Sequence[int]
    ) -> None:
        check_settings(drafting)
        self._drafter = CheckedDrafter(drafter_of(drafting), vocabulary)
        self._lengths = DraftLengths(drafting, latency)
        self._admission, self._stop_ids = admission, frozenset(stop_ids(eos_id))
        self._known: dict[SequenceState, int] = {}  # tokens of each response that the drafter has seen
        self._behind = False  # whether responses may have more tokens than that
        self._planned: tuple[int, list[SequenceState], Drafts] | None = None
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
                self._lengths.start(request.response, request.prompt)
                self._drafter.start(request.response, request.prompt, request.prompt_ids, request.history, s.ids)

    def remove(self, responses: Sequence[SequenceState]) -> None:
        """See ``PassDrafts``."""
        for s in responses:
            if s in self._known:
                self._catch_up(s)
                del self._known[s]
                self._lengths.remove(s.request.response)
                self._drafter.remove(s.request.response)

    def undrafted_passes(self, batch: Sequence[SequenceState], kv_tokens: int) -> int:
        """See ``PassDrafts``."""
        if self.off is not None:
            return NEVER
        return self._lengths.undrafted_passes([s.request.response for s in batch], kv_tokens)

    def plan(self, batch: Sequence[SequenceState], kv_tokens: int) -> Drafts:
        """See ``PassDrafts``."""
        if self._planned is not None and self._planned[0] == self._passes and self._planned[1] == batch:
            return self._planned[2]
        if self._behind:
            for s in self._known:
                self._catch_up(s)
            self._behind = False
        asked = self._asked(batch, kv_tokens)
        drafts: Drafts = {s: self._draft(s, most) if most else [] for s, most in zip(batch, asked, strict=True)}
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
        self._lengths.observe(
            names, [drafted for drafted, _ in committed.values()], [len(tokens) - 1 for _, tokens in committed.values()]
        )
        self._lengths.ran()
        for s, (_, tokens) in committed.items():
            self._drafter.extend(s.request.response, tokens)
            self._known[s] = s.count

    def commit_undrafted(self, passes: int) -> None:
        """See ``PassDrafts``."""
        self._passes += passes
        self._behind = True
        self._lengths.ran(passes)

    def _catch_up(self, s: SequenceState) -> None:
        """Give the drafter the tokens that passes without drafts yielded."""
        if s.count > self._known[s]:
            self._drafter.extend(s.request.response, s.ids_from(self._known[s]).tolist())
            self._known[s] = s.count

    def _asked(self, batch: Sequence[SequenceState], kv_tokens: int) -> list[int]:
        """Return the tokens to draft for each response."""
        if self.off is not None:
            return [0] * len(batch)
        room = [s.stop_tokens - s.count - 1 for s in batch]
        limit = None
        if self._admission.rule == "preempt":  # under "reserve" every response has its room up to its limit
            limit = len(batch) + max(0, self._admission.kv_capacity_tokens - kv_tokens)
        names, contexts = [s.request.response for s in batch], [s.context_tokens for s in batch]
        return self._lengths.next(names, room, contexts, max_fed_tokens=limit)

    def _draft(self, s: SequenceState, most: int) -> list[int]:
        drafted = self._drafter.draft(s.request.response, most)
        if self._stop_ids.isdisjoint(drafted):
            return drafted
        return drafted[: next(k for k, token in enumerate(drafted) if token in self._stop_ids)]
