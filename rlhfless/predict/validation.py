"""What predictors refuse before they compute anything.

Knows what rollouts, limits, lengths, levels and draws have to be; nothing of how anything is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rlhfless.predict.censoring import FloatArray
from rlhfless.predict.errors import PredictionError
from solver.model.errors import as_given, is_number

NEEDED = ("prompt_id", "epoch", "response_tokens")


def check_rollouts(rollouts: pd.DataFrame) -> None:
    """Columns that are needed, and lengths that are some.

    Raises:
        PredictionError: a column is missing, or a length is no finite number of 0 or more.
    """
    for column in NEEDED:
        if column not in rollouts.columns:
            raise PredictionError(f"the history has no column '{column}'; rollouts with {', '.join(NEEDED)} are needed")
    given = rollouts["response_tokens"]
    tokens = pd.to_numeric(given, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    if len(wrong := np.flatnonzero(~((tokens >= 0) & (tokens < np.inf)))):
        row, value = rollouts.index[wrong[0]], given.iloc[wrong[0]]
        raise PredictionError(
            f"row {row} of the history, column 'response_tokens' is {as_given(value)}; "
            "a number of tokens of 0 or more is needed"
        )


def check_limit(response_limit: float) -> None:
    """A response limit of at least one token.

    Raises:
        PredictionError: it is none.
    """
    if not is_number(response_limit, 1):
        raise PredictionError(f"response_limit is {response_limit!r}; at least 1 token is needed")


def lengths_of(references: Mapping[str, Any], prompts: set[str]) -> dict[str, float]:
    """Lengths of the reference answers to ``prompts``, as far as they are given.

    Raises:
        PredictionError: one is no finite number of 0 or more.
    """
    asked = {str(name): tokens for name, tokens in references.items() if str(name) in prompts}
    for name, tokens in asked.items():
        if not is_number(tokens, 0):
            raise PredictionError(
                f"the reference answer to prompt {name!r} has {tokens!r} tokens; a number of tokens of 0 or more is needed"
            )
    return {name: float(tokens) for name, tokens in asked.items()}


def check_draws(scenarios: int, seed: int) -> None:
    """How often something is drawn, and from which seed.

    Raises:
        PredictionError: the scenarios are no whole number of 1 or more, or the seed is none of 0 or more.
    """
    for name, value, least in (("scenarios", scenarios, 1), ("seed", seed, 0)):
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise PredictionError(f"{name} is {value!r}; a whole number of {least} or more is needed")


def levels_of(levels: ArrayLike) -> FloatArray:
    """Levels of quantiles as an array.

    Raises:
        PredictionError: one does not lie in 0..1.
    """
    try:
        found = np.asarray(levels, dtype=float)
    except (TypeError, ValueError):
        found = np.array(np.nan)
    if not ((found >= 0) & (found <= 1)).all():
        raise PredictionError(f"levels is {levels!r}; numbers from 0 to 1 are needed")
    return found
