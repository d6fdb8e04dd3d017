"""The bound curve of a front: no plan of a small workload lies below it, whatever the scenarios."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_brute_force import EveryMixedPlan, mixed_instances
from solver_strategies import LIMIT, l40s, lognormal_workload

import solver
from solver.bounds.plans import PlanBound, mean_curve


@pytest.mark.parametrize("refill", [False, True])
@given(st.data())
@settings(max_examples=20, deadline=None)
def test_no_plan_lies_below_the_curve(refill, data):
    instance = data.draw(mixed_instances(refill=refill))
    rng, work = np.random.default_rng(data.draw(st.integers(0, 1000))), instance.workload
    lengths = rng.integers(0, LIMIT + 1, (data.draw(st.integers(1, 3)), len(work)))
    work = solver.Workload(work.prompt_tokens, work.prompt_of, lengths[0], work.generated_tokens, LIMIT, scenarios=lengths)
    models = {(offer.kind, offer.gpus): offer.latency for offer in instance.offers}
    plans = np.mean([EveryMixedPlan(instance._replace(workload=case)).plans for case in work.cases()], axis=0)
    problem = solver.PlanningProblem(work, instance.cluster, models, admission=instance.admission)
    bound = PlanBound(problem)
    grid, curve = bound.front(10)
    for time_s, cost in plans[:, :2] if len(plans) else ():
        assert time_s >= grid[0] * (1 - 1e-9) - 1e-12 or curve[0] == np.inf
        at = int(np.searchsorted(grid, time_s * (1 - 1e-9)))
        assert at == len(curve) or curve[at] <= cost * (1 + 1e-9)
        assert bound.gpu_seconds(time_s * (1 + 1e-9)) <= cost * (1 + 1e-9)


def test_the_curve_over_scenarios_is_tight_where_they_agree():
    """Equal scenarios have the curve of the single lengths, made convex (it is not where one actor less is enough)."""
    work, cluster, latency = lognormal_workload(512, 4), solver.Cluster(4, 8, 2), l40s(start_s=0.0)
    same = solver.Workload(work.prompt_tokens, work.prompt_of, np.stack([work.response_tokens] * 3), max_response_tokens=2048)
    one, three = (PlanBound(solver.PlanningProblem(w, cluster, latency)).front(30, 60.0) for w in (work, same))
    again = np.interp(one[0], *three)
    at = one[0] > 1.2 * one[0][0]
    assert np.all(again[at] >= 0.85 * one[1][at])


def test_a_curve_of_two_scenarios_by_hand():
    """Both cost 10 - 2 T for T from 1 to 3 and 2 to 4: together at least 10 - 2 T, and 4 from where both cost least."""
    times = np.array([np.linspace(1, 3, 201), np.linspace(2, 4, 201)])
    cost = np.array([10 - 2 * times[0], 12 - 2 * times[1]])
    begins = np.concatenate([times[:, :1], times[:, :-1]], axis=1)
    bound = mean_curve(begins, cost, np.array([1.4, 1.5, 2.0, 3.0, 3.5, 5.0]))
    assert bound[0] == np.inf
    np.testing.assert_allclose(bound[1:], [8.0, 7.0, 5.0, 4.0, 4.0], atol=0.03)
    assert np.all(bound[1:] <= np.array([8.0, 7.0, 5.0, 4.0, 4.0]) + 1e-9)
    assert np.all(mean_curve(begins, np.where(times > 9, cost, np.inf), np.array([2.0])) == np.inf)
