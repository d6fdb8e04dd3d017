"""Scenarios from quantiles: the marginals are the quantiles, the coupling is the stated one."""

from __future__ import annotations

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_strategies import plan_generation

import solver
from solver.lengths.scenarios import scenarios_from_quantiles

LEVELS = [0.0, 0.1, 0.5, 0.9, 1.0]
TOKENS = np.array([[10, 20, 50, 90, 100]] * 6)
OWNER = [0, 0, 0, 1, 1, 1]


@given(st.floats(0, 0.5), st.floats(0, 0.5), st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_every_marginal_is_the_quantile_function(step_share, prompt_share, seed):
    sampled = scenarios_from_quantiles(
        LEVELS, TOKENS, OWNER, scenarios=4000, step_share=step_share, prompt_share=prompt_share, seed=seed
    )
    assert sampled.shape == (4000, 6)
    for level, tokens in zip(LEVELS[1:-1], (20, 50, 90), strict=True):
        assert np.quantile(sampled, level, axis=0) == pytest.approx(tokens, abs=5)


def test_the_factors_couple_what_they_say():
    def correlations(**shares):
        sampled = scenarios_from_quantiles(LEVELS, TOKENS, OWNER, scenarios=4000, **shares)
        table = np.corrcoef(sampled.T)
        return table[0, 1], table[0, 3]

    within, across = correlations()
    assert abs(within) < 0.06
    assert abs(across) < 0.06
    within, across = correlations(prompt_share=0.8)
    assert 0.7 < within < 0.9
    assert abs(across) < 0.06
    within, across = correlations(step_share=1.0)
    assert within == pytest.approx(1.0)
    assert across == pytest.approx(1.0)


def test_they_make_a_workload_that_is_planned_over_them():
    sampled = scenarios_from_quantiles(LEVELS, TOKENS, OWNER, scenarios=5, seed=1)
    workload = solver.Workload([3, 4], OWNER, sampled)
    plan = plan_generation(solver.PlanningProblem(workload, solver.Cluster(1, 4, 1), solver.LatencyModel("x", 1, 1e-3, 1e-4)))
    assert plan.makespan_s == pytest.approx(
        float(
            solver.evaluate(
                plan, solver.PlanningProblem(workload, solver.Cluster(1, 4, 1), solver.LatencyModel("x", 1, 1e-3, 1e-4))
            ).makespan_s
        )
    )
    assert plan.lower_bound <= plan.value


def test_one_level_is_a_point():
    assert np.all(scenarios_from_quantiles([0.5], [[7], [9]], [0, 1], scenarios=3) == [7, 9])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"levels": [0.5, 0.5]}, ()),
        ({"quantile_tokens": [[1, 2, 3]]}, ()),
        ({"quantile_tokens": TOKENS[:, ::-1]}, ("quantile_tokens",)),
        ({"scenarios": 0}, ()),
        ({"step_share": 0.7, "prompt_share": 0.7}, ()),
    ],
)
def test_nonsense_is_refused(change, says):
    given_ = {"levels": LEVELS, "quantile_tokens": TOKENS, "prompt_of": OWNER, **change}
    with refused(solver.PlanningError, *says):
        scenarios_from_quantiles(**given_)
