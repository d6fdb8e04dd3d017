"""Words for ranges of numbers, and for whether a printed number is within a bound."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

NAIVE_LEARNER = "a learner of the naive system's size"


def spread(values: pd.Series, form: str) -> str:
    """Return ``0.93 to 0.98``, or the one value where all are the same after rounding."""
    low, high = format(values.min(), form), format(values.max(), form)
    return low if low == high else f"{low} to {high}"


def reached(paper: float, possible: Mapping[str, float], learner: str = "") -> str:
    """Describe in words whether a printed number is within a bound.

    Args:
        possible: the bound's limit, by setting. learner: the learner that the bound assumes, where that matters.
    """
    out = [name for name, value in possible.items() if value < paper]
    which = "" if len(out) == len(possible) else f" {' and '.join(out)}"
    return f"{'Not possible' if out else 'Possible'}{f' with {learner}' if learner else ''}{which if out else ''}"


def reached_by(paper: float, possible: Mapping[str, float], on_all: Mapping[str, float]) -> str:
    """Describe ``reached`` for a speed with both learners."""
    second = reached(paper, on_all, "a learner on all GPUs")
    return f"{reached(paper, possible, NAIVE_LEARNER)}; {lower(second)}"


def lower(sentence: str) -> str:
    """Return the sentence for use in the middle of another."""
    return sentence[0].lower() + sentence[1:]
