"""A handful of responses on several offers: no deadline is refused that some plan meets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_brute_force import EveryMixedPlan, MixedInstance, mixed_instances
from solver_strategies import mixed_problem

import solver

TIME_LIMIT_S = 0.15
instances = st.booleans().flatmap(lambda refill: mixed_instances(refill=refill))


def meet_the_shortest_makespan(instance: MixedInstance, together: bool) -> None:
    """Plan under the least makespan of all plans as deadline; a refusal fails the test."""
    shortest_s = min(makespan_s for makespan_s, _, _ in EveryMixedPlan(instance, together).plans)
    if not shortest_s:
        return
    problem = mixed_problem(
        instance.workload, instance.offers, instance.cluster, admission=instance.admission, keep_together=together,
        objective=solver.Objective(deadline_s=shortest_s * (1 + 1e-6)),
    )  # fmt: skip
    plan = solver.plan_generation(problem, time_limit_s=TIME_LIMIT_S, deterministic=True)
    assert plan.makespan_s == pytest.approx(shortest_s, rel=2e-6)
    assert plan.lower_bound <= plan.value


@given(instances, st.booleans())
@settings(max_examples=12, deadline=None, derandomize=True)
def test_a_few_shortest_makespans_are_met(instance, together):
    meet_the_shortest_makespan(instance, together)


@pytest.mark.full
@given(instances, st.booleans())
@settings(max_examples=100, deadline=None)
def test_100_shortest_makespans_are_met(instance, together):
    meet_the_shortest_makespan(instance, together)
