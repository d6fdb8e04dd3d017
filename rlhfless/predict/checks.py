"""Checks the inputs of predictors: rollouts, limits, lengths, numbers of scenarios and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.errors import UserError
from solver.model.errors import as_given, is_number

NEEDED = ("prompt_id", "epoch", "response_tokens")


class PredictionError(UserError, ValueError):
    """Lengths cannot be predicted from the given input; the message says what would be right."""


def check_rollouts(rollouts: pd.DataFrame) -> None:
    """Check that rollouts have the needed columns and valid lengths.

    Raises:
        PredictionError: a column is missing, or a length is not a finite number of 0 or more.
    """
    for column in NEEDED:
        if column not in rollouts.columns:
            raise PredictionError(f"the history has no column '{column}'; rollouts with {', '.join(NEEDED)} are needed")
    lengths = rollouts["response_tokens"]
    tokens = pd.to_numeric(lengths, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    if len(wrong := np.flatnonzero(~((tokens >= 0) & (tokens < np.inf)))):
        row, value = rollouts.index[wrong[0]], lengths.iloc[wrong[0]]
        raise PredictionError(
            f"row {row} of the history, column 'response_tokens' is {as_given(value)}; "
            "a number of tokens of 0 or more is needed"
        )


def check_limit(max_response_tokens: float) -> None:
    """Check that a response limit is at least one token.

    Raises:
        PredictionError: it is not.
    """
    if not is_number(max_response_tokens, 1):
        raise PredictionError(f"max_response_tokens is {max_response_tokens!r}; at least 1 token is needed")


def lengths_of(references: Mapping[str, Any], prompts: set[str]) -> dict[str, float]:
    """Return the lengths of the reference answers to ``prompts``, for those that have one.

    Raises:
        PredictionError: one is not a finite number of 0 or more.
    """
    asked = {str(name): tokens for name, tokens in references.items() if str(name) in prompts}
    for name, tokens in asked.items():
        if not is_number(tokens, 0):
            raise PredictionError(
                f"the reference answer to prompt {name!r} has {tokens!r} tokens; a number of tokens of 0 or more is needed"
            )
    return {name: float(tokens) for name, tokens in asked.items()}


def check_draws(scenarios: int, seed: int) -> None:
    """Check the number of scenarios and the seed.

    Raises:
        PredictionError: the number is not a whole number of 1 or more, or the seed not one of 0 or more.
    """
    for name, value, minimum in (("scenarios", scenarios, 1), ("seed", seed, 0)):
        if not isinstance(value, Integral) or isinstance(value, bool) or value < minimum:
            raise PredictionError(f"{name} is {value!r}; a whole number of {minimum} or more is needed")
