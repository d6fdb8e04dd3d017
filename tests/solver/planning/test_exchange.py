"""Few actors with slots: exchanges lose nothing, only improve a plan, and count their work instead of reading a clock."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_strategies import l40s, lognormal_workload, plan_generation

import solver
from solver.planning.exchange import Exchange, dealt_in_turn
from solver.planning.single_kind.items import SortedWork
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes


@given(st.integers(0, 1 << 20), st.booleans(), st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_exchanges_keep_all_responses_prompts_and_actors_and_never_make_a_plan_worse(seed, together, least):
    rng = np.random.default_rng(seed)
    workload = lognormal_workload(int(rng.integers(3, 9)), int(rng.integers(1, 5)), seed=seed % 97, mean_log=3.0)
    latency = l40s(max_batch=int(rng.integers(1, 5)), prefill_base_s=5e-3)
    work = SortedWork.of(
        workload, latency, admission_of(latency), max_actors=3, min_actors=least, keep_together=together
    )  # fmt: skip
    times = GroupTimes.of(workload, latency, admission_of(latency), work.order)
    groups, slots = [work.responses(items) for items in dealt_in_turn(len(work), 3)], [latency.max_batch] * 3
    item_of = workload.prompt_of if together else np.arange(len(workload))

    def run(most_work: float) -> Exchange:
        exchange = Exchange(
            groups, slots, item_of, lambda _, group: times.group_s(group), lambda _, busy_s: (float(busy_s.sum()),), least
        )
        exchange.run(most_work, math.inf)
        return exchange

    before, after = run(0), run(2e4)
    assert after.busy_s.sum() <= before.busy_s.sum()
    assert after.busy_s == pytest.approx([times.group_s(group) for group in after.groups])
    assert sorted(np.concatenate(after.groups).tolist()) == list(range(len(workload)))
    assert least <= len(after.groups) <= 3
    owners = [set(workload.prompt_of[group].tolist()) for group in after.groups]
    assert not together or sum(map(len, owners)) == len(set().union(*owners))
    assert all(map(np.array_equal, run(2e4).groups, after.groups))


def test_items_dealt_in_turn_give_every_actor_the_same_mix():
    dealt = dealt_in_turn(64, 3)
    assert [group[:4].tolist() for group in dealt] == [[0, 5, 6, 11], [1, 4, 7, 10], [2, 3, 8, 9]]
    assert sorted(np.concatenate(dealt).tolist()) == list(range(64))


@pytest.mark.parametrize(("actors", "gap"), [(2, 0.03), (3, 0.04), (4, 0.05)])
def test_plans_of_few_actors_with_slots_are_near_their_bound(actors, gap):
    """Contiguous groups alone leave 5 to 9 %."""
    latency = replace(l40s(), max_batch=16, start_s=0.0)
    problem = solver.PlanningProblem(lognormal_workload(64, 4), solver.Cluster(actors, 2, 2), latency)
    plan = plan_generation(problem, time_limit_s=0.15)
    assert len(plan.actors) == actors
    assert plan.gap < gap
