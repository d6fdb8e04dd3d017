"""A forecast that learns while a step runs: it is a distribution, knows nothing early, and what it learns makes it better."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from quantiles_left import quantiles_left, quantiles_while_running

from rlhfless.predict import InFlightPredictor, PredictionError, make_predictor
from rlhfless.predict.length_model import RESIDUALS, InFlightLengths
from solver.lengths.survival import BatchLengths, from_scenarios

LIMIT = 400
LEVELS = [0.05, 0.25, 0.5, 0.75, 0.95]
EVENLY = (np.arange(64) + 0.5) / 64  # levels whose quantiles have about the mean of the distribution


def visits(lengths: np.ndarray, step: int, limit: int = LIMIT) -> pd.DataFrame:
    """Rollouts of one visit from (P, G) lengths, cut off at the limit."""
    prompt, sample = np.divmod(np.arange(lengths.size), lengths.shape[1])
    tokens = np.clip(lengths.ravel(), 1, limit).astype(int)
    return pd.DataFrame(
        {
            "prompt_id": [f"p{p}" for p in prompt], "sample": sample, "step": step, "epoch": step, "response_tokens": tokens,
            "finish_reason": np.where(lengths.ravel() >= limit, "length", "stop"),
        }
    )  # fmt: skip


def drawn(
    prompts: int = 30, samples: int = 6, steps: int = 3, shared: float = 0.5, own: float = 0.3, seed: int = 0
) -> list[np.ndarray]:
    """(P, G) lengths of steps: a level per prompt, another change of it in every step, and what is a response's own."""
    rng = np.random.default_rng(seed)
    level = rng.normal(4.5, 0.4, prompts)
    return [
        np.exp((level + rng.normal(0, shared, prompts))[:, None] + rng.normal(0, own, (prompts, samples))).round()
        for _ in range(steps)
    ]


def learned(steps: list[np.ndarray]) -> InFlightPredictor:
    return InFlightPredictor().fit(pd.concat([visits(lengths, step) for step, lengths in enumerate(steps)]))


def forecast(predictor: InFlightPredictor, prompts: int, samples: int, limit: int = LIMIT) -> InFlightLengths:
    names = [f"p{p}" for p in range(prompts)]
    table = predictor.forecast(names, samples, max_response_tokens=limit, prompt_tokens=10).remaining
    assert isinstance(table, InFlightLengths)
    return table


def errors(table: InFlightLengths, lengths: np.ndarray, at: int) -> np.ndarray:
    """Log of the tokens left less what is expected of it, of responses that go on at ``at`` tokens."""
    tokens = np.clip(lengths.ravel(), 1, LIMIT).astype(int)
    seen = table.observe(np.minimum(tokens, at), tokens <= at)
    alive = np.flatnonzero(tokens > at)
    left = quantiles_left(seen, alive, np.full(len(alive), float(at)), EVENLY)
    return np.asarray(np.log(tokens[alive] - at) - np.log(left).mean(axis=0))


# --- a distribution -----------------------------------------------------------------------------------------------------


@given(st.integers(0, 1000), st.integers(0, LIMIT - 1), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_what_is_left_is_a_distribution_whose_quantiles_rise(seed, at, samples):
    rng = np.random.default_rng(seed)
    predictor = learned(drawn(prompts=int(rng.integers(8, 20)), samples=samples, steps=int(rng.integers(1, 4)), seed=seed))
    lengths = rng.integers(1, LIMIT + 1, 12 * samples)
    tokens, complete = np.minimum(lengths, at), lengths <= at
    table = forecast(predictor, 12, samples).observe(tokens, complete)
    assert np.all(np.diff(table.curve, axis=1) <= 1e-9)
    names = [f"p{p}" for p in np.repeat(np.arange(12), samples)]
    quantiles = quantiles_while_running(predictor, names, tokens, complete, LEVELS, LIMIT)
    assert np.all(np.diff(quantiles, axis=0) >= 0)
    assert np.all(quantiles[:, complete] == 0)
    assert np.all((quantiles[:, ~complete] >= 1) & (quantiles[:, ~complete] <= LIMIT - tokens[~complete]))


def test_intervals_hold_as_many_lengths_as_they_say():
    *history, now = drawn(prompts=150, steps=5, seed=4)
    predictor = learned(history)
    tokens = np.clip(now.ravel(), 1, LIMIT).astype(int)
    names = [f"p{p}" for p in np.repeat(np.arange(150), 6)]
    for at in (0, 60, 120):
        low, high = quantiles_while_running(predictor, names, np.minimum(tokens, at), tokens <= at, [0.1, 0.9], LIMIT)
        alive = tokens > at
        inside = ((tokens - at >= low) & (tokens - at <= high))[alive].mean()
        assert 0.72 < inside < 0.9, (at, inside)


# --- what it knows, and when -----------------------------------------------------------------------------------------------


def test_before_the_first_token_nobody_knows_more_than_history():
    table = forecast(learned(drawn()), 30, 6)
    seen = table.observe(np.zeros(180, int), np.zeros(180, bool))
    np.testing.assert_allclose(seen.curve[seen.class_of], table.curve[table.class_of], atol=1e-9)


@given(st.integers(0, 1000), st.integers(1, 200))
@settings(max_examples=20, deadline=None)
def test_how_long_responses_get_later_changes_nothing_now(seed, at):
    predictor = learned(drawn())
    rng = np.random.default_rng(seed)
    first = rng.integers(1, LIMIT, 60)
    later = np.where(first > at, rng.integers(at + 1, LIMIT + 1, 60), first)
    one, other = (forecast(predictor, 10, 6).observe(np.minimum(n, at), n <= at) for n in (first, later))
    np.testing.assert_array_equal(one.curve, other.curve)


def test_a_sibling_that_goes_on_is_a_lower_bound():
    """Of one prompt's two responses the other is at 150 tokens: it ended there, goes on from there, or has not begun."""
    history = drawn(shared=0.8, own=0.15)
    table, one = forecast(learned(history), 30, 2), np.array([0])
    tokens, ended = np.zeros(60, int), np.zeros(60, bool)
    tokens[1] = 300
    goes_on = table.observe(tokens, ended).expected_tokens(one, 0)[0]
    ended[1] = True
    finished = table.observe(tokens, ended).expected_tokens(one, 0)[0]
    unknown = table.observe(np.zeros(60, int), np.zeros(60, bool)).expected_tokens(one, 0)[0]
    assert unknown < finished < goes_on
    tokens[1] = 20
    short = table.observe(tokens, ended).expected_tokens(one, 0)[0]
    ended[1] = False
    hardly = table.observe(tokens, ended).expected_tokens(one, 0)[0]
    assert short < unknown <= hardly + 1e-9 < 1.05 * unknown, "20 tokens of a response that goes on say next to nothing"


def test_a_sibling_at_the_limit_counts_as_longer_than_that():
    table, one = forecast(learned(drawn(shared=0.8, own=0.15)), 30, 2), np.array([0])
    tokens, ended = np.zeros(60, int), np.zeros(60, bool)
    tokens[1], ended[1] = LIMIT, True
    cut_off = table.observe(tokens, ended).expected_tokens(one, 0)[0]
    tokens[1] = LIMIT - 1
    assert cut_off > table.observe(tokens, ended).expected_tokens(one, 0)[0]


def test_lengths_of_history_that_were_cut_off_are_lower_bounds():
    lengths = np.minimum(np.concatenate(drawn(prompts=60, steps=1)), 120)
    by_reason = {}
    for reason in ("stop", "length"):
        rows = visits(lengths, 0).assign(finish_reason=np.where(lengths.ravel() >= 120, reason, "stop"))
        by_reason[reason] = forecast(InFlightPredictor().fit(rows), 60, 6)
    everyone, age = np.arange(360), np.full(360, 119)
    free, cut = (by_reason[r].expected_tokens(everyone, age).mean() for r in ("stop", "length"))
    assert cut > 1.15 * free


def test_siblings_make_the_forecast_sharper_where_prompts_change_together():
    *history, now = drawn(prompts=60, shared=0.6, own=0.2, steps=4)
    predictor = learned(history)
    table = forecast(predictor, 60, 6)
    model = table.siblings
    by_itself = replace(
        model, prompt_of=np.arange(360), centre=np.repeat(model.centre, 6), has_history=np.ones(360, dtype=bool)
    )
    alone = replace(table, siblings=by_itself, _all_prompt_tokens=np.full(360, 10.0))
    together, apart = (np.std(errors(t, now, 100)) for t in (table, alone))
    assert together < 0.85 * apart


def test_a_step_whose_lengths_all_differ_from_history_is_noticed():
    """Twice as long as ever before: what goes on at 100 tokens is known to last, by how few have ended."""
    *history, now = drawn(prompts=60, shared=0.05, own=0.3, steps=3)
    table = forecast(learned(history), 60, 6)
    assert abs(errors(table, now, 100).mean()) < 0.2
    table_of_longer = errors(table, np.minimum(2 * now, LIMIT), 100)
    assert abs(table_of_longer.mean()) < 0.3


def test_without_enough_history_scenarios_stand_for_it_and_without_any_the_batch():
    none = InFlightPredictor().forecast(["a", "b", "c"], 2, max_response_tokens=LIMIT)
    assert isinstance(none.remaining, BatchLengths)
    few = learned([lengths[:3] for lengths in drawn()]).forecast(["p0", "p1", "p2"], 2, max_response_tokens=LIMIT)
    workload = few.workload([0, 0, 0], [0, 0, 1, 1, 2, 2], LIMIT)
    np.testing.assert_array_equal(few.remaining.curve, from_scenarios(workload).curve)


def test_prompts_that_were_never_seen_are_less_certain():
    predictor = learned(drawn(shared=0.1, own=0.2))
    names = ["p0"] * 2 + ["new"] * 2
    low, high = quantiles_while_running(predictor, names, 0, False, [0.1, 0.9], LIMIT)
    width = np.log(high / low)
    assert width[2] > 1.3 * width[0]


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("steps", [1, 3])
def test_every_kind_of_history_gives_a_residual_curve_that_falls(samples, steps):
    table = forecast(learned(drawn(samples=samples, steps=steps)), 30, samples)
    residual = table.siblings.scatter.residual
    assert len(residual) == len(RESIDUALS)
    assert np.all(np.diff(residual) <= 1e-12)
    assert residual[0] > 0.99
    assert 0 < residual[len(residual) // 2] < 1


def test_predictors_are_made_by_name():
    assert isinstance(make_predictor("inflight"), InFlightPredictor)


@pytest.mark.parametrize("name", ["oracle", "median", "trend"])
def test_an_unknown_predictor_is_refused_with_the_known_ones(name):
    with refused(PredictionError, repr(name), "last", "inflight"):
        make_predictor(name)


# --- recorded ----------------------------------------------------------------------------------------------------------------

RECORDED = {
    True: (
        [161.5790126932155, 97.10277205121123, 127.0104258429843, 124.0],
        [[219, 157, 85, 79, 152, 117, 108, 100], [65, 79, 121, 121, 197, 197, 181, 82]],
        [[106, 62, 81, 80], [215, 129, 169, 163.2]],
        [[86, 15, 58, 0], [148, 50, 106, 0], [262, 119, 196, 0]],
    ),
    False: (
        [171.38581684839102, 122.90848808965455, 126.65964143208647, 124.0],
        [[259, 152, 101, 73, 129, 195, 102, 73], [233, 138, 157, 157, 99, 99, 138, 194]],
        [[107.8, 75.9, 75.9, 78], [268.1, 183, 181, 189]],
        [[84, 23, 55, 0], [150, 69, 105, 0], [271, 156, 198, 0]],
    ),
}
"""By whether prompts came back: predictions, scenarios, quantiles before a step and while it runs, as of the version in which
prediction and forecast were two classes."""


@pytest.mark.parametrize("came_back", RECORDED)
def test_predictions_are_those_that_were_recorded(came_back):
    rng = np.random.default_rng(11)
    level = rng.normal(4.5, 0.5, 12)[:, None]
    parts = [visits(np.exp(level + 0.15 * step + rng.normal(0, 0.3, (12, 3))).round(), step, 300) for step in range(4)]
    if not came_back:
        parts = [part.assign(prompt_id=part["prompt_id"] + f"-{step}", epoch=0) for step, part in enumerate(parts)]
    predictor = InFlightPredictor().fit(pd.concat(parts))
    asked = ["p0", "p3", "p7", "new"] if came_back else ["p0-0", "p3-1", "p7-3", "new"]
    progress, complete = [0, 40, 10, 5], [False, False, False, True]
    found = (
        predictor.predict(asked, max_response_tokens=300),
        predictor.sample(asked, 2, max_response_tokens=300, scenarios=2, seed=5),
        np.quantile(predictor.sample(asked, max_response_tokens=300, scenarios=400), [0.1, 0.9], axis=0),
        quantiles_while_running(predictor, asked, progress, complete, [0.1, 0.5, 0.9], 300),
    )
    for one, recorded in zip(found, RECORDED[came_back], strict=True):
        np.testing.assert_allclose(one, recorded, rtol=1e-9)
