"""The sentence of the verdict on what schedules save: ranges, ties, and the condition on released GPUs."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from log_samples import rollouts

import rlhfless as rl
from rlhfless.run.verdict import IF_RELEASED, Verdict


def row(policy: str, time: tuple[float, float], gpu_seconds: tuple[float, float]) -> dict[str, Any]:
    """The savings of one schedule, between the given ends."""
    made: dict[str, Any] = {"policy": policy}
    for kind, (low, high) in (("time", time), ("GPU-seconds", gpu_seconds)):
        made |= {f"{kind} low": low, f"{kind} mean": (low + high) / 2, f"{kind} high": high, f"{kind} most": 0.6}
    return made


def sentence(*rows: dict[str, Any], ranges: str = "") -> str:
    """What a verdict with such savings says."""
    return str(Verdict("8 GPUs", (0, 1), 100.0, 0.0, 0.5, 0.5, pd.DataFrame(rows), 0.7, "measured", pd.DataFrame(), ranges))


@pytest.mark.parametrize(
    ("time", "words"),
    [
        ((-0.0001, -0.0002), "for no more time;"),
        ((-0.0101, -0.0099), "for 1.0% more time;"),
        ((-0.02, -0.01), "for 1.0% to 2.0% more time;"),
        ((-0.02, 0.0), "for 0.0% to 2.0% more time;"),
        ((0.2, 0.2), "and 20% of the time;"),
        ((-0.01, 0.2), "and \N{MINUS SIGN}1.0% to 20% of the time;"),
    ],
)
def test_equal_ends_of_a_range_are_one_number(time: tuple[float, float], words: str) -> None:
    assert words in sentence(row("fold", time, (0.3, 0.3)))


def test_the_condition_stands_where_released_gpus_make_the_difference() -> None:
    assert IF_RELEASED in sentence(row("fold", (0.1, 0.1), (0.3, 0.3)))
    assert IF_RELEASED not in sentence(row("fold", (0.3, 0.3), (0.3, 0.3))), "the time alone saves as much"


def test_a_range_says_what_it_covers() -> None:
    words = "ranges: over all"
    assert words in sentence(row("fold", (0.1, 0.2), (0.3, 0.3)), ranges=words)
    assert words not in sentence(row("fold", (0.1, 0.1), (0.3, 0.3)), ranges=words), "there is no range"
    said = str(rl.load(rollouts(), 16, "l40s-qwen2.5-3b-tp2", verbose=False).verdict)
    assert "5th to 95th percentile over 3 resampled steps" in said
    one = rollouts()
    assert "percentile" not in str(rl.load(one[one["step"] == 0], 16, "l40s-qwen2.5-3b-tp2", verbose=False).verdict)


def test_schedules_that_tie_are_named_together() -> None:
    best, near, other = (row(name, (low, low), (0.3, 0.3)) for name, low in (("a", 0.2), ("b", 0.198), ("c", 0.15)))
    assert "Several schedules tie (a, b): releasing GPUs early, they save 30% of" in sentence(best, near, other)
    assert "and 20% of the time" in sentence(best, near, other)
    assert "The schedule a, which releases GPUs early, saves" in sentence(best, other)
