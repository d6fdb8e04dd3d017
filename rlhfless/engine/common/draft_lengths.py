"""Decides how many tokens an engine drafts for each response of its batch, from the drafted tokens that were accepted so far.

The survival of a draft is estimated from counts of accepted and refused tokens (``share``): of all responses, of those to a
prompt, of the response, and of each position of its drafts. The estimate of one level is the prior of the next. How many tokens
a prior counts for follows from how much shares differ within a level, as measured on logs
(``tests/benchmarks/details/drafts.md``).

The lengths, given the estimates, are those of ``solver.timing.even_lengths``: the most accepted tokens per second by the
profile's seconds of verifying them with the batch as it is now (RLHFSpec, arXiv:2512.04752: the length of drafts follows the
load), where a response counts more, the more passes it still needs. No measured seconds decide. So a run that is repeated or
resumed drafts the same.

Where drafts would not pay even at the share that is assumed first, a few responses draft nevertheless, until more is known.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.model.drafting import Drafting
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel
from solver.model.workload import IntArray
from solver.timing.even_lengths import even_lengths

DECISION_PASSES = 4  # between two decisions for the same batch
FIRST_TOKENS = 32  # verified tokens that say enough: their share has a standard deviation below 0.09
SAMPLE_RESPONSES = 8  # that get a drafted token until then, where nothing else is drafted
FIRST_SHARE = 0.7  # of drafted tokens that are accepted, before any were verified
RESPONSE_TOKENS = 4.0  # verified tokens that a prior counts for: responses to a prompt differ much, and so do positions
PROMPT_TOKENS = 16.0  # the same for a prompt, whose prior is what all accept: prompts differ less
NEVER = 1 << 62  # passes until a response gets a draft where the length is fixed at 0


def share(accepted: ArrayLike, refused: ArrayLike, prior: ArrayLike, tokens: float) -> NDArray[np.float64]:
    """Return the estimated share of verified tokens that are accepted, where the ``prior`` share counts for so many ``tokens``.

    It is the mean of a beta distribution with these counts.

    Example:
        >>> from rlhfless.engine.common.draft_lengths import share
        >>> share(accepted=5, refused=1, prior=0.5, tokens=4).tolist()
        0.7
    """
    right, wrong = np.asarray(accepted, dtype=float), np.asarray(refused, dtype=float)
    return np.asarray((right + tokens * np.asarray(prior, dtype=float)) / (right + wrong + tokens))


@dataclass
class _Prompt:
    """Accepted and refused tokens of the responses to one prompt, and how many of these responses are still here."""

    accepted: int = 0
    refused: int = 0
    responses: int = 0


class DraftLengths:
    """The draft lengths of one engine's responses.

    Args:
        drafting: ``length`` is ``adaptive``, ``critical`` or a fixed number, which needs no estimates.
        latency: the seconds of a pass by fed tokens.

    Attributes:
        max_draft_tokens: the most tokens that it ever asks for.

    Example:
        >>> import solver
        >>> from solver.model.drafting import Drafting
        >>> latency = solver.LatencyModel("x", 1, base_s=5e-3, per_response_s=1e-4)
        >>> lengths = DraftLengths(Drafting(max_draft_tokens=4), latency)
        >>> lengths.start(7, prompt=0)
        >>> lengths.next([7], room=[100], kv_tokens=[50])
        [4]
        >>> for _ in range(40):
        ...     last = lengths.next([7], room=[100], kv_tokens=[50])
        ...     lengths.observe([7], drafted=last, accepted=[0])
        ...     lengths.ran()
        >>> last
        [0]
    """

    def __init__(self, drafting: Drafting, latency: LatencyModel) -> None:
        self._drafting, self._latency = drafting, latency
        self._fixed = None if isinstance(drafting.length, str) else int(drafting.length)
        self.max_draft_tokens = int(drafting.max_draft_tokens) if self._fixed is None else self._fixed
        self._most_fed = None if latency.table is None else int(latency.table.batch[-1])
        self._positions = np.arange(self.max_draft_tokens)
        self._accepted, self._refused = np.zeros((2, 0, self.max_draft_tokens), dtype=np.int64)  # by row and position
        self._rows: dict[int, int] = {}
        self._free: list[int] = []  # rows of no response
        self._prompt_of: dict[int, Hashable] = {}
        self._prompts: dict[Hashable, _Prompt] = {}
        self._all = _Prompt()
        self._decided: dict[int, int] = {}
        self._passes = 0  # until the next decision

    def start(self, response: int, prompt: Hashable | None = None) -> None:
        """Note that a response is with the engine, before its first pass; a response that is known stays as it is.

        Args:
            prompt: tells which responses have the same prompt; None: no other has.
        """
        if response in self._rows:
            return
        if not self._free:
            rows, new = len(self._accepted), max(len(self._accepted), 16)
            room = np.zeros((new, self.max_draft_tokens), dtype=np.int64)
            self._accepted, self._refused = (np.concatenate([counts, room]) for counts in (self._accepted, self._refused))
            self._free = list(range(rows, rows + new))
        row = self._rows[response] = self._free.pop()
        self._accepted[row] = self._refused[row] = 0
        self._prompt_of[response] = key = ("response", response) if prompt is None else ("prompt", prompt)
        self._prompts.setdefault(key, _Prompt()).responses += 1

    def observe(self, responses: Sequence[int], drafted: ArrayLike, accepted: ArrayLike) -> None:
        """Note what a pass verified.

        Args:
            responses: (B,) each once. drafted: (B,) tokens of each.
            accepted: (B,) how many of these, from the first on, are right.
        """
        lengths, right = np.asarray(drafted), np.asarray(accepted)
        if self._fixed is not None or not lengths.any():
            return
        rows = np.array([self._rows[response] for response in responses], dtype=np.int64)
        self._accepted[rows] += self._positions < right[:, None]
        self._refused[rows] += (self._positions == right[:, None]) & (right < lengths)[:, None]
        for response, wanted, count in zip(responses, lengths.tolist(), right.tolist(), strict=True):
            if wanted:
                for seen in (self._all, self._prompts[self._prompt_of[response]]):
                    seen.accepted += count
                    seen.refused += count < wanted

    def remove(self, response: int) -> None:
        """Forget a response that left; its prompt keeps what was learnt from it, until its last response leaves."""
        self._free.append(self._rows.pop(response))
        self._decided.pop(response, None)
        key = self._prompt_of.pop(response)
        self._prompts[key].responses -= 1
        if not self._prompts[key].responses:
            del self._prompts[key]

    def next(
        self,
        responses: Sequence[int],
        room: Sequence[int],
        kv_tokens: Sequence[int],
        remaining: Callable[[], ArrayLike] | None = None,
        max_fed_tokens: int | None = None,
    ) -> list[int]:
        """Return the tokens to draft for each response of the next pass; the same again until that is noted (``ran``).

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
            self._decide_when_due(responses, sum(kv_tokens), remaining)
            lengths = [min(self._decided[response], most) for response, most in zip(responses, room, strict=True)]
        else:
            fixed = self._fixed
            lengths = [min(fixed, most) for most in room]
        for limit in (max_fed_tokens, self._most_fed):
            if limit is not None and len(lengths) + sum(lengths) > limit:
                lengths = shortened(lengths, limit - len(lengths))
        return lengths

    def undrafted_passes(self, responses: Sequence[int], kv_tokens: int) -> int:
        """Return for how many passes, from the next one on, ``next`` is 0 for every response as long as the batch stays.

        Such passes need no call of ``next``, but of ``ran``.

        Args:
            kv_tokens: of the batch at the next pass's start. responses: as for ``next``.
        """
        if self._fixed is not None:
            return 0 if self._fixed else NEVER
        self._decide_when_due(responses, kv_tokens, None)
        return 0 if any(self._decided[response] for response in responses) else self._passes

    def ran(self, passes: int = 1) -> None:
        """Note passes that the engine ran: one after ``next``, or at most as many as ``undrafted_passes`` returned."""
        self._passes -= passes

    def survival(self, responses: Sequence[int]) -> NDArray[np.float64]:
        """Return (B, N) the estimated share of passes in which each position of a draft for each response is accepted."""
        rows = np.array([self._rows[response] for response in responses], dtype=np.int64)
        accepted, refused = self._accepted[rows], self._refused[rows]
        prompts = [self._prompts[self._prompt_of[response]] for response in responses]
        right, wrong = (np.array([getattr(p, count) for p in prompts]) for count in ("accepted", "refused"))
        of_all = share(self._all.accepted, self._all.refused, FIRST_SHARE, RESPONSE_TOKENS)
        of_prompts = share(right, wrong, of_all, PROMPT_TOKENS)
        of_responses = share(accepted.sum(axis=1), refused.sum(axis=1), of_prompts, RESPONSE_TOKENS)
        return np.asarray(share(accepted, refused, of_responses[:, None], RESPONSE_TOKENS).cumprod(axis=1))

    def _decide_when_due(self, responses: Sequence[int], kv_tokens: int, remaining: Callable[[], ArrayLike] | None) -> None:
        """Decide anew when the passes are over, and whenever a response joins; where some only left, lengths stay."""
        if self._passes > 0 and all(response in self._decided for response in responses):
            return
        left = None
        if self._drafting.length == "critical":
            if remaining is None:
                raise PlanningError(
                    "the draft length is critical, but no remaining lengths are predicted; a predictor is needed"
                )
            left = remaining()
        lengths = even_lengths(self._latency, self.survival(responses), kv_tokens, left, max_fed_tokens=self._most_fed)
        if self._all.accepted + self._all.refused < FIRST_TOKENS and not lengths.any():
            lengths = self._sample(len(responses))
        self._passes = DECISION_PASSES
        self._decided = dict(zip(responses, lengths.tolist(), strict=True))

    def _sample(self, batch: int) -> IntArray:
        """Return (B,) one token for a few responses, far apart in the batch, as those of a prompt are beside each other.

        A second token would be fed at the same price, but verified only where the first was accepted.
        """
        few, lengths = min(SAMPLE_RESPONSES, batch), np.zeros(batch, dtype=np.int64)
        lengths[np.arange(few) * batch // max(few, 1)] = 1
        return lengths


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
