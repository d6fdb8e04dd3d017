"""The sentence of the verdict on what schedules save: ranges, ties, and the condition on released GPUs."""

from __future__ import annotations

import math
import re
from typing import Any

import pandas as pd
import pytest
from log_samples import rollouts

import rlhfless as rl
from rlhfless.report.amounts import Amounts
from rlhfless.report.schedules import DO, SHOWN, to_do
from rlhfless.report.study import ADVISED, GIVEN_BACK
from rlhfless.run.verdict import IF_RELEASED, Verdict


def row(policy: str, time: tuple[float, float], gpu_seconds: tuple[float, float]) -> dict[str, Any]:
    """The savings of one schedule, between the given ends."""
    made: dict[str, Any] = {"policy": policy, "replicas low": 2, "replicas high": 2}
    for kind, (low, high) in (("time", time), ("GPU-seconds", gpu_seconds)):
        made |= {f"{kind} low": low, f"{kind} mean": (low + high) / 2, f"{kind} high": high, f"{kind} most": 0.6}
    return made


def sentence(*rows: dict[str, Any], ranges: str = "") -> str:
    """What a verdict with such savings says."""
    made = (pd.DataFrame(rows), 0.7, "measured", pd.DataFrame(), ranges)
    return str(Verdict("8 GPUs", (0, 1), Amounts(100.0 / 3600, math.nan), 0.5, (0.5, 0.5), 0.5, *made, replicas="4"))


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
    assert "5th to 95th percentile over 2 resampled steps" in said, "the first step has no history"
    one = rollouts()
    assert "percentile" not in str(rl.load(one[one["step"] == 0], 16, "l40s-qwen2.5-3b-tp2", verbose=False).verdict)


def test_of_schedules_that_tie_the_simplest_is_advised_and_names_of_policies_are_details() -> None:
    """Rows stand from the simplest schedule to the most complex one."""
    near, best, other = (
        row(name, (low, low), (0.3, 0.3)) for name, low in (("random", 0.198), ("fold", 0.2), ("solver", 0.15))
    )
    said = sentence(near, best, other)
    advice, _, details = said.partition(" (simulated as policy ")
    assert f"What to do: {to_do(pd.Series(near), '4')}. This saves 30% of" in advice
    assert "start 2 replicas instead of 4" in advice
    assert "and 20% of the time" in advice
    assert not re.search(r"\b(random|fold|solver)\b", advice.replace("the solver", ""))
    assert details.startswith("random; fold ties with it).")
    assert to_do(pd.Series(best), "4") in sentence(best, other)


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


def test_a_saving_of_a_run_with_a_price_is_in_dollars_too() -> None:
    rows = pd.DataFrame([row("fold", (0.1, 0.1), (0.2, 0.3))])
    cost = Amounts(100.0 / 3600, 50.0)
    said = str(Verdict("8 GPUs", (0, 1), cost, 0.5, (0.5, 0.5), 0.5, rows, 0.7, "measured", pd.DataFrame()))
    assert "This saves 10.0 to 15.0 USD, 20% to 30% of the GPU-seconds" in said


def test_a_run_on_gpus_without_a_price_has_no_dollars() -> None:
    rows = pd.DataFrame([row("fold", (0.1, 0.1), (0.2, 0.3))])
    verdict = Verdict(
        "8 GPUs", (0, 1), Amounts(100.0 / 3600, math.nan), 0.5, (0.5, 0.5), 0.5, rows, 0.7, "measured", pd.DataFrame()
    )
    assert math.isnan(verdict.usd)
    assert "100" in str(verdict)
    assert "USD" not in str(verdict)


@pytest.mark.parametrize("policy", sorted({*GIVEN_BACK, *ADVISED}))
def test_every_schedule_that_can_be_advised_has_words_of_what_to_do(policy: str) -> None:
    assert DO[policy]
    assert policy in SHOWN
