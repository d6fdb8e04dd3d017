"""Forecasts of a step with a chosen sharpness, made from its true lengths: to study what information is worth.

A forecast is a ``Workload`` with predicted lengths and scenarios around them. The more a forecast knows of each response, the
sharper it is. It knows nothing but the prompt's lengths, then the length itself up to an error, then the length.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhfless.predict.errors import PredictionError
from rlhfless.predict.validation import check_draws
from solver.model.workload import Workload

SCENARIOS = 16
SDS = (0.3, 0.2, 0.1, 0.05)


def noisy_lengths(truth: Workload, sd: float, *, scenarios: int = SCENARIOS, seed: int = 0) -> Workload:
    """Return a forecast per response that misses each length by a lognormal factor, ``predicted = truth * exp(sd * z)``.

    Its scenarios are as far from the prediction as the prediction is from the truth: ``predicted * exp(sd * z')``.

    Args:
        sd: standard deviation of the logarithm of the error.

    Raises:
        PredictionError: ``sd`` is below 0, ``scenarios`` below 1, or the seed is no whole number of 0 or more.
    """
    check_draws(scenarios, seed)
    if not 0 <= sd < np.inf:
        raise PredictionError(f"sd is {sd:g}; a finite number of 0 or more is needed")
    rng = np.random.default_rng([seed, round(1e6 * sd)])
    predicted = truth.response_tokens * np.exp(sd * rng.standard_normal(len(truth)))
    return _forecast(truth, predicted, predicted * np.exp(sd * rng.standard_normal((scenarios, len(truth)))))


def prompt_means(truth: Workload, *, scenarios: int = SCENARIOS) -> Workload:
    """Return the forecast that knows the mean length of every prompt's responses, and takes it for the length of each."""
    predicted = _means(truth)
    return _forecast(truth, predicted, np.tile(predicted, (scenarios, 1)))


def prompt_lengths(truth: Workload, *, scenarios: int = SCENARIOS, seed: int = 0) -> Workload:
    """Return the forecast that knows every prompt's lengths, but not which response has which.

    In every scenario each response has a length drawn from those of its prompt.

    Raises:
        PredictionError: ``scenarios`` is below 1, or the seed is no whole number of 0 or more.
    """
    check_draws(scenarios, seed)
    by_prompt = np.argsort(truth.prompt_of, kind="stable")
    size = np.bincount(truth.prompt_of, minlength=len(truth.prompt_tokens))[truth.prompt_of]
    first = np.searchsorted(truth.prompt_of[by_prompt], truth.prompt_of)
    drawn = first + np.floor(np.random.default_rng(seed).random((scenarios, len(truth))) * size).astype(np.int64)
    return _forecast(truth, _means(truth), truth.response_tokens[by_prompt[drawn]])


def _means(truth: Workload) -> np.ndarray:
    sums = np.bincount(truth.prompt_of, weights=truth.response_tokens)
    return np.asarray((sums / np.maximum(np.bincount(truth.prompt_of), 1))[truth.prompt_of])


def _forecast(truth: Workload, predicted: np.ndarray, scenarios: np.ndarray | Sequence[float]) -> Workload:
    tokens, sampled = (np.clip(np.rint(x), 1, truth.max_response_tokens) for x in (predicted, np.asarray(scenarios)))
    return Workload(
        truth.prompt_tokens, truth.prompt_of, tokens, truth.generated_tokens, truth.max_response_tokens, scenarios=sampled
    )
