"""What the report says to do and what that saves, in words: replicas, equal ends of a range, every schedule that is advised."""

from __future__ import annotations

import pandas as pd
import pytest

from rlhfless.report.savings import time_in_words
from rlhfless.report.schedules import DO, SHOWN, to_do
from rlhfless.report.study import ADVISED, GIVEN_BACK


@pytest.mark.parametrize(
    ("time", "words"),
    [
        ((-0.0001, -0.0002), "for no more time"),
        ((-0.0101, -0.0099), "for 1.0% more time"),
        ((-0.02, -0.01), "for 1.0% to 2.0% more time"),
        ((-0.02, 0.0), "for 0.0% to 2.0% more time"),
        ((0.2, 0.2), "and 20% of the time"),
        ((-0.01, 0.2), "and \N{MINUS SIGN}1.0% to 20% of the time"),
    ],
)
def test_equal_ends_of_a_range_are_one_number(time: tuple[float, float], words: str) -> None:
    assert time_in_words(pd.Series({"time low": time[0], "time high": time[1]})) == words


@pytest.mark.parametrize(
    ("policy", "started", "own", "words"),
    [
        ("random", (2, 2), "4", "start 2 replicas instead of 4, and release"),
        ("random", (1, 1), "4", "start 1 replica instead of 4, and release"),
        ("fold", (2, 3), "4", "start 2 to 3 replicas instead of 4, as many as pay off in each step, and move"),
        ("spread", (4, 4), "4", "start 4 replicas as before, spread"),
        ("solver", (2, 5), "3 to 8", "each step (2 to 5 replicas instead of 3 to 8, which responses"),
        ("rlhfuse", (4, 4), "4", DO["rlhfuse"]),
        ("mine", (4, 4), "4", ""),
    ],
)
def test_what_to_do_says_how_many_replicas(policy: str, started: tuple[int, int], own: str, words: str) -> None:
    saved = pd.Series({"policy": policy, "replicas low": started[0], "replicas high": started[1]})
    said = to_do(saved, own)
    assert words in said
    assert bool(words) == bool(said)


@pytest.mark.parametrize("policy", sorted({*GIVEN_BACK, *ADVISED}))
def test_every_schedule_that_can_be_advised_has_words_of_what_to_do(policy: str) -> None:
    assert DO[policy]
    assert policy in SHOWN
