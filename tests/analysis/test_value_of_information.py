"""Forecasts of rising sharpness, and policies that use them: on average, a sharper forecast is never worse."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from error_messages import refused

from rlhfless.analysis.value_of_information import ValueOfInformation, forecasts_of, value_of_information
from rlhfless.predict import PredictionError
from rlhfless.predict.from_truth import noisy_lengths, prompt_lengths, prompt_means
from rlhfless.scheduling.solver import CONSOLIDATION, RANDOM_SPLIT
from rlhfless.simulate import LoggedStep, SimulationConfig, logged_steps
from rlhfless.trace import validate
from solver import Cluster, LatencyModel, Objective

LATENCY = LatencyModel("x", 2, 5.6e-3, 2e-4, 1e-7, transfer_base_s=5e-3, transfer_per_kv_token_s=1e-6, start_s=0.1)
SETTING = SimulationConfig(Cluster(3, 8, 2), LATENCY, Objective(0.7), max_response_tokens=4000)
DRAWS = 4


@pytest.fixture(scope="module")
def step() -> LoggedStep:
    """32 prompts x 4 samples, seen once before, with lengths that have little to do with those of the last visit."""
    rng = np.random.default_rng(0)
    mean = rng.normal(5.5, 0.4, 32)
    rows = [
        {
            "run": "r", "step": visit, "prompt_id": f"p{p}", "sample": s, "prompt_tokens": 20, "finish_reason": "stop",
            "response_tokens": int(np.clip(np.exp(mean[p] + rng.normal(0, 0.7)), 1, 4000)),
        }
        for visit in range(2) for p in range(32) for s in range(4)
    ]  # fmt: skip
    return next(logged_steps(validate("rollouts", pd.DataFrame(rows)), max_response_tokens=4000, steps=[1]))


@pytest.fixture(scope="module")
def found(step: LoggedStep) -> ValueOfInformation:
    forecasts = forecasts_of(step, sds=(0.4, 0.1, 0.03))
    policies = ("random", "fold", "solver", "solver+replan")
    return value_of_information(step, SETTING, forecasts, policies, DRAWS, np.geomspace(0.1, 4, 8))


def mean_logs(found: ValueOfInformation, policy: str) -> pd.Series:
    own = found.runs[found.runs["policy"] == policy]
    return np.log(own["value"]).groupby(own["forecast"]).mean()


def test_a_sharper_forecast_is_never_worse_on_average(found):
    for policy in ("solver", "solver+replan"):
        values = mean_logs(found, policy)[["sd 0.4", "sd 0.1", "sd 0.03", "truth"]].to_numpy()
        assert np.all(np.diff(values) < 0.01), (policy, values)
        assert values[-1] < values[0] - 0.03, (policy, values)


def test_re_planning_is_never_worse_than_its_own_static_plan_beyond_noise(found):
    logs = found.runs.assign(log=np.log(found.runs["value"])).pivot_table(
        index=["forecast", "draw"], columns="policy", values="log"
    )
    more = logs["solver+replan"] - logs["solver"]
    assert more.mean() < 0.002, more
    assert (more.groupby("forecast").mean() < 0.03).all(), more  # four draws of one step: noise


def test_every_value_is_above_the_bound_and_the_notes_say_which_plan_runs(found):
    assert (found.runs["value"] >= found.bound).all()
    values = found.runs.pivot_table(index=["forecast", "draw"], columns="policy", values="value")
    notes = found.runs[found.runs["policy"] == "solver"].set_index(["forecast", "draw"])["note"]
    assert (notes == CONSOLIDATION).any()
    random = values[notes.reindex(values.index) == RANDOM_SPLIT]
    np.testing.assert_array_equal(random["solver"], random["random"])


def test_no_policy_of_the_solver_is_worse_than_folding_beyond_noise(found):
    logs = found.runs.assign(log=np.log(found.runs["value"])).pivot_table(
        index=["forecast", "draw"], columns="policy", values="log"
    )
    for policy in ("solver", "solver+replan"):
        assert (logs[policy] - logs["fold"]).groupby("forecast").mean().max() < 0.01


def test_limits_fall_with_the_sharpness(found):
    limits = found.limits.set_index("forecast")["value"][["sd 0.4", "sd 0.1", "truth"]]
    assert limits.is_monotonic_decreasing


def test_forecasts_know_what_they_say(step):
    truth = step.truth
    sharp = noisy_lengths(truth, 0.05, seed=3)
    error = np.log(sharp.response_tokens / truth.response_tokens)
    assert error.std() == pytest.approx(0.05, rel=0.2)
    assert np.log(sharp.scenarios / sharp.response_tokens).std() == pytest.approx(0.05, rel=0.2)
    means = prompt_means(truth)
    assert np.ptp(means.scenarios, axis=0).max() == 0
    of_prompt = prompt_lengths(truth, scenarios=40)
    for prompt in (0, 7):
        own = truth.prompt_of == prompt
        assert set(of_prompt.scenarios[:, own].ravel()) == set(truth.response_tokens[own])
        assert means.response_tokens[own][0] == pytest.approx(truth.response_tokens[own].mean(), abs=0.51)


@pytest.mark.parametrize("wrong", [{"sd": -0.1}, {"sd": 0.1, "scenarios": 0}, {"sd": 0.1, "seed": -1}])
def test_impossible_forecasts_are_refused(step, wrong):
    with refused(PredictionError):
        noisy_lengths(step.truth, **wrong)
