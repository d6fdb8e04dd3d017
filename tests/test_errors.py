"""Why something failed, as sentences say it: one short line, whatever the error's message is like; and names that are meant."""

from __future__ import annotations

import pytest

from rlhfless.errors import likely_meant, reason


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no such thing."), "no such thing"),
        (OSError("\n  first line\nsecond line"), "first line"),
        (MemoryError(), "MemoryError"),
        (RuntimeError(" \n"), "RuntimeError"),
        (ValueError("x" * 900), "x" * 200),
    ],
)
def test_a_reason_is_one_short_line(error: Exception, said: str) -> None:
    assert reason(error) == said


NAMES = ["gpus", "profile", "time_weight", "max_response_tokens", "max_prompts", "policies", "train", "tokens_of_a_micro_batch"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("gpu", "gpus"),
        ("profiel", "profile"),
        ("num-gpus", "gpus"),
        ("weight", "time_weight"),
        ("max_tokens", "max_response_tokens"),
        ("time_w", "time_weight"),
        ("policy", "policies"),
        ("training", "train"),
        ("batch", None),
        ("max", None),
        ("price", None),
        ("", None),
    ],
)
def test_a_name_that_is_like_one_or_has_its_words_is_meant(typed: str, meant: str | None) -> None:
    assert likely_meant(typed, NAMES) == meant
    assert likely_meant(typed, []) is None
