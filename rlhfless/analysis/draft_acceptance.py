"""Measures on a log with texts how many drafted tokens would have been accepted, without a model.

A draft that does not depend on the sampling noise is accepted with the model's own probability of the drafted token. The
logged token is a draw from that probability. So "the drafted token equals the logged one" is an unbiased measurement of
acceptance, for every temperature and filter that the log was sampled with.

Drafts come from a suffix trie per prompt (``rlhfless.engine.common.suffix_drafter``). Its sources are earlier responses to the
prompt, and what the responses of the group have decoded so far. Responses of a group are decoded in step with each other: each
commits its accepted tokens and one more per pass. That is the least that siblings can help; a response that starts later finds
more of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlhfless.analysis.draft_groups import DraftSource, Encode, draft_groups
from rlhfless.errors import InputError
from solver.model.acceptance import Acceptance
from solver.model.errors import as_given

MAX_DRAFT_TOKENS = 32


@dataclass(frozen=True, eq=False)
class DraftedResponses:
    """Responses that were decoded again on paper, with drafts from one source.

    Attributes:
        source: what drafts were made from. max_draft_tokens: longest draft.
        responses: one row per response: ``step, prompt_id, sample, tokens, passes, drafted_tokens, accepted_tokens``;
            ``passes + accepted_tokens == tokens``.
        accepted: (max_draft_tokens,) passes in which each position was accepted.
    """

    source: DraftSource
    max_draft_tokens: int
    responses: pd.DataFrame
    accepted: np.ndarray

    @property
    def tokens_per_pass(self) -> float:
        """Tokens per pass over all responses: accepted ones and one more."""
        passes = float(self.responses["passes"].sum())
        return float(self.responses["tokens"].sum()) / passes if passes else 1.0

    @property
    def acceptance(self) -> Acceptance:
        """Share of passes in which each position was accepted."""
        return Acceptance(self.accepted / max(float(self.responses["passes"].sum()), 1.0))

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm of tokens per pass between responses: how uneven acceptance is."""
        rows = self.responses[self.responses["passes"] > 0]
        return float(np.log(rows["tokens"] / rows["passes"]).std(ddof=0)) if len(rows) else 0.0

    @property
    def longest_speedup(self) -> float:
        """Tokens of the longest response over the most passes of any: by how much the last response ends earlier at most."""
        most = float(self.responses["passes"].max()) if len(self.responses) else 0.0
        return float(self.responses["tokens"].max()) / most if most else 1.0


def measure_drafts(
    rollouts: pd.DataFrame,
    encode: Encode,
    source: DraftSource = DraftSource(),  # noqa: B008 (frozen)
    max_draft_tokens: int = 8,
    *,
    steps: Iterable[int] | None = None,
    min_match: int = 1,
) -> DraftedResponses:
    """Decode the responses of a log again on paper, with drafts of up to ``max_draft_tokens`` tokens.

    Args:
        rollouts: with the column ``response`` of texts; ``prompt`` is used where it is there.
        encode: returns the tokens of a text. An end token of stopped responses is added to them.
        steps: count the responses of these steps only; earlier ones are their history. All steps when None.
        min_match: drafts follow matches of at least this many tokens.

    Raises:
        InputError: the log has no texts, or ``max_draft_tokens`` is not a whole number from 1 to 32.

    Example:
        >>> import pandas as pd
        >>> rows = pd.DataFrame({"step": [0, 1], "prompt_id": ["a", "a"], "sample": [0, 0], "response": ["abcabd", "abcabd"],
        ...                      "finish_reason": ["stop", "stop"]})
        >>> drafted = measure_drafts(rows, lambda text: text.encode(), max_draft_tokens=8, steps=[1])
        >>> drafted.responses[["tokens", "passes"]].values.tolist()
        [[7, 3]]
    """
    whole = isinstance(max_draft_tokens, int | np.integer) and not isinstance(max_draft_tokens, bool)
    if not whole or not 1 <= max_draft_tokens <= MAX_DRAFT_TOKENS:
        given = as_given(max_draft_tokens)
        raise InputError(f"max_draft_tokens is {given}; a whole number from 1 to {MAX_DRAFT_TOKENS} is needed")
    accepted, rows = np.zeros(max_draft_tokens, dtype=np.int64), []
    for group in draft_groups(rollouts, encode, source, steps, min_match):
        group.decode(max_draft_tokens, accepted)
        rows += [
            {"step": group.name.step, "prompt_id": group.name.prompt_id, "sample": sample, "tokens": len(text),
             "passes": group.passes[i], "drafted_tokens": group.drafted[i], "accepted_tokens": len(text) - group.passes[i]}
            for i, (sample, text) in enumerate(zip(group.name.samples, group.texts, strict=True))
        ]  # fmt: skip
    columns = ["step", "prompt_id", "sample", "tokens", "passes", "drafted_tokens", "accepted_tokens"]
    return DraftedResponses(source, int(max_draft_tokens), pd.DataFrame(rows, columns=columns), accepted)
