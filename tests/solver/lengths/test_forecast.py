"""A forecast that makes no sense is refused in one sentence; one that does becomes the workload that was predicted."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from hypothesis import given
from hypothesis import strategies as st

import solver
from rlhfless.predict import EwmaPredictor
from rlhfless.scheduling import POLICIES, PlanningOptions, make_policy
from rlhfless.scheduling.replan import SolverReplan
from solver.lengths.forecast import LengthForecast
from solver.lengths.remaining import KnownLengths
from solver.lengths.survival import from_samples, known_lengths

FORECAST = LengthForecast([5.0, 9.5, 3.0])
PROBLEM = solver.PlanningProblem(
    solver.Workload([1], [0, 0], [5, 9]), solver.Cluster(1, 4, 1), solver.LatencyModel("x", 1, 1e-3, 1e-4)
)

KNOWN = known_lengths(PROBLEM.workload)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: LengthForecast([5.0, math.nan]), ("expected[1]", "nan")),
        (lambda: LengthForecast([5.0, -2.0]), ("expected[1]", "-2.0")),
        (lambda: LengthForecast([5.0, math.inf]), ("expected[1]", "inf")),
        (lambda: LengthForecast("long"), ("expected",)),
        (lambda: LengthForecast(7.0), ("expected", "()")),
        (lambda: LengthForecast([[5.0, 2.0]]), ("expected", "(1, 2)")),
        (lambda: LengthForecast([5.0, 2.0], [[5.0, 2.0], [1.0, math.nan]]), ("scenarios[1, 1]", "nan")),
        (lambda: LengthForecast([5.0, 2.0], [[5.0], [1.0]]), ("scenarios", "(2, 1)", "2 responses")),
        (lambda: LengthForecast([5.0, 2.0], np.zeros((0, 2))), ("scenarios", "(0, 2)")),
        (lambda: LengthForecast([5.0], remaining=3), ("remaining", "3")),
        (lambda: LengthForecast([5.0], remaining=KNOWN), ("remaining", "2 responses", "1")),
        (
            lambda: LengthForecast([5.0] * 3, remaining=from_samples([[4.0, 8.0]], PROBLEM.workload)),
            ("2 responses",),
        ),
        (lambda: KnownLengths([5.0, math.nan], [1.0, 1.0], 9), ("known lengths[1]", "nan")),
        (lambda: KnownLengths([-5.0], [1.0], 9), ("known lengths[0]", "-5.0")),
        (lambda: FORECAST.workload([1, 2], [0, 1], 20), ("3 lengths", "2 responses")),
        (lambda: PlanningOptions(forecast=[5.0, 9.0]), ("forecast", "[5.0, 9.0]")),
        (lambda: PlanningOptions(seed=-1), ("seed", "-1")),
        (lambda: LengthForecast([5.0], error_sd=-0.1), ("error_sd", "-0.1")),
        (lambda: LengthForecast([5.0], error_sd=math.nan), ("error_sd", "nan")),
    ],
)
def test_what_makes_no_sense_is_refused(make, named):
    with refused(solver.PlanningError, *named):
        make()


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_refuses_a_forecast_of_other_responses(name):
    options = PlanningOptions(forecast=FORECAST)
    with pytest.raises(solver.PlanningError, match=r"^the forecast has 3 lengths, but there are 2 responses"):
        make_policy(name).plan(PROBLEM, options)


def test_re_planning_refuses_remaining_lengths_of_other_responses():
    others = SolverReplan(forecast=lambda _: KnownLengths(np.ones(3), np.ones(3), 9))
    with refused(solver.PlanningError, "remaining", "3 responses", "2"):
        others.plan(PROBLEM, PlanningOptions())


@given(st.lists(st.floats(0, 60), min_size=1, max_size=6), st.integers(1, 3))
def test_its_workload_has_its_lengths(lengths, count):
    scenarios = np.tile(np.array(lengths), (count, 1))
    workload = LengthForecast(lengths, scenarios).workload([4], [0] * len(lengths), 40)
    expected = np.minimum(np.ceil(lengths), 40)
    assert workload.response_tokens.tolist() == expected.tolist()
    assert workload.scenarios.tolist() == [expected.tolist()] * count


def test_a_predictors_forecast_is_what_it_predicts_and_samples():
    history = pd.DataFrame({"prompt_id": list("aabb"), "epoch": 0, "response_tokens": [10, 30, 7, 9]})
    predictor = EwmaPredictor().fit(history)
    forecast = predictor.forecast(["b", "a"], 2, max_response_tokens=100, prompt_tokens=[3, 4], scenarios=5, seed=1)
    assert forecast.expected.tolist() == predictor.predict(["b", "a"], 2, max_response_tokens=100).tolist() == [8, 8, 20, 20]
    drawn = predictor.sample(["b", "a"], 2, max_response_tokens=100, scenarios=5, seed=1)
    np.testing.assert_array_equal(forecast.scenarios, drawn)
    assert forecast.remaining is None
    assert len(predictor.forecast([], max_response_tokens=100)) == 0
