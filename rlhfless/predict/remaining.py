"""Computes remaining lengths of running responses from a predictor's scenarios, conditional on their tokens so far.

The survival curves (``solver.lengths.survival``) are those that re-planning uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rlhfless.predict.censoring import FloatArray
from rlhfless.predict.errors import PredictionError
from rlhfless.predict.predictor import Predictor
from solver.lengths.remaining import RemainingLengths, SurvivalTable
from solver.lengths.survival import from_samples
from solver.model.workload import IntArray, Workload

SCENARIOS = 64


def remaining_lengths(
    predictor: Predictor, prompt_ids: Sequence[Any], *, max_response_tokens: int, prompt_tokens: ArrayLike = 0, seed: int = 0
) -> SurvivalTable:
    """Return one survival curve per prompt, from scenarios of the predictor.

    Beyond the longest scenario of a prompt, the curve follows the scenarios of all prompts.

    Args:
        prompt_ids: (R,) the prompt of each response. prompt_tokens: tokens of its prompt, one number or (R,).

    Returns:
        A forecast for ``solver.replanning``; responses are numbered as given.
    """
    names = [str(p) for p in prompt_ids]
    distinct, first, owner = np.unique(np.array(names, dtype=object), return_index=True, return_inverse=True)
    drawn = predictor.sample(distinct.tolist(), 1, max_response_tokens=max_response_tokens, scenarios=SCENARIOS, seed=seed)
    tokens = np.broadcast_to(np.asarray(prompt_tokens, dtype=np.int64), (len(names),))[first]
    workload = Workload(tokens, owner, np.ones(len(names)), max_response_tokens=max_response_tokens)
    return from_samples(list(drawn.T), workload)


def remaining_quantiles(
    predictor: Predictor, prompt_ids: Sequence[Any], generated_tokens: ArrayLike, levels: ArrayLike, *,
    max_response_tokens: int,
    seed: int = 0,
) -> FloatArray:  # fmt: skip
    """Return (Q, R) quantiles of the remaining tokens of running responses with (R,) generated tokens; at least 1.

    Raises:
        PredictionError: a response has as many tokens as the limit allows, so it cannot be running.
    """
    tokens = np.broadcast_to(np.asarray(generated_tokens, dtype=float), (len(prompt_ids),))
    if (tokens < 0).any() or (tokens >= max_response_tokens).any():
        raise PredictionError(
            f"generated_tokens has {tokens.max(initial=0):g}; 0 to {max_response_tokens - 1} tokens are needed"
        )
    table = remaining_lengths(predictor, prompt_ids, max_response_tokens=max_response_tokens, seed=seed)
    return quantiles_left(table, np.arange(len(prompt_ids)), tokens, levels)


def quantiles_left(table: RemainingLengths, chosen: IntArray, tokens: FloatArray, levels: ArrayLike) -> FloatArray:
    """Return (Q, n) quantiles of the remaining tokens of the chosen responses, running at (n,) tokens, by a forecast; at
    least 1.
    """
    max_left = table.max_response_tokens - tokens
    quantiles = []
    for level in np.atleast_1d(np.asarray(levels, dtype=float)):
        low, high = np.zeros(len(tokens)), max_left.copy()  # still alive after `low` tokens more with at least 1 - level
        while np.any(high - low > 0.5):
            middle = (low + high) / 2
            alive = table.survival(chosen, tokens, tokens + middle) > 1 - level
            low, high = np.where(alive, middle, low), np.where(alive, high, middle)
        quantiles.append(np.clip(np.ceil(low), 1, max_left))
    return np.array(quantiles)
