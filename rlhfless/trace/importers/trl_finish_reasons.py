"""Estimates true lengths and finish reasons of a TRL step's responses from the tokens of their texts and the step's scalars.

TRL's texts lack special tokens. So every terminated response has at least its end token more than its text. Tokenizing a
sampled text again sometimes gives fewer tokens than were sampled, too. The scalars give the number of clipped responses, their
length (all as long as the longest) and the mean length of all. So the longest texts are the clipped ones and the others get
their end token. If that does not meet the mean, the others are stretched by one factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

MAX_STRETCH = 0.1  # texts that need more are those of another tokenizer, or have more in them than was generated
EXACT = 0.5  # tokens of the mean within which end tokens alone explain it
LONGEST = 2**31  # tokens; more is no length
NEAR = 0.9  # a text this close to the limit may be a cut response whose special tokens are missing


class Ends(NamedTuple):
    """(R,) lengths in tokens, and finish reasons: ``stop``, ``length`` or None (unknown)."""

    tokens: np.ndarray
    reasons: list[str | None]


def ends_of_scalars(texts: np.ndarray, scalars: Mapping[str, float]) -> Ends | None:
    """Return lengths and finish reasons that match a step's scalars.

    None if no assignment matches: the scalars are of other responses, or another tokenizer was used.

    Args:
        texts: (R,) tokens of the responses' texts, all of one generation.
        scalars: ``response_tokens_mean, response_tokens_max, truncation_rate``.
    """
    if not {"response_tokens_mean", "response_tokens_max", "truncation_rate"} <= scalars.keys():
        return None
    mean, longest, share = (scalars[name] for name in ("response_tokens_mean", "response_tokens_max", "truncation_rate"))
    if not (0 <= share <= 1 and 0 <= mean <= longest and 1 <= longest <= LONGEST):
        return None
    clipped = round(share * len(texts))
    if abs(share * len(texts) - clipped) > 0.01:
        return None
    order = np.argsort(-texts, kind="stable")
    truncated = np.zeros(len(texts), dtype=bool)
    truncated[order[:clipped]] = True
    stopped = texts[~truncated]
    factor = 1.0
    needed = mean * len(texts) - clipped * longest - len(stopped)  # tokens of the terminated without their end tokens
    if len(stopped) and abs(needed - stopped.sum()) > EXACT * len(texts):
        factor = needed / max(float(stopped.sum()), 1.0)
    if abs(factor - 1.0) > MAX_STRETCH:
        return None
    ended = np.minimum(np.rint(texts * factor) + 1, longest)
    tokens = np.where(truncated, longest, ended).astype(np.int64)
    if abs(tokens.mean() - mean) > 1.0:
        return None
    return Ends(tokens, _reasons(texts, truncated, longest))


def _reasons(texts: np.ndarray, truncated: np.ndarray, longest: float) -> list[str | None]:
    """Return finish reasons; None for texts around the border between truncated and ended ones, if lengths do not separate
    the two.
    """
    unknown = np.zeros(len(texts), dtype=bool)
    if truncated.any() and not truncated.all():
        shortest_truncated, longest_ended = texts[truncated].min(), texts[~truncated].max()
        lacking = max(0.0, longest - shortest_truncated)
        if shortest_truncated - longest_ended <= lacking:
            unknown = (texts >= shortest_truncated - lacking) & (texts <= longest_ended + lacking)
    names = np.where(truncated, "length", "stop")
    return [None if is_unknown else str(name) for name, is_unknown in zip(names, unknown, strict=True)]


def ends_of_limit(texts: np.ndarray, limit: int) -> Ends:
    """Return lengths and finish reasons if only the response limit is known; a text near the limit may be of a truncated
    response.
    """
    reasons = ["length" if n >= limit else None if n + 1 >= NEAR * limit else "stop" for n in texts.tolist()]
    return Ends(np.minimum(np.where(texts >= limit, limit, texts + 1), limit), reasons)
