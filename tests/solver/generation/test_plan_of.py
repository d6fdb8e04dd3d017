"""``solver.plan_of``: an own assignment becomes a plan like every other, or is refused in a sentence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given
from hypothesis import strategies as st
from solver_strategies import instances, lognormal_workload

import solver

LATENCY = solver.LatencyModel("x", 1, 5e-3, 2e-5, 2e-8, prefill_base_s=5e-3, prefill_per_token_s=3e-5, start_s=1.0, max_batch=4)
LARGE = replace(LATENCY, name="y", gpus_per_actor=2, base_s=3e-3, kv_capacity_tokens=100_000)
WORK = lognormal_workload(3, 4)  # 12 responses of 3 prompts
ONE = solver.PlanningProblem(WORK, solver.Cluster(1, 4, 1), LATENCY)
POOLS = solver.MixedCluster([solver.GpuPool("gpu", 1, 4), solver.GpuPool("gpu", 1, 2, market="preemptible", prewarmed=1)])
SEVERAL = solver.PlanningProblem(WORK, POOLS, {("gpu", 1): LATENCY, ("gpu", 2): LARGE})
HALVES = [list(range(6)), list(range(6, 12))]


def test_the_groups_become_actors_in_their_order_with_exact_times() -> None:
    plan = solver.plan_of([[11, 0, 5], np.array([10, 9, 8, 7, 6]), (1, 2, 3, 4)], ONE, policy="mine")
    assert [actor.responses for actor in plan.actors] == [(11, 0, 5), (10, 9, 8, 7, 6), (1, 2, 3, 4)]
    assert [actor.gpu_ids for actor in plan.actors] == [(0,), (1,), (2,)]
    exact = solver.evaluate(plan, ONE)
    assert (plan.makespan_s, plan.gpu_seconds) == (exact.makespan_s, exact.gpu_seconds)
    assert plan.policy == "mine"
    assert plan.value is None
    assert plan.lower_bound is None


@given(instance=instances(refill=True), data=st.data())
def test_the_groups_of_any_plan_give_that_plan(instance, data) -> None:
    problem = solver.PlanningProblem(*instance[:3], admission=instance.admission)
    split = solver.random_split(problem, seed=data.draw(st.integers(0, 9)))
    again = solver.plan_of([actor.responses for actor in split.actors], problem, policy=split.policy)
    assert again == split


def test_scenarios_and_options_of_the_problem_count() -> None:
    scenarios = np.stack([WORK.response_tokens, WORK.response_tokens * 2])
    work = replace(WORK, scenarios=scenarios)
    problem = replace(ONE, workload=work, release="generation", share_prefill=True)
    plan = solver.plan_of(HALVES, problem)
    assert {actor.release for actor in plan.actors} == {"generation"}
    assert all(actor.shares_prompts for actor in plan.actors)
    assert plan.makespan_s == solver.evaluate(plan, problem).makespans_s.mean() > solver.plan_of(HALVES, ONE).makespan_s


@pytest.mark.parametrize(
    ("groups", "named"),
    [
        ([HALVES[0], HALVES[1][1:]], ("response 6", "0 times")),
        ([HALVES[0], [5, *HALVES[1]]], ("response 5", "2 times")),
        ([HALVES[0], [*HALVES[1], 12]], ("response 12", "0 to 11")),
        ([HALVES[0], [*HALVES[1][1:], -6]], ("response -6",)),
        ([[*HALVES[0], *HALVES[1]], []], ("group 1", "[]")),
        ([HALVES[0], [6.0, 7, 8, 9, 10, 11]], ("group 1", "index")),
        ([HALVES[0], [[6, 7], [8]]], ("group 1", "index")),
        ([HALVES[0], "6"], ("group 1", "'6'")),
        ([0, 1], ("group 0", "index")),
        ([], ("groups", "[]")),
        (None, ("groups", "None")),
        ([[i] for i in range(12)], ("12 actors", "4")),
    ],
)
def test_what_is_no_assignment_is_refused(groups, named) -> None:
    with refused(solver.PlanningError, *named):
        solver.plan_of(groups, ONE)


def test_the_options_of_the_problem_are_kept() -> None:
    with refused(solver.PlanningError, "2 groups", "max_actors is 1"):
        solver.plan_of(HALVES, replace(ONE, max_actors=1))
    with refused(solver.PlanningError, "2 groups", "min_actors is 3"):
        solver.plan_of(HALVES, replace(ONE, min_actors=3))
    together = replace(ONE, keep_together=True)
    with refused(solver.PlanningError, "prompt 1", "groups 0 and 1", "keep_together=False"):
        solver.plan_of(HALVES, together)
    assert len(solver.plan_of([[0, 1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11]], together).actors) == 2


def test_only_a_name_and_a_problem_are_taken() -> None:
    with refused(solver.PlanningError, "policy", "7"):
        solver.plan_of(HALVES, ONE, policy=7)
    with refused(solver.PlanningError, "problem", "PlanningProblem"):
        solver.plan_of(HALVES, WORK)


def test_groups_are_on_any_offers() -> None:
    offers = [(o.gpus, o.market) for o in SEVERAL.offers]
    assert offers == [(1, "on-demand"), (2, "on-demand"), (1, "preemptible"), (2, "preemptible")]
    plan = solver.plan_of([(1, HALVES[0]), (2, HALVES[1])], SEVERAL)
    assert [(len(a.gpu_ids), a.market, a.prewarmed) for a in plan.actors] == [(2, "on-demand", False), (1, "preemptible", True)]
    assert [a.responses for a in plan.actors] == [tuple(half) for half in HALVES]
    assert plan.gpu_seconds == solver.evaluate(plan, SEVERAL).gpu_seconds


@pytest.mark.parametrize(
    ("groups", "named"),
    [
        (HALVES, ("group 0", "(offer, responses)", "3: 2 x gpu (preemptible)")),
        ([(1, HALVES[0]), HALVES[1]], ("group 1", "(offer, responses)")),
        ([[3, 4], [5, 6]], ("group 0", "[3, 4]", "(offer, responses)")),
        ([(1, HALVES[0]), (4, HALVES[1])], ("group 1", "offer 4", "0: 1 x gpu (on-demand)")),
        ([("gpu", HALVES[0]), (0, HALVES[1])], ("group 0", "'gpu'")),
        ([(1, HALVES[0]), (1, HALVES[1][:3]), (0, HALVES[1][3:])], ("gpu",)),
    ],
)
def test_offers_that_are_unknown_or_full_are_refused(groups, named) -> None:
    with refused(solver.PlanningError, *named):
        solver.plan_of(groups, SEVERAL)


def test_a_response_that_its_actor_cannot_hold_is_refused() -> None:
    small = replace(LATENCY, kv_capacity_tokens=int(WORK.reserved_tokens.max()) - 1)
    problem = replace(SEVERAL, latency={("gpu", 1): small, ("gpu", 2): LARGE})
    with refused(solver.PlanningError, "group 1", "KV tokens", "'x'"):
        solver.plan_of([(1, HALVES[0]), (0, HALVES[1])], problem)
    assert solver.plan_of([(1, HALVES[0]), (3, HALVES[1])], problem).gpu_seconds > 0
