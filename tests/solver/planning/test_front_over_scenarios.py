"""The front over scenarios of lengths: no plan of a small workload lies below its curve, nor beyond its epsilon."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_brute_force import EveryMixedPlan, mixed_instances
from solver_reference import EveryPlan
from solver_strategies import LIMIT, instances, l40s, lognormal_workload, pareto_front

import solver
from solver.planning.bound_curve import mean_curve
from solver.timing.evaluate import admission_of


@st.composite
def sampled(draw: st.DrawFn, work: solver.Workload) -> solver.Workload:
    """The same responses with two or three scenarios of lengths, alike or not."""
    count = draw(st.integers(2, 3))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    spread = draw(st.sampled_from([0.1, 0.5, 1.0]))
    lengths = work.response_tokens * (1 - spread) + rng.integers(0, LIMIT + 1, (count, len(work))) * spread
    return solver.Workload(
        work.prompt_tokens, work.prompt_of, np.ceil(lengths), work.generated_tokens, LIMIT, scenarios=np.ceil(lengths)
    )


def means(per_case: list[list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Mean time and cost of every plan from those in each scenario."""
    return [(float(time_s), float(cost)) for time_s, cost in np.mean(np.array(per_case), axis=0)]


def check(front: solver.Front, plans: list[tuple[float, float]]) -> None:
    """Every (mean makespan, mean cost) lies on or above the curve and within epsilon of a plan of the front.

    The curve's grid is geometric: where nothing is to be generated it begins at 1e-12 s.
    """
    for time_s, cost in plans:
        assert time_s >= front.bound_makespan_s[0] * (1 - 1e-9) - 1e-12 or front.bound_cost[0] == np.inf
        at = int(np.searchsorted(front.bound_makespan_s, time_s * (1 - 1e-9)))
        assert at == len(front.bound_cost) or front.bound_cost[at] <= cost * (1 + 1e-9)
        beaten = (1 + front.epsilon) * (1 + 1e-9)
        assert any(p.makespan_s <= beaten * time_s + 1e-9 and front.cost_of(p) <= beaten * cost + 1e-9 for p in front.plans)


@pytest.mark.parametrize("refill", [False, True])
@given(st.data())
@settings(max_examples=25, deadline=None)
def test_no_plan_lies_below_the_curve_or_beyond_epsilon(refill, data):
    instance = data.draw(instances(refill=refill))
    work = data.draw(sampled(instance.workload))
    rule = admission_of(instance.latency, None, instance.admission)
    per_case = [EveryPlan(case, instance.cluster, instance.latency, rule).plans for case in work.cases()]
    plans = [
        (float(np.mean([p[1] for p in same])), float(np.mean([p[2] for p in same]))) for same in zip(*per_case, strict=True)
    ]
    front = pareto_front(
        solver.PlanningProblem(work, instance.cluster, instance.latency, admission=instance.admission), points=10
    )
    check(front, plans)


def test_the_curve_over_scenarios_is_tight_where_they_agree():
    """Equal scenarios have the curve of the single lengths, made convex (it is not where one actor less is enough)."""
    work = lognormal_workload(64, 4)
    same = solver.Workload(work.prompt_tokens, work.prompt_of, np.stack([work.response_tokens] * 3))
    cluster, latency = solver.Cluster(2, 8, 2), l40s()
    one, three = (pareto_front(solver.PlanningProblem(w, cluster, latency), points=60) for w in (work, same))
    np.testing.assert_allclose(one.bound_makespan_s, three.bound_makespan_s)
    assert np.all(three.bound_cost <= one.bound_cost * (1 + 1e-9))
    at = one.bound_makespan_s > 1.2 * one.bound_makespan_s[0]
    assert np.all(three.bound_cost[at] >= 0.85 * one.bound_cost[at])
    assert three.epsilon < 0.1


def test_different_scenarios_have_a_front_above_its_curve_that_is_not_far_away():
    rng = np.random.default_rng(0)
    work = lognormal_workload(64, 4)
    lengths = np.clip(work.response_tokens * rng.lognormal(0, 0.3, (8, len(work))), 1, 2048)
    front = pareto_front(
        solver.PlanningProblem(solver.Workload(work.prompt_tokens, work.prompt_of, lengths), solver.Cluster(2, 8, 2), l40s()),
        points=30,
    )
    check(front, [(p.makespan_s, p.gpu_seconds) for p in front.plans])
    assert 0.0 < front.epsilon < 0.5


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_on_several_kinds_no_plan_lies_below_the_curve_or_beyond_epsilon(data):
    instance = data.draw(mixed_instances(refill=False))
    work = data.draw(sampled(instance.workload))
    models = {(offer.kind, offer.gpus): offer.latency for offer in instance.offers}
    per_case = [EveryMixedPlan(instance._replace(workload=case)).plans for case in work.cases()]
    plans = [
        (float(np.mean([p[0] for p in same])), float(np.mean([p[1] for p in same]))) for same in zip(*per_case, strict=True)
    ]
    front = pareto_front(
        solver.PlanningProblem(work, instance.cluster, models, admission=instance.admission), points=8, time_limit_s=0.3
    )
    check(front, plans)


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
