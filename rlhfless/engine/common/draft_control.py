"""Decides how many tokens an engine drafts for each response of its batch, from the drafts that were accepted so far.

Every response has its own estimate of survival, because responses differ more than positions do. A response begins with what
other responses to its prompt accept, and these with what all responses accept. Lengths are decided anew every 16 passes, and
whenever a response joins or leaves. They depend on committed passes only, so a run that is repeated drafts the same.

The number of tokens to draft, given the estimates, is chosen in ``solver.timing.draft_length``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.model.drafting import Drafting
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel
from solver.timing.draft_length import choose_lengths, critical_lengths

Counts = NDArray[np.float64]
"""(2, N + 1) drafts by number of accepted tokens: those that a refused token ended, and those that were accepted as a whole."""

DECISION_PASSES = 16  # between two decisions for the same batch
FIRST_RATE = 0.7  # accepted share of a drafted token whose draft was right so far, before anything is known
FIRST_DRAFTS, BATCH_DRAFTS, PROMPT_DRAFTS = 4.0, 30.0, 4.0  # drafts that each prior counts for: of all, a prompt, a response
KEPT_SHARE = 0.98  # of the counts of responses that left, at every further one


@dataclass
class _Prompt:
    """Counts of responses to one prompt that left, and the number of those that are still here."""

    counts: Counts
    here: int = 0


class DraftControl:
    """The draft lengths of one engine's responses.

    Args:
        drafting: ``length`` is ``adaptive``, ``critical`` or a fixed number, which needs no estimates.
        latency: the seconds of a pass by fed tokens.

    Example:
        >>> import solver
        >>> latency = solver.LatencyModel("x", 1, base_s=5e-3, per_response_s=1e-4)
        >>> control = DraftControl(solver.Drafting(max_draft_tokens=4), latency)
        >>> control.start(7, prompt=0)
        >>> control.lengths([7], room=[100], kv_tokens=[50])
        [4]
        >>> for _ in range(40):
        ...     control.observe(7, drafted=4, accepted=0)
        ...     last = control.lengths([7], room=[100], kv_tokens=[50])
        >>> last
        [0]
    """

    def __init__(self, drafting: Drafting, latency: LatencyModel) -> None:
        self._drafting, self._latency = drafting, latency
        self._most = int(drafting.max_draft_tokens)
        self._fixed = None if isinstance(drafting.length, str) else int(drafting.length)
        table = latency.table
        self._most_fed = None if table is None else int(table.batch[-1])
        self._counts: dict[int, Counts] = {}
        self._prompt_of: dict[int, Hashable] = {}
        self._prompts: dict[Hashable, _Prompt] = {}
        self._left = self._no_counts()  # of responses that left, recent ones most
        self._decided_for: list[int] = []
        self._decided: list[int] = []
        self._passes = 0  # since then

    def start(self, response: int, prompt: Hashable | None = None) -> None:
        """Note that a response is with the engine, before its first pass; a response that is known stays as it is.

        Args:
            prompt: tells which responses have the same prompt; None: nobody else has.
        """
        if response in self._counts:
            return
        self._counts[response] = self._no_counts()
        if prompt is not None:
            self._prompt_of[response] = prompt
            self._prompts.setdefault(prompt, _Prompt(self._no_counts())).here += 1

    def observe(self, response: int, drafted: int, accepted: int) -> None:
        """Note what a pass verified for a response: ``drafted`` tokens, of which the first ``accepted`` were accepted."""
        if drafted:
            self._counts[response][int(accepted == drafted), accepted] += 1

    def remove(self, response: int) -> None:
        """Forget a response that left; others to its prompt keep what was learnt from it, until the last one leaves."""
        counts = self._counts.pop(response)
        self._left *= KEPT_SHARE
        self._left += counts
        prompt = self._prompt_of.pop(response, None)
        if prompt is not None:
            shared = self._prompts[prompt]
            shared.counts += counts
            shared.here -= 1
            if not shared.here:
                del self._prompts[prompt]

    def lengths(
        self,
        responses: Sequence[int],
        room: Sequence[int],
        kv_tokens: Sequence[int],
        remaining: Callable[[], ArrayLike] | None = None,
        max_fed_tokens: int | None = None,
    ) -> list[int]:
        """Return the tokens to draft for each response of the next pass; call it once per pass.

        Args:
            responses: (B,) the batch.
            room: (B,) the most tokens that may be drafted for each.
            kv_tokens: (B,) KV tokens of each at the pass's start.
            remaining: returns (B,) the tokens that each is predicted to need still; called when ``critical`` decides.
            max_fed_tokens: the most tokens that the pass may feed, one per response included. Where all drafts do not fit, the
                longest are cut. The latency model's table also limits them.

        Raises:
            PlanningError: the draft length is ``critical`` and nothing is predicted.
        """
        if self._fixed is None:
            responses = list(responses)
            if self._passes >= DECISION_PASSES or responses != self._decided_for:
                self._decided = self._decide(responses, np.asarray(kv_tokens, dtype=float), remaining)
                self._decided_for, self._passes = responses, 0
            self._passes += 1
            lengths = [min(pair) for pair in zip(self._decided, room, strict=True)]
        else:
            fixed = self._fixed
            lengths = [min(fixed, most) for most in room]
        for limit in (max_fed_tokens, self._most_fed):
            if limit is not None and len(lengths) + sum(lengths) > limit:
                lengths = shortened(lengths, limit - len(lengths))
        return lengths

    def survival(self, responses: Sequence[int]) -> NDArray[np.float64]:
        """Return (B, N) the estimated share of passes in which each position of a draft for each response is accepted."""
        own = np.array([self._counts[response] for response in responses]).reshape(-1, 2, self._most + 1)
        everybody = _rates(self._left + own.sum(axis=0), np.full(self._most, FIRST_RATE), FIRST_DRAFTS)
        known = [self._prompt_of.get(response) for response in responses]
        place = {prompt: k for k, prompt in enumerate(dict.fromkeys(known))}
        groups = np.array([place[prompt] for prompt in known], dtype=np.int64)
        nobody = self._no_counts()
        shared = np.array([nobody if prompt is None else self._prompts[prompt].counts for prompt in place])
        shared = shared.reshape(-1, 2, self._most + 1)
        grouped = [k for k, prompt in enumerate(known) if prompt is not None]
        np.add.at(shared, groups[grouped], own[grouped])
        by_prompt = _rates(shared, everybody, BATCH_DRAFTS)
        return np.asarray(_rates(own, by_prompt[groups], PROMPT_DRAFTS).cumprod(axis=1))

    def _decide(
        self, responses: Sequence[int], kv_tokens: NDArray[np.float64], remaining: Callable[[], ArrayLike] | None
    ) -> list[int]:
        if not len(responses):
            return []
        survival = self.survival(responses)
        if self._drafting.length == "adaptive":
            remaining = None
        elif remaining is None:
            raise PlanningError("the draft length is critical, but no remaining lengths are predicted; a predictor is needed")
        reads = self._drafting.kv_reads
        if remaining is None:
            chosen = choose_lengths(self._latency, survival, float(kv_tokens.sum()), kv_reads=reads)
        else:
            chosen = critical_lengths(self._latency, survival, remaining(), kv_tokens, kv_reads=reads)
        lengths: list[int] = chosen.tolist()
        return lengths

    def _no_counts(self) -> Counts:
        return np.zeros((2, self._most + 1))


def shortened(lengths: Sequence[int], tokens: int) -> list[int]:
    """Return drafts of at most ``tokens`` tokens in all: the longest are cut, the last of equals first; none below 0.

    Example:
        >>> shortened([8, 2, 8, 1], 13)
        [5, 2, 5, 1]
        >>> shortened([8, 2, 8, 1], 12)
        [5, 2, 4, 1]
    """
    tokens = max(tokens, 0)
    if sum(lengths) <= tokens:
        return list(lengths)
    longest = max(lengths)
    while sum([min(n, longest) for n in lengths]) > tokens:
        longest -= 1
    spare = tokens - sum([min(n, longest) for n in lengths])
    kept = []
    for n in lengths:
        more = n > longest and spare > 0
        spare -= more
        kept.append(min(n, longest) + more)
    return kept


def _rates(counts: Counts, prior: NDArray[np.float64], prior_drafts: float) -> NDArray[np.float64]:
    """Return (..., N) the share of accepted tokens by position, of drafts that were right up to there.

    Args:
        counts: (..., 2, N + 1). prior: (..., N) the share before, which counts as much as ``prior_drafts`` drafts.
    """
    at_least = counts[..., ::-1].cumsum(axis=-1)[..., ::-1]  # drafts of which at least k tokens were accepted
    accepted = at_least.sum(axis=-2)[..., 1:]
    refused = counts[..., 0, :-1]
    return np.asarray((accepted + prior_drafts * prior) / (accepted + refused + prior_drafts))
