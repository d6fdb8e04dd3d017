"""Why something failed, as sentences say it: one short line, whatever the error's message is like."""

from __future__ import annotations

import pytest

from rlhfless.errors import reason


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
