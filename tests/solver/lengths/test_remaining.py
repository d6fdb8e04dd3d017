"""Forecasts of remaining lengths: probabilities are right, conditional on the tokens so far, and learned from what is known."""

from __future__ import annotations

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from solver import PlanningError, Workload
from solver.lengths.remaining import KnownLengths, SurvivalTable
from solver.lengths.survival import (
    BatchLengths,
    from_batch,
    from_samples,
    from_scenarios,
    kaplan_meier,
    known_lengths,
    survival_of,
    token_grid,
)

LIMIT = 200
lengths = st.lists(st.integers(1, LIMIT), min_size=1, max_size=30)


def workload(tokens, prompt_of=None, limit: int = LIMIT, **more) -> Workload:
    owner = np.zeros(np.shape(tokens)[-1], int) if prompt_of is None else np.asarray(prompt_of)
    return Workload(np.full(owner.max() + 1, 10), owner, tokens, max_response_tokens=limit, **more)


@given(lengths)
@settings(max_examples=40, deadline=None)
def test_without_censoring_kaplan_meier_is_the_share_that_is_longer(samples):
    grid = token_grid(LIMIT)
    np.testing.assert_allclose(kaplan_meier(samples, np.ones(len(samples), bool), grid), survival_of(samples, grid), atol=1e-12)


def test_a_censored_length_counts_as_at_risk_up_to_where_it_was_seen():
    # 3 ends, 5 is censored, 8 ends: S(3) = 2/3, S(8) = 2/3 * 0
    grid = np.arange(11.0)
    expected = [1, 1, 1, 2 / 3, 2 / 3, 2 / 3, 2 / 3, 2 / 3, 0, 0, 0]
    np.testing.assert_allclose(kaplan_meier([3, 5, 8], [True, False, True], grid), expected)


def test_of_equal_lengths_a_censored_one_is_at_risk_where_the_other_ends():
    survival = kaplan_meier([1, 2, 2, 3], [True, True, False, True], np.array([1.0, 2.0, 3.0]))
    assert survival == pytest.approx([3 / 4, 3 / 4 * 2 / 3, 0])


@given(lengths, st.integers(0, LIMIT - 1))
@settings(max_examples=40, deadline=None)
def test_expected_tokens_are_the_mean_of_what_survivors_still_got(samples, age):
    """A curve on a grid of single tokens is exact but for half a token of the straight lines between."""
    table = from_samples([samples], workload([1]), pool_samples=0.0)
    alive = [s - age for s in samples if s > age]
    if alive:
        got = table.expected_tokens(np.array([0]), np.array([age]))[0]
        assert got == pytest.approx(max(1.0, np.mean(alive)), abs=1.0)
        assert table.survival(np.array([0]), np.array([age]), age + 0.0)[0] == pytest.approx(1.0)


@given(lengths, st.integers(0, LIMIT - 2), st.integers(0, LIMIT))
@settings(max_examples=40, deadline=None)
def test_survival_is_a_probability_that_falls_and_ends_at_the_limit(samples, age, ahead):
    table = from_samples([samples], workload([1]), pool_samples=3.0)
    one = np.array([0])
    at = [float(table.survival(one, age, min(age + x, LIMIT))[0]) for x in (0, ahead, LIMIT)]
    assert 1.0 >= at[0] >= at[1] >= at[2] == 0.0
    most = float(table.max_tokens(one, age)[0])
    assert 1.0 <= table.expected_tokens(one, age)[0] <= most <= LIMIT - age
    assert table.survival(one, age, age + most)[0] == 0.0


def test_the_root_sum_is_the_sum_of_the_roots():
    samples = [20, 50, 50, 120, 200]
    table = from_samples([samples], workload([1]), pool_samples=0.0)
    per_response, per_kv_token, age = 2e-5, 3e-8, 30
    y = np.arange(age, LIMIT)
    share = survival_of(samples, y.astype(float)) / 0.8
    exact = np.sqrt(share * (per_response + per_kv_token * (10 + y))).sum()
    assert table.root_load(np.array([0]), age, per_response, per_kv_token)[0] == pytest.approx(exact, rel=0.01)


@given(lengths, st.integers(0, 150))
@settings(max_examples=40, deadline=None)
def test_known_lengths_are_certain(true, age):
    forecast = known_lengths(workload(true))
    everyone, tokens = np.arange(len(true)), np.full(len(true), age)
    left = np.maximum(np.array(true) - age, 1)
    np.testing.assert_allclose(forecast.expected_tokens(everyone, tokens), left)
    np.testing.assert_allclose(forecast.max_tokens(everyone, tokens), left)
    np.testing.assert_array_equal(forecast.survival(everyone, tokens, tokens + left - 1), 1.0)
    np.testing.assert_array_equal(forecast.survival(everyone, tokens, tokens + left), 0.0)
    exact = [np.sqrt(2e-5 + 3e-8 * (10 + np.arange(age, age + n))).sum() for n in left]
    np.testing.assert_allclose(forecast.root_load(everyone, tokens, 2e-5, 3e-8), exact, rtol=1e-4)
    np.testing.assert_allclose(forecast.root_load(everyone, tokens, 2e-5, 0.0), np.sqrt(2e-5) * left)


def test_survivals_add_up_to_the_responses_that_are_expected_alive():
    table = from_samples([[10, 30], [100]], workload([1, 1, 1], [0, 0, 1]), pool_samples=0.0)
    alive = [table.survival(np.arange(3), np.zeros(3), np.full(3, tokens)).sum() for tokens in (0, 15, 50)]
    np.testing.assert_allclose(alive, [3, 2, 1])


def test_own_samples_come_before_the_pool_and_the_pool_says_what_outlives_them():
    table = from_samples([[10] * 8, []], workload([1, 1], [0, 1]), pool=[10, 150], pool_samples=2.0)
    both = np.arange(2)
    np.testing.assert_allclose(table.survival(both, 0, 50), [2 * 0.5 / 10, 0.5])
    np.testing.assert_allclose(table.survival(both, 60, 140), [1.0, 1.0])
    assert table.expected_tokens(both, 0)[0] < table.expected_tokens(both, 0)[1]


def test_scenarios_of_a_prompt_stand_for_all_its_responses():
    scenarios = np.array([[10, 20, 90], [30, 40, 110]])
    table = from_scenarios(workload(scenarios, [0, 0, 1]), pool_samples=0.0)
    np.testing.assert_allclose(table.survival(np.arange(3), 0, 25), [0.5, 0.5, 1.0])


def test_equal_scenarios_say_nothing_and_leave_the_batch():
    assert isinstance(from_scenarios(workload(np.full((4, 6), 100))), BatchLengths)


def test_the_batch_is_learned_from_while_it_runs():
    forecast = from_batch(workload(np.full(100, 50)))
    one = np.array([0])
    assert forecast.survival(one, 0, LIMIT / 2)[0] == pytest.approx(0.5, abs=0.01)  # any length is as likely as another
    tokens, complete = np.full(100, 60), np.arange(100) < 50
    tokens[:50] = 40
    seen = forecast.observe(tokens, complete)
    assert seen.survival(one, 0, 50)[0] == pytest.approx(0.5)
    assert seen.survival(one, 60, 130)[0] == pytest.approx(0.5, abs=0.01)  # beyond 60 nothing is known
    assert seen.observe(tokens, complete) is seen
    assert forecast.observe(np.full(100, 20), np.zeros(100, bool)) is forecast


def test_a_pool_is_a_prior_that_the_batch_corrects():
    forecast = from_batch(workload(np.full(100, 50)), pool=[150] * 100)
    assert forecast.survival(np.array([0]), 0, 100)[0] == pytest.approx(1.0)
    seen = forecast.observe(np.where(np.arange(100) < 50, 40, 60), np.arange(100) < 50)
    assert seen.survival(np.array([0]), 0, 100)[0] == pytest.approx(0.75)


def test_a_response_beyond_its_curve_is_about_to_end():
    table = from_samples([[10]], workload([1]), pool_samples=0.0)
    assert table.expected_tokens(np.array([0]), 190)[0] == 1.0
    assert np.isfinite(table.root_load(np.array([0]), 199, 1e-5, 0.0)).all()
    assert table.max_tokens(np.array([0]), LIMIT)[0] == 1.0


@pytest.mark.parametrize(
    ("grid", "curve", "owner", "message"),
    [
        ([0, 5, 10], [[1, 1]], [0], ()),
        ([1, 5, 10], [[1, 1, 0]], [0], ()),
        ([0, 5, 10, 12], [[1, 0.2, 0.6, 0]], [0], ()),
        ([0, 5, 10], [[1, 1, 0]], [1], ("class_of",)),
    ],
)
def test_impossible_curves_are_refused(grid, curve, owner, message):
    with refused(PlanningError, *message):
        SurvivalTable(np.array(grid, float), np.array(curve, float), np.array(owner), np.zeros(1))


def test_samples_of_other_prompts_than_the_workloads_are_refused():
    with refused(PlanningError):
        from_samples([[1], [2]], workload([1]))


def test_known_lengths_learn_nothing():
    forecast = KnownLengths(np.array([5.0]), np.array([1.0]), 10)
    assert forecast.observe(np.array([3]), np.array([False])) is forecast


def test_responses_with_predictions_of_their_own_have_forecasts_of_their_own():
    """Eight samples of one prompt, 5 % around lengths from 20 to 160: each forecast is near its own length."""
    predicted = np.arange(20, 180, 20)
    sampled = predicted * np.exp(0.05 * np.random.default_rng(0).standard_normal((32, 8)))
    one_prompt = Workload([0], np.zeros(8, int), predicted, max_response_tokens=LIMIT, scenarios=sampled)
    everyone = np.arange(8)
    sharp = from_scenarios(one_prompt)
    np.testing.assert_allclose(sharp.expected_tokens(everyone, 0), predicted, rtol=0.1)
    assert np.all(sharp.max_tokens(everyone, 0) < 1.3 * predicted + 2)
    alike = Workload([0], np.zeros(8, int), np.full(8, 90), max_response_tokens=LIMIT, scenarios=sampled)
    assert np.ptp(from_scenarios(alike).expected_tokens(everyone, 0)) == 0.0
    known = from_scenarios(Workload([0], np.zeros(8, int), predicted, max_response_tokens=LIMIT))
    np.testing.assert_array_equal(known.expected_tokens(everyone, 0), predicted)
