"""Rules that judge a response by its text or length: pure functions of one response."""

from __future__ import annotations

import re
from collections.abc import Callable

from rlhfless.errors import InputError
from rlhfless.training.rewards.response import Response

_GSM8K = re.compile(r"#### (\-?[0-9\.\,]+)")


def gsm8k_answer(text: str) -> str | None:
    """Return the first number after ``#### ``, without commas; None if there is none.

    The rule of GSM8K's authors, unchanged (grade_school_math/dataset.py). Numbers are compared as text, so 18. is not 18.
    """
    match = _GSM8K.search(text)
    return None if match is None else match[1].strip().replace(",", "")


def exact_answer(response: Response) -> float:
    """Return 1 if the number after ``#### `` in the response is the answer (given with ``####`` or without), else 0."""
    expected = gsm8k_answer(response.answer) or response.answer.strip().replace(",", "")
    return float(gsm8k_answer(response.text) == expected)


def contains_answer(response: Response) -> float:
    """Return 1 if the response contains the answer as whole words, else 0."""
    answer = re.escape(response.answer.strip())
    return float(re.search(rf"(?<!\w){answer}(?!\w)", response.text) is not None)


def matches(pattern: str) -> Callable[[Response], float]:
    """Return a rule of form: 1 if the regular expression is found in the response, else 0; ``.`` matches line ends too.

    Raises:
        InputError: the pattern is not a regular expression.
    """
    try:
        wanted = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise InputError(f"format {pattern!r} is not a regular expression: {error}") from None

    def format_rule(response: Response) -> float:
        return float(wanted.search(response.text) is not None)

    return format_rule


def length_limit(limit_tokens: int, soft_tokens: int) -> Callable[[Response], float]:
    """Return a length penalty: 0 up to ``limit_tokens - soft_tokens``, then falling to -1 at ``limit_tokens``.

    DAPO, Yu et al. 2025, arXiv:2503.14476, eq. 13.

    Raises:
        InputError: the soft part is empty, or longer than the limit.
    """
    if not 0 < soft_tokens <= limit_tokens:
        raise InputError(
            f"length limit {limit_tokens} has a soft part of {soft_tokens} tokens; a soft part from 1 to the limit is needed"
        )

    def length_rule(response: Response) -> float:
        return -min(max((response.tokens - (limit_tokens - soft_tokens)) / soft_tokens, 0.0), 1.0)

    return length_rule
