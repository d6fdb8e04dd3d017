"""Spread of lengths between prompts and within them, by scenarios; the sentence on what a forecast of prompts explains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlhfless.scheduling.calibration import spread_in_words, spreads
from solver import Workload

PROMPTS, SAMPLES, SCENARIOS = 200, 6, 8


def forecast(between: float, within: float, seed: int = 0) -> Workload:
    """Scenarios around the prompts' means, which are all that is predicted."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(8.0, between, PROMPTS).repeat(SAMPLES)
    drawn = np.exp(mean + rng.normal(0.0, within, (SCENARIOS, len(mean)))).astype(int)
    prompts = np.arange(PROMPTS).repeat(SAMPLES)
    return Workload([10] * PROMPTS, prompts, np.exp(mean), max_response_tokens=10**6, scenarios=drawn)


@pytest.mark.parametrize(("between", "within"), [(0.8, 0.3), (0.3, 0.8), (0.0, 0.5), (0.5, 0.0)])
def test_both_spreads_are_found(between: float, within: float) -> None:
    assert spreads(forecast(between, within)) == pytest.approx((between, within), abs=0.06)


def test_the_sentence_names_both_where_prompts_differ_less_than_their_responses() -> None:
    assert spread_in_words(forecast(0.8, 0.3)) == ""
    said = spread_in_words(forecast(0.3, 0.8))
    assert "0.80" in said or "0.79" in said or "0.81" in said
    assert "within prompts" in said
    assert "explains at most half of this variance" in said


def test_a_forecast_of_single_responses_is_none_of_prompts() -> None:
    work = forecast(0.3, 0.8)
    assert spread_in_words(replace(work, response_tokens=np.arange(1, len(work) + 1))) == ""


def test_a_prompt_with_one_response_counts_by_its_scenarios() -> None:
    work = forecast(0.3, 0.8)
    alone = Workload(
        work.prompt_tokens, range(PROMPTS), work.response_tokens[::SAMPLES], max_response_tokens=10**6,
        scenarios=work.scenarios[:, ::SAMPLES],
    )  # fmt: skip
    assert spreads(alone) == pytest.approx((0.3, 0.8), abs=0.1)
