"""EwmaPredictor: averages over epochs, fallbacks, lower bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.predict import EwmaPredictor, PredictionError


def history(*rows: tuple[Any, ...]) -> pd.DataFrame:
    """Rollouts of (prompt, epoch, tokens) or (prompt, epoch, tokens, finish reason)."""
    full = [(*row, "stop")[:4] for row in rows]
    return pd.DataFrame(full, columns=["prompt_id", "epoch", "response_tokens", "finish_reason"])


TWO_EPOCHS = history(("a", 0, 10), ("a", 0, 30), ("b", 0, 7), ("a", 1, 50), ("a", 1, 70))


def test_window_one_is_the_mean_of_the_last_epoch() -> None:
    assert EwmaPredictor().fit(TWO_EPOCHS).predict(["a", "b"], max_response_tokens=100).tolist() == [60, 7]


def test_a_wider_window_remembers_earlier_epochs() -> None:
    """alpha = 2/3: 2/3 of 60 and 1/3 of 20."""
    predictor = EwmaPredictor(window=2).fit(TWO_EPOCHS.iloc[::-1])
    assert predictor.predict(["a"], max_response_tokens=100) == pytest.approx([2 / 3 * 60 + 1 / 3 * 20])


def test_every_response_gets_its_prompts_prediction() -> None:
    predictor = EwmaPredictor().fit(TWO_EPOCHS)
    assert predictor.predict(["a", "b"], 2, max_response_tokens=100).tolist() == [60, 60, 7, 7]
    assert predictor.predict(["a", "b"], [1, 3], max_response_tokens=100).tolist() == [60, 7, 7, 7]
    assert predictor.predict(["b", "a", "b"], max_response_tokens=100).tolist() == [7, 60, 7]
    assert predictor.predict([], max_response_tokens=100).shape == (0,)


def test_an_unseen_prompt_gets_its_reference_answer_then_the_median_then_half_the_limit() -> None:
    predictor = EwmaPredictor().fit(TWO_EPOCHS)
    assert predictor.predict(["new", "a"], 1, {"new": 12, "a": 1}, max_response_tokens=100).tolist() == [12, 60]
    assert predictor.predict(["new"], max_response_tokens=100).tolist() == [30]
    assert EwmaPredictor().predict(["new"], max_response_tokens=100).tolist() == [50]
    assert EwmaPredictor().fit(history()).predict([3], 1, {"3": 500}, max_response_tokens=100).tolist() == [100]


def test_numbers_and_texts_name_the_same_prompt() -> None:
    assert EwmaPredictor().fit(history((3, 0, 9))).predict(["3"], max_response_tokens=100).tolist() == [9]


def test_fit_replaces_what_was_learned() -> None:
    predictor = EwmaPredictor().fit(TWO_EPOCHS).fit(history(("a", 0, 1)))
    assert predictor.predict(["a", "b"], max_response_tokens=100).tolist() == [1, 1]
    assert "1 response to 1 prompt" in repr(predictor)


def test_a_truncated_or_aborted_length_is_a_lower_bound_and_an_unknown_end_is_complete() -> None:
    rows = [("a", 0, 10), ("b", 0, 20, "stop"), ("b", 0, 40, "stop")]
    for reason, expected in (("length", 30), ("aborted", 30), ("stop", 10), (None, 10)):
        predictor = EwmaPredictor().fit(history((*rows[0], reason), *rows[1:]))
        assert predictor.predict(["a"], max_response_tokens=100) == pytest.approx([expected])
    without = history(*rows).drop(columns="finish_reason")
    assert EwmaPredictor().fit(without).predict(["a"], max_response_tokens=100).tolist() == [10]


reasons = st.sampled_from(["stop", "length", "aborted", None])
logs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 60), reasons), max_size=20)


@settings(deadline=None, max_examples=40)
@given(log=logs, limit=st.integers(1, 100), window=st.integers(1, 4))
def test_lower_bounds_raise_predictions_and_the_limit_holds(log: list, limit: int, window: int) -> None:
    rows = history(*log)
    prompts = [str(prompt) for prompt in range(6)]
    censored = EwmaPredictor(window).fit(rows).predict(prompts, max_response_tokens=limit)
    plain = EwmaPredictor(window).fit(rows.assign(finish_reason=None)).predict(prompts, max_response_tokens=limit)
    assert np.all(censored >= plain - 1e-9)
    assert np.all((censored >= 0) & (censored <= limit))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: EwmaPredictor(0), ()),
        (lambda: EwmaPredictor().fit(TWO_EPOCHS.drop(columns="epoch")), ("'epoch'",)),
        (lambda: EwmaPredictor().fit(TWO_EPOCHS.assign(run=list("aaabb"))), ()),
        (lambda: EwmaPredictor().predict(["a"], max_response_tokens=0), ("max_response_tokens",)),
        (lambda: EwmaPredictor().predict(["a"], [1, 2], max_response_tokens=9), ("samples_per_prompt",)),
        (lambda: EwmaPredictor().predict(["a"], -1, max_response_tokens=9), ("samples_per_prompt",)),
        (lambda: EwmaPredictor().predict(["a"], 1.5, max_response_tokens=9), ("samples_per_prompt", "1.5")),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(wrong: Any, sentence: tuple[str, ...]) -> None:
    with refused(PredictionError, *sentence):
        wrong()


def test_scenarios_spread_as_the_newest_visits_did():
    """Two visits of every prompt; in the second one, half the responses were half and half were twice as long as predicted."""
    rows = [{"prompt_id": p, "epoch": 0, "response_tokens": 100} for p in "abcd" for _ in range(4)]
    rows += [{"prompt_id": p, "epoch": 1, "response_tokens": t} for p in "abcd" for t in (50, 200, 50, 200)]
    predictor = EwmaPredictor().fit(pd.DataFrame(rows))
    sampled = predictor.sample(["a", "b"], 50, max_response_tokens=200, scenarios=40, seed=1)
    assert sampled.shape == (40, 100)
    assert set(np.unique(sampled)) == {63, 200}, "125 tokens predicted, times 1/2 or 2, cut at the limit"
    assert np.mean(sampled == 200) == pytest.approx(0.5, abs=0.05)
    again = predictor.sample(["a", "b"], 50, max_response_tokens=200, scenarios=40, seed=1)
    assert np.array_equal(sampled, again)


def test_the_error_is_that_of_newest_visits_which_earlier_visits_predicted():
    """The second visits are half and twice as long as predicted; first visits and few responses prove nothing."""
    rows = [{"prompt_id": f"p{p}", "epoch": 0, "response_tokens": 100} for p in range(10) for _ in range(4)]
    again = [{"prompt_id": f"p{p}", "epoch": 1, "response_tokens": t} for p in range(10) for t in (50, 200, 50, 200)]

    def error_sd(history: list[dict[str, Any]]) -> float | None:
        return EwmaPredictor().fit(pd.DataFrame(history)).forecast(["p0"], 4, max_response_tokens=400).error_sd

    assert error_sd(rows + again) == pytest.approx(np.log(2))
    assert error_sd(rows) is None
    assert error_sd(rows + again[:8]) is None


def test_without_history_every_scenario_is_the_prediction():
    predictor = EwmaPredictor().fit(pd.DataFrame())
    sampled = predictor.sample(["a", "b"], 2, {"a": 30}, max_response_tokens=100, scenarios=3)
    assert sampled.tolist() == [[30, 30, 50, 50]] * 3


def test_single_samples_of_a_first_visit_say_nothing_of_their_own_accuracy():
    """One length per prompt seen once: a scenario draws from all of them, whatever the prompt."""
    history = pd.DataFrame({"prompt_id": [f"p{i}" for i in range(40)], "epoch": 0, "response_tokens": [10] * 20 + [100] * 20})
    sampled = EwmaPredictor().fit(history).sample(["p0"] * 200, max_response_tokens=200, scenarios=4)
    assert set(np.unique(sampled)) == {10.0, 100.0}
    assert 0.4 < float((sampled == 100).mean()) < 0.6


def test_samples_of_a_first_visit_are_measured_against_the_others():
    """Two samples of 10 and 30: each is a third or three times of what the other one says."""
    history = pd.DataFrame({"prompt_id": ["p", "p"], "epoch": 0, "response_tokens": [10, 30]})
    sampled = EwmaPredictor().fit(history).sample(["p"] * 100, max_response_tokens=200, scenarios=2)
    assert set(np.unique(sampled)) == {np.ceil(20 / 3), 60.0}


def test_what_moves_all_samples_of_a_prompt_stays_together():
    """One prompt doubled, another halved: in a scenario all samples of a prompt double or all halve."""
    rows = [("a", 0, 50), ("a", 0, 50), ("b", 0, 50), ("b", 0, 50), ("a", 1, 100), ("a", 1, 100), ("b", 1, 25), ("b", 1, 25)]
    history = pd.DataFrame(rows, columns=["prompt_id", "epoch", "response_tokens"])
    sampled = EwmaPredictor().fit(history).sample(["a", "b"], 4, max_response_tokens=500, scenarios=50)
    assert sampled.shape == (50, 8)
    assert np.all(sampled[:, :4] == sampled[:, :1])
    assert np.all(sampled[:, 4:] == sampled[:, 4:5])
    assert set(np.unique(sampled[:, 0])) == {50.0, 200.0}
    assert 0.2 < float((sampled[:, 0] > 100).mean()) < 0.8
