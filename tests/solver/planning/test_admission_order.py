"""Admission orders and groups of prompts in slots: nothing is lost, each actor keeps its fastest order, actors end together."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_strategies import l40s, lognormal_workload, plan_generation

import solver
from solver.planning.admission_order import admission_orders, fastest_orders
from solver.planning.single_kind.items import SortedWork
from solver.planning.single_kind.prompt_groups import PromptGroups
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes, Split


@st.composite
def splits(draw: st.DrawFn):
    """A few prompts in random groups and order, on actors of few slots."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    workload = lognormal_workload(int(rng.integers(2, 12)), int(rng.integers(1, 6)), seed=int(rng.integers(100)), mean_log=3.0)
    owner = rng.integers(0, int(rng.integers(1, 4)), len(workload))
    groups = [rng.permutation(np.flatnonzero(owner == k)) for k in np.unique(owner)]
    latency = l40s(max_batch=int(rng.integers(1, 8)), prefill_base_s=float(rng.choice([0.0, 5e-3, 0.1])))
    return workload, latency, Split(np.concatenate(groups), np.cumsum([0, *map(len, groups)])), bool(rng.integers(2))


@given(splits())
@settings(max_examples=40, deadline=None)
def test_every_group_keeps_its_responses_and_gets_the_fastest_order(case):
    workload, latency, split, shared = case
    rule = admission_of(latency)

    def timed(any_split: Split) -> np.ndarray:
        return GroupTimes.of(workload, latency, rule, any_split.order, shared).busy_s(any_split.edges)

    orders = list(admission_orders(split, workload, latency.max_batch, shared))
    chosen, busy_s = fastest_orders(split, iter(orders), timed)
    for other in [split, *orders, chosen]:
        assert [sorted(group) for group in other.groups()] == [sorted(group) for group in split.groups()]
        assert (busy_s <= timed(other) * (1 + 1e-9)).all()
    assert busy_s == pytest.approx(timed(chosen))
    assert all((np.diff(workload.remaining_tokens[group]) <= 0).all() for group in orders[0].groups())


@given(splits())
@settings(max_examples=20, deadline=None)
def test_short_prompts_of_the_first_wave_come_first(case):
    workload, latency, split, shared = case
    slots = latency.max_batch
    waves = list(admission_orders(split, workload, slots, shared))[1].groups()
    short_first = list(admission_orders(split, workload, slots, shared, short_prompts_first=True))[1].groups()
    for group, other in zip(waves, short_first, strict=True):
        assert sorted(group[:slots]) == sorted(other[:slots])
        assert group[slots:].tolist() == other[slots:].tolist()
        assert (np.diff(workload.context_tokens[other[:slots]]) >= 0).all()


def test_shared_prompts_in_front_save_the_calls_of_all_that_join_later():
    workload, latency = lognormal_workload(8, 16), l40s(max_batch=8, prefill_base_s=1.0)
    split = Split(np.arange(len(workload)), np.array([0, len(workload)]))
    orders = admission_orders(split, workload, 8, True)
    chosen, busy_s = fastest_orders(
        split, orders, lambda s: GroupTimes.of(workload, latency, admission_of(latency), s.order, True).busy_s(s.edges)
    )
    assert len(set(workload.prompt_of[chosen.order[:8]].tolist())) == 8
    without = GroupTimes.of(workload, l40s(max_batch=8), admission_of(latency), chosen.order, True).busy_s(chosen.edges)
    assert busy_s - without == pytest.approx(1.0)


@pytest.mark.parametrize("call_s", [0.0, 5e-3])
def test_groups_of_prompts_end_together_once_their_times_are_known(call_s):
    workload, latency = lognormal_workload(512, 8), l40s(max_batch=32, prefill_base_s=call_s)
    work = SortedWork.of(workload, latency, admission_of(latency), max_actors=16, keep_together=True)
    groups, spread = PromptGroups(work), []
    for _ in range(4):
        edges = groups.best_edges(lambda busy_s: float(busy_s.max()))
        order = np.concatenate([work.responses(np.arange(a, b)) for a, b in itertools.pairwise(edges.tolist())])
        busy_s = GroupTimes.of(workload, latency, admission_of(latency), order).busy_s(work.edge[edges])[0]
        groups.learn(edges, busy_s)
        spread.append(busy_s.max() / busy_s.mean())
    assert len(edges) == 17
    assert spread[-1] < min(1.05, spread[0])
    least_s = float(work.slot_load[-1]) / 16
    assert busy_s.max() < 1.15 * least_s


def test_a_plan_of_prompts_in_slots_is_near_its_bound():
    """What listing prompts one after another loses: every refill ends in a long tail."""
    workload, cluster = lognormal_workload(256, 8), solver.Cluster(8, 2, 2)
    problem = solver.PlanningProblem(workload, cluster, l40s(max_batch=32), keep_together=True)
    plan = plan_generation(problem, time_limit_s=0.15)
    assert plan.gap < 0.05
