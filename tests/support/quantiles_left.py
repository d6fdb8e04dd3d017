"""Quantiles of the tokens that running responses have left, read off a forecast's survival curves."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlhfless.predict import InFlightPredictor
from solver.lengths.remaining import SurvivalTable


def quantiles_left(
    table: SurvivalTable, chosen: NDArray[np.int64], tokens: NDArray[np.float64], levels: ArrayLike
) -> NDArray[np.float64]:
    """(Q, n) quantiles of the remaining tokens of the chosen responses, which run at (n,) tokens; at least 1."""
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


def quantiles_while_running(
    predictor: InFlightPredictor, prompt_ids: list[str], tokens: ArrayLike, complete: ArrayLike, levels: ArrayLike, limit: int
) -> NDArray[np.float64]:
    """(Q, R) quantiles of the remaining tokens of a step's responses, whose progress is observed; 0 for complete ones."""
    progress, ended = (np.broadcast_to(np.asarray(given), (len(prompt_ids),)) for given in (tokens, complete))
    table = predictor.forecast(prompt_ids, max_response_tokens=limit).remaining
    assert isinstance(table, SurvivalTable)
    running = np.flatnonzero(~ended)
    quantiles = np.zeros((np.size(levels), len(prompt_ids)))
    quantiles[:, running] = quantiles_left(table.observe(progress, ended), running, progress[running].astype(float), levels)
    return quantiles
