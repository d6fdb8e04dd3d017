"""What holds for every predictor, and what each of them adds to the last value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from quantiles_left import quantiles_left

from rlhfless.predict import (
    EwmaPredictor,
    InFlightPredictor,
    PredictionError,
    Predictor,
    SyntheticPredictor,
)
from solver.lengths.remaining import SurvivalTable
from solver.lengths.survival import from_scenarios
from solver.model.errors import as_given

MAKERS: dict[str, Callable[[], Predictor]] = {"ewma": EwmaPredictor, "inflight": InFlightPredictor}


def visits(lengths: Any, step: int = 0, **more: Any) -> pd.DataFrame:
    """Rollouts of one visit from (P, G) lengths of prompts p0, p1, ..."""
    tokens = np.asarray(lengths)
    prompt, sample = np.divmod(np.arange(tokens.size), tokens.shape[1])
    names = [f"p{p}" for p in prompt]
    return pd.DataFrame(
        {"prompt_id": names, "sample": sample, "step": step, "epoch": step, "response_tokens": tokens.ravel(), **more}
    )


def drawn(
    prompts: int = 40, samples: int = 8, steps: int = 2, spread: float = 0.3, drift: float = 0.0, seed: int = 0
) -> list[pd.DataFrame]:
    """Steps that visit the same prompts: lognormal lengths around a mean per prompt that drifts."""
    rng = np.random.default_rng(seed)
    level = rng.normal(5, 0.6, prompts)[:, None]
    shape = (prompts, samples)
    return [visits(np.exp(level + drift * s + rng.normal(0, spread, shape)).round().clip(1, 4000), s) for s in range(steps)]


logs = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 60), st.sampled_from(["stop", "length", None])), max_size=20
)


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=25)
@given(log=logs, limit=st.integers(1, 100), split=st.integers(0, 20))
def test_every_answer_is_finite_within_the_limit_and_the_same_however_history_is_told(name, log, limit, split):
    rows = pd.DataFrame(
        [(*row, i) for i, row in enumerate(log)], columns=["prompt_id", "step", "response_tokens", "finish_reason", "sample"]
    )
    rows = rows.sort_values("step", kind="stable", ignore_index=True).assign(epoch=lambda t: t["step"])
    asked, answers = ["0", "1", "9", "0"], {"9": 7}
    whole = MAKERS[name]().fit(rows)
    parts = MAKERS[name]().update(rows[:split]).update(rows[split:])
    for predictor in (whole, parts):
        point = predictor.predict(asked, reference_answer_tokens=answers, max_response_tokens=limit)
        assert np.all((point >= 0) & (point <= limit))
        assert point[0] == point[3]
        scenarios = predictor.sample(asked, max_response_tokens=limit, scenarios=5, seed=3)
        assert scenarios.shape == (5, 4)
        assert np.all((scenarios >= 1) & (scenarios <= limit))
    for form in ("predict", "sample"):
        assert np.array_equal(
            getattr(whole, form)(asked, max_response_tokens=limit), getattr(parts, form)(asked, max_response_tokens=limit)
        )


@pytest.mark.parametrize("name", MAKERS)
def test_scenarios_hold_as_many_lengths_as_they_say(name):
    """Prompts that come back as they were: of the next step's lengths nearly 80 % lie between their quantiles 0.1 and 0.9."""
    *history, now = drawn(prompts=120, steps=4)
    predictor = MAKERS[name]().fit(pd.concat(history))
    drawn_lengths = predictor.sample(now["prompt_id"].tolist(), max_response_tokens=4000, scenarios=400)
    low, high = np.quantile(drawn_lengths, [0.1, 0.9], axis=0)
    inside = ((now["response_tokens"] > low) & (now["response_tokens"] <= high)).mean()
    assert 0.65 < inside < 0.92, inside


# --- drift -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drift", [0.1, -0.1])
def test_a_drift_is_followed_and_the_same_level_is_left_alone(drift):
    *history, now = drawn(steps=5, drift=drift)
    asked, true = now["prompt_id"].tolist(), now["response_tokens"].to_numpy()
    errors = {}
    for predictor in (InFlightPredictor(), EwmaPredictor()):
        guess = predictor.fit(pd.concat(history)).predict(asked, max_response_tokens=4000)
        errors[type(predictor)] = abs(np.log(guess.sum() / true.sum()))
    assert errors[InFlightPredictor] < 0.03 < errors[EwmaPredictor]
    still = pd.concat(drawn(steps=5))
    names = ["p1", "p7"]
    drifting, plain = (p.fit(still).predict(names, max_response_tokens=4000) for p in (InFlightPredictor(), EwmaPredictor()))
    assert drifting == pytest.approx(plain, rel=0.05)


def test_before_prompts_come_back_the_drift_is_that_of_the_steps_means():
    rng = np.random.default_rng(1)
    parts = []
    for step in range(30):
        rows = visits(np.exp(5 + 0.03 * step + rng.normal(0, 0.2, (8, 4))).round(), step, epoch=0)
        parts.append(rows.assign(prompt_id=[f"{step}-{name}" for name in rows["prompt_id"]], epoch=0))
    first = parts[0]["prompt_id"].unique().tolist()
    guess = InFlightPredictor().fit(pd.concat(parts)).predict(first, max_response_tokens=4000)
    assert guess.mean() == pytest.approx(np.exp(5 + 0.03 * 30), rel=0.1)


@pytest.mark.parametrize("name", MAKERS)
def test_a_forecast_knows_how_far_newest_visits_were_from_what_earlier_ones_predicted(name):
    """Noise of sd 0.4 around a mean that stays; the prompts of the first step only are no evidence."""
    first, again = drawn(prompts=60, spread=0.4)
    unseen = again.assign(prompt_id="new-" + again["prompt_id"])

    def error_sd(*steps: pd.DataFrame) -> float | None:
        return MAKERS[name]().fit(pd.concat(steps)).forecast(["p0"], 4, max_response_tokens=4000).error_sd

    assert error_sd(first, again) == pytest.approx(0.4, rel=0.2)
    assert error_sd(first, unseen) is None


# --- dialled -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accuracy", [0.0, 0.44, 1.0])
def test_as_many_prompts_are_right_as_dialled(accuracy):
    first, second = drawn(prompts=50)
    names = [f"p{i}" for i in range(50)]
    true = second.groupby("prompt_id")["response_tokens"].mean()[names].to_numpy()
    both = pd.concat([first, second])
    predictor = SyntheticPredictor(both, accuracy).fit(first)
    guess = predictor.predict(names, max_response_tokens=4000)
    assert np.isclose(guess, true).sum() == round(accuracy * 50)
    assert np.sort(guess) == pytest.approx(np.sort(true)), "wrong predictions are other prompts' lengths"
    assert np.array_equal(guess, SyntheticPredictor(both, accuracy).fit(first).predict(names, max_response_tokens=4000))
    assert predictor.forecast(names, max_response_tokens=4000).error_sd is None, "its errors are set, not learned"
    assert np.all(predictor.sample(names, max_response_tokens=4000, scenarios=3) == np.ceil(guess))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda t: SyntheticPredictor(t, 1.2), ("1.2",)),
        (lambda t: SyntheticPredictor(t.drop(columns="step")), ()),
        (lambda t: SyntheticPredictor(t).predict(["x"], max_response_tokens=9), ("step 0", "'x'")),
        (lambda t: SyntheticPredictor(t).fit(t).predict(["p0"], max_response_tokens=9), ()),
        (lambda t: EwmaPredictor().update(t.assign(run="a")).update(t.assign(run="b")), ()),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(wrong, sentence):
    with refused(PredictionError, *sentence):
        wrong(visits([[1, 2]]))


@pytest.mark.parametrize("name", [*MAKERS, "dialled"])
@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (lambda p: p.predict(["p0"], max_response_tokens=0), "max_response_tokens is 0; at least 1 token is needed"),
        (lambda p: p.predict(["p0"], max_response_tokens=math.nan), "max_response_tokens is nan; at least 1 token is needed"),
        (lambda p: p.sample(["p0"], max_response_tokens="9"), "max_response_tokens is '9'; at least 1 token is needed"),
        (
            lambda p: p.sample(["p0"], max_response_tokens=9, scenarios=0),
            "scenarios is 0; a whole number of 1 or more is needed",
        ),
        (
            lambda p: p.sample(["p0"], max_response_tokens=9, scenarios=-1),
            "scenarios is -1; a whole number of 1 or more is needed",
        ),
        (
            lambda p: p.sample(["p0"], max_response_tokens=9, scenarios=2.5),
            "scenarios is 2.5; a whole number of 1 or more is needed",
        ),
        (lambda p: p.sample(["p0"], max_response_tokens=9, seed=-1), "seed is -1; a whole number of 0 or more is needed"),
        (lambda p: p.sample(["p0"], max_response_tokens=9, seed=1.5), "seed is 1.5; a whole number of 0 or more is needed"),
    ],
)
def test_no_predictor_answers_what_makes_no_sense(name, asked, sentence):
    first, second = visits([[1, 2]]), visits([[3, 4]], step=1)
    predictor = SyntheticPredictor(pd.concat([first, second])) if name == "dialled" else MAKERS[name]()
    with pytest.raises(PredictionError) as refused:
        asked(predictor.fit(first))
    assert str(refused.value) == sentence


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("bad", [math.nan, None, pd.NA, -5, math.inf, "x"])
def test_lengths_that_are_none_are_refused_by_their_row_and_learned_from_by_nobody(name, bad):
    rows = visits([[5, 7], [9, 9]])
    wrong = rows.assign(response_tokens=pd.Series([5, 7, bad, 9], dtype=object))
    predictor = MAKERS[name]().fit(rows)
    before = predictor.predict(["p0", "p1"], max_response_tokens=20)
    with pytest.raises(PredictionError) as refused:
        predictor.update(wrong)
    assert str(refused.value) == (
        f"row 2 of the history, column 'response_tokens' is {as_given(bad)}; a number of tokens of 0 or more is needed"
    )
    assert np.array_equal(predictor.predict(["p0", "p1"], max_response_tokens=20), before)


@pytest.mark.parametrize("bad", [math.nan, -1, None, "x"])
def test_a_reference_answer_without_a_length_is_refused_where_it_is_asked_for(bad):
    predictor = EwmaPredictor().fit(visits([[5, 7]]))
    with refused(PredictionError, "'z'", repr(bad)):
        predictor.predict(["p0", "z"], 1, {"z": bad}, max_response_tokens=10)
    assert predictor.predict(["p0"], 1, {"z": bad}, max_response_tokens=10) == pytest.approx(6)


# --- what is left --------------------------------------------------------------------------------------------------------


def forecast_of(predictor: Predictor, samples: list[int]) -> SurvivalTable:
    """What policies follow while a step runs, with so many responses to p0, p1, ... of at most 1000 tokens."""
    names = [f"p{p}" for p in range(len(samples))]
    forecast = predictor.forecast(names, samples, max_response_tokens=1000, scenarios=64)
    table = from_scenarios(forecast.workload([0] * len(names), np.repeat(np.arange(len(names)), samples), 1000))
    assert isinstance(table, SurvivalTable)
    return table


def test_what_is_left_given_the_tokens_so_far_is_the_conditional_distribution():
    """Lengths uniform from 1 to 1000, all of one prompt: given x tokens what is left is uniform up to 1000 - x."""
    history = visits(np.arange(1, 1001)[None])
    predictor = EwmaPredictor().fit(history)
    so_far = np.array([0.0, 200.0, 600.0])
    table = forecast_of(predictor, [3])
    found = quantiles_left(table, np.arange(3), so_far, [0.25, 0.5, 0.75])
    expected = np.outer([0.25, 0.5, 0.75], 1000 - so_far)
    assert found == pytest.approx(expected, abs=130)
    assert np.all(np.diff(found, axis=0) > 0)
    assert np.all(table.expected_tokens(np.array([0, 1]), np.array([0, 900])) > [400, 1])


def test_who_outlives_all_its_prompts_lengths_goes_on_as_others_do():
    history = pd.concat([visits([[10, 12]]), visits([[900, 950]]).assign(prompt_id="p1")])
    predictor = EwmaPredictor().fit(history)
    table, first = forecast_of(predictor, [2, 2]), np.array([0])
    assert 350 < quantiles_left(table, first, np.array([500.0]), 0.5)[0, 0] < 500
    assert quantiles_left(table, first, np.array([999.0]), [0.5, 0.9]).tolist() == [[1], [1]]
