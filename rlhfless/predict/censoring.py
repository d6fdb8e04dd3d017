"""Estimates the length of truncated responses, whose recorded length is only a lower bound (censored data).

A response that ended by ``length`` or was aborted is right-censored: it would have been longer. The survival function of the
whole history (Kaplan-Meier, no parametric tail) says how much longer complete responses became that reached the same length.
Beyond the longest length of the history nothing is added (Efron's convention): a censored length then counts as it is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.lengths.survival import kaplan_meier

FloatArray = NDArray[np.float64]


def expected_tokens(tokens: ArrayLike, complete: ArrayLike, max_response_tokens: float) -> FloatArray:
    """Return each response's expected length under a response limit.

    A complete length x gives min(x, limit). A length c that is a lower bound gives E[min(X, limit) | X > c], with the
    survival function S of all lengths together: ``c + integral of S(u) / S(c) du from c to limit``.

    Args:
        tokens: (R,) lengths.
        complete: (R,) bool, False where the length is a lower bound.
        max_response_tokens: maximal length.

    Returns:
        (R,) tokens, never below min(tokens, max_response_tokens) and never above the limit.
    """
    length = np.asarray(tokens, dtype=float)
    whole = np.asarray(complete, dtype=bool)
    expected: FloatArray = np.minimum(length, max_response_tokens)
    if whole.all():
        return expected
    at = np.unique(length)
    survival = kaplan_meier(length, whole, at)
    # tail[j] = integral of S from at[j] to the limit; S is survival[j] on [at[j], at[j + 1])
    edges = np.minimum(at, max_response_tokens)
    tail = np.concatenate([np.cumsum((survival[:-1] * np.diff(edges))[::-1])[::-1], [0.0]])
    j = np.searchsorted(at, length[~whole])
    open_ended = survival[j] > 0
    residual = np.divide(tail[j], survival[j], out=np.zeros(len(j)), where=open_ended)
    expected[~whole] = np.minimum(expected[~whole] + residual, max_response_tokens)
    return expected
