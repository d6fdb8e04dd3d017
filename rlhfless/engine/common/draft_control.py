"""Decides how many tokens an engine drafts for each response of its batch, from the drafts that were accepted so far.

Every response has its own estimate of survival, because responses differ more than positions do. A response begins with what
other responses to its prompt accept, and these with what all responses accept. Lengths are decided anew every 16 passes, and
whenever a response joins. They depend on committed passes only, so a run that is repeated drafts the same.

Where drafts do not seem to pay, they are still tried (``trials``): the drafter's tokens are compared with those that passes
without drafts yielded. That takes the drafter's time, but no pass feeds a token more.

An engine that measures its time also corrects the profile's price of drafted tokens by it (``measured_passes.py``). It decides
after 4 and 8 passes, too, because little is known in the beginning. Where only the price speaks against drafts, it is measured:
a few passes verify drafts of the responses that were tried, if there are 4. What trials take is limited to 1 % of the time
(``new_trials``), and while drafts stay off it decides less and less often.

The number of tokens to draft, given the estimates, is chosen in ``solver.timing.even_lengths``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlhfless.engine.common.draft_frailty import frailty_survival
from rlhfless.engine.common.measured_passes import MeasuredPasses
from solver.model.drafting import Drafting
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel
from solver.timing.even_lengths import even_lengths

Counts = NDArray[np.float64]
"""(2, N + 1) drafts by number of accepted tokens: those that a refused token ended, and those that were accepted as a whole."""

DECISION_PASSES = 16  # between two decisions for the same batch
FIRST_DECISION_PASSES = 4  # the same in the beginning, where time is measured; then as many as there were so far
TRIALS = 4  # responses whose drafts are tried at once where fewer are drafted for
LONGEST_QUIET_PASSES = 128  # between two decisions while drafts stay off, where time is measured
PROBES = 8  # passes that measure the price of drafts which do not seem to pay
TRIALS_SHARE = 0.01  # of an engine's seconds that trials may take, where they are measured
NEVER = 1 << 62  # passes until somebody drafts where the length is fixed at 0
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

    Attributes:
        max_draft_tokens: the most tokens that it ever asks for.
        affords: called, on an engine that measures time, with the responses that would get drafts and the seconds that these
            are expected to save per pass. Returns whether that pays for what the drafter reads before the first draft.

    Example:
        >>> import solver
        >>> from solver.model.drafting import Drafting
        >>> latency = solver.LatencyModel("x", 1, base_s=5e-3, per_response_s=1e-4)
        >>> control = DraftControl(Drafting(max_draft_tokens=4), latency)
        >>> control.start(7, prompt=0)
        >>> control.lengths([7], room=[100], kv_tokens=[50])
        [4]
        >>> for _ in range(40):
        ...     control.observe([7], drafted=[4], accepted=[0])
        ...     last = control.lengths([7], room=[100], kv_tokens=[50])
        >>> last
        [0]
    """

    def __init__(self, drafting: Drafting, latency: LatencyModel) -> None:
        self._drafting, self._latency = drafting, latency
        self._most = int(drafting.max_draft_tokens)
        self._fixed = None if isinstance(drafting.length, str) else int(drafting.length)
        self.max_draft_tokens = self._most if self._fixed is None else self._fixed
        table = latency.table
        self._most_fed = None if table is None else int(table.batch[-1])
        self._measured: MeasuredPasses | None = None
        self._counts = np.zeros((0, 2, self._most + 1))  # by row
        self._rows: dict[int, int] = {}
        self._free: list[int] = []  # rows of nobody
        self._prompt_of: dict[int, Hashable] = {}
        self._prompts: dict[Hashable, _Prompt] = {}
        self._left = self._no_counts()  # of responses that left, recent ones most
        self._decided_for: list[int] = []
        self._decided: list[int] = []
        self._passes, self._passes_seen = 0, 0  # until the next decision; so far
        self._until_trials, self._trials = DECISION_PASSES, 0  # passes until drafts may be tried, and how often they were
        self._probing, self._trials_s = False, 0.0
        self._quiet, self._decided_batch = 0, 0  # decisions in a row that left drafts off; the batch of the last one
        self.affords: Callable[[Sequence[int], float], bool] = lambda responses, saved_s: True

    def start(self, response: int, prompt: Hashable | None = None) -> None:
        """Note that a response is with the engine, before its first pass; a response that is known stays as it is.

        Args:
            prompt: tells which responses have the same prompt; None: nobody else has.
        """
        if response in self._rows:
            return
        if not self._free:
            rows = len(self._counts)
            more = max(rows, 16)
            self._counts = np.concatenate([self._counts, np.zeros((more, *self._counts.shape[1:]))])
            self._free = list(range(rows, rows + more))
        self._rows[response] = self._free.pop()
        if prompt is not None:
            self._prompt_of[response] = prompt
            self._prompts.setdefault(prompt, _Prompt(self._no_counts())).here += 1

    def observe(self, responses: Sequence[int], drafted: ArrayLike, accepted: ArrayLike) -> None:
        """Note what a pass verified, or what was tried (``trials``).

        Args:
            responses: (B,) each once. drafted: (B,) tokens of each.
            accepted: (B,) how many of these, from the first on, are right.
        """
        if self._fixed is None:
            lengths, right = np.asarray(drafted), np.asarray(accepted)
            rows = np.array([self._rows[response] for response in responses], dtype=np.int64)
            some = lengths > 0
            self._counts[rows[some], (right == lengths)[some].astype(int), right[some]] += 1

    def observe_seconds(self, batch: int, kv_tokens: int, drafted: int, seconds: float) -> None:
        """Note how long a pass took, drafting included, on an engine that measures time; lengths then depend on it."""
        if self._fixed is None:
            if self._measured is None:
                self._measured = MeasuredPasses(self._latency)
                self._passes = min(self._passes, FIRST_DECISION_PASSES)
                self._until_trials = min(self._until_trials, 2 * FIRST_DECISION_PASSES)
            self._measured.observe(batch, kv_tokens, drafted, seconds)

    def new_trials(self) -> int:
        """Return for how many responses the drafter may read earlier texts for a trial.

        Where time is measured it is one, or none if trials took too long so far.
        """
        if self._measured is None:
            return TRIALS
        return int(self._trials_s <= TRIALS_SHARE * self._measured.decoded_s)

    def observe_trials(self, seconds: float) -> None:
        """Note how long trials took."""
        self._trials_s += seconds

    def remove(self, response: int) -> None:
        """Forget a response that left; others to its prompt keep what was learnt from it, until the last one leaves."""
        row = self._rows.pop(response)
        counts = self._counts[row].copy()
        self._counts[row] = 0
        self._free.append(row)
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
            self._decide_when_due(responses, sum(kv_tokens), remaining)
            self.skip(1)
            lengths = [min(pair) for pair in zip(self._decided, room, strict=True)]
        else:
            fixed = self._fixed
            lengths = [min(fixed, most) for most in room]
        for limit in (max_fed_tokens, self._most_fed):
            if limit is not None and len(lengths) + sum(lengths) > limit:
                lengths = shortened(lengths, limit - len(lengths))
        return lengths

    def undrafted_passes(
        self, responses: Sequence[int], kv_tokens: int, remaining: Callable[[], ArrayLike] | None = None
    ) -> int:
        """Return for how many passes, from the next one on, ``lengths`` is 0 for everybody as long as the batch stays.

        Such passes need no call of ``lengths``, but of ``skip``.

        Args:
            kv_tokens: of the batch at the next pass's start. responses, remaining: as for ``lengths``.

        Raises:
            PlanningError: the draft length is ``critical`` and nothing is predicted.
        """
        if self._fixed is not None:
            return 0 if self._fixed else NEVER
        self._decide_when_due(responses, kv_tokens, remaining)
        if not self._passes_seen:  # whether time is measured is known after the first ones
            return 0 if any(self._decided) else min(self._passes, FIRST_DECISION_PASSES)
        return 0 if any(self._decided) else self._passes

    def skip(self, passes: int) -> None:
        """Note passes without drafts, at most as many as ``undrafted_passes`` returned."""
        if self._fixed is None:
            self._passes -= passes
            self._passes_seen += passes
            self._until_trials -= passes

    def trials(self, batch: int) -> list[int]:
        """Return the places in a batch of those whose drafts are to be tried now: now and then a few, where few are drafted
        for.

        The drafter is asked what it would have drafted, and ``observe`` gets how much of it was right.

        Args:
            batch: number of responses.
        """
        if self._fixed is not None or self._until_trials > 0:
            return []
        self._until_trials = DECISION_PASSES
        few = min(TRIALS, batch)
        if sum([n > 0 for n in self._decided]) >= few:
            return []
        self._trials += 1
        return [(self._trials - 1 + k * batch // few) % batch for k in range(few)]

    def survival(self, responses: Sequence[int]) -> NDArray[np.float64]:
        """Return (B, N) the estimated share of passes in which each position of a draft for each response is accepted."""
        own = self._counts[np.array([self._rows[response] for response in responses], dtype=np.int64)]
        known = [self._prompt_of.get(response) for response in responses]
        place = {prompt: k for k, prompt in enumerate(dict.fromkeys(known))}
        nobody = self._no_counts()
        left = np.array([nobody if prompt is None else self._prompts[prompt].counts for prompt in place])
        prompts = np.array([place[prompt] for prompt in known], dtype=np.int64)
        return frailty_survival(own, left.reshape(-1, 2, self._most + 1), prompts, self._left)

    def _decide_when_due(self, responses: Sequence[int], kv_tokens: int, remaining: Callable[[], ArrayLike] | None) -> None:
        responses = list(responses)
        if self._measured is not None and 2 * len(responses) <= self._decided_batch:
            self._passes = 0  # drafts may pay in so much smaller a batch
        if self._passes > 0 and len(responses) < len(self._decided_for):
            decided = dict(zip(self._decided_for, self._decided, strict=True))
            if all(response in decided for response in responses):
                self._decided, self._decided_for = [decided[response] for response in responses], responses
        if self._passes <= 0 or responses != self._decided_for:
            self._decided, self._decided_for = self._decide(responses, kv_tokens, remaining), responses
            self._passes, self._decided_batch = DECISION_PASSES, len(responses)
            if self._measured is not None:
                first = FIRST_DECISION_PASSES if self._probing else max(self._passes_seen, FIRST_DECISION_PASSES)
                self._quiet = 0 if any(self._decided) else self._quiet + 1
                self._passes = min(first, DECISION_PASSES << max(self._quiet - 2, 0), LONGEST_QUIET_PASSES)

    def _decide(self, responses: Sequence[int], kv_tokens: float, remaining: Callable[[], ArrayLike] | None) -> list[int]:
        critical = self._drafting.length == "critical"
        if critical and remaining is None:
            raise PlanningError("the draft length is critical, but no remaining lengths are predicted; a predictor is needed")
        left = remaining() if critical and remaining is not None else None
        survival, reads, latency = self.survival(responses), self._drafting.kv_reads, self._latency
        if self._measured is not None:
            latency, reads = self._measured.price(len(responses), kv_tokens), "once"
        lengths = even_lengths(latency, survival, kv_tokens, left, max_fed_tokens=self._most_fed, kv_reads=reads)
        self._probing = False
        if self._measured is None:
            return list(map(int, lengths))
        if lengths.any():
            without_s, with_s = latency.iteration_s([len(lengths), len(lengths) + int(lengths.sum())], 0.0)
            tokens = 1.0 + np.where(np.arange(survival.shape[1]) < lengths[:, None], survival, 0.0).sum(axis=1).mean()
            drafted = [response for response, n in zip(responses, lengths, strict=True) if n]
            if not self.affords(drafted, float(without_s - with_s / tokens)):
                lengths = np.zeros_like(lengths)
        tried = self._counts[[self._rows[response] for response in responses]].any(axis=(1, 2))
        if not lengths.any() and tried.sum() >= TRIALS and self._measured.drafted_passes < PROBES:
            least = self._measured.price(len(responses), kv_tokens, least=True)
            hoped = even_lengths(least, survival, kv_tokens, left, max_fed_tokens=self._most_fed)
            lengths = np.where(tried, hoped, 0)
            self._probing = bool(lengths.any())
        return list(map(int, lengths))

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
