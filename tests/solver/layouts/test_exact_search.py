"""Cuts of the exact search against all plans of small clusters: bounds are never too high, and nothing needed is lost."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from dataflow_samples import ALGORITHMS, FewLayouts, all_plans, freeing
from hypothesis import given, settings
from hypothesis import strategies as st

from solver import Cluster
from solver.layouts import plan_step
from solver.layouts.bound import PlanSpace, RoleSeconds, gpu_s_bound, period_bound_s
from solver.layouts.branching import not_dominated, steps
from solver.layouts.costs import CallOptions
from solver.layouts.times import periods_s


def small(seed: int, link: float, most: float, cluster: tuple[int, int]) -> tuple[CallOptions, Any]:
    nodes, per_node = cluster
    graph = ALGORITHMS[seed % 4]()
    wanted = most * (1 if len(graph.calls) > 4 else 2) * (1 if nodes * per_node <= 4 else 0.1)
    costs = FewLayouts(seed, link, wanted, per_node)
    return CallOptions.of(graph, nodes * per_node, per_node, costs), costs


def limit(options: CallOptions, plans: np.ndarray, share: float) -> float:
    """Bytes in which this share of the plans fits."""
    return math.inf if share == 1 else float(np.quantile(options.peak_bytes(plans).max(axis=1), share))


def extended(choices: list[Any], rows: np.ndarray, bounds: np.ndarray, target_s: float) -> tuple[np.ndarray, np.ndarray]:
    for choice in choices:
        found, _ = choice.extend(rows, bounds, target_s)
        rows, bounds = found.rows(rows, choice.call), found.bound_s
    return rows, bounds


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 100_000), st.sampled_from([0.0, 0.3, 2.0]), st.sampled_from([1.0, 0.6, 0.2]),
    st.sampled_from([(1, 4), (2, 2)]), st.sampled_from([0.3, 0.7, 1.01]),
)  # fmt: skip
def test_every_plan_below_the_target_has_a_partial_plan_and_a_plan_that_is_as_good(
    seed: int, link: float, share: float, cluster: tuple[int, int], at: float
) -> None:
    options, _ = small(seed, link, 2, cluster)
    plans = all_plans(options)
    memory = limit(options, plans, share)
    plans = plans[options.peak_bytes(plans).max(axis=1) <= memory]
    bound_s = period_bound_s(options, plans)
    target_s = float(bound_s.min() + at * (bound_s.max() - bound_s.min()))
    plans, bound_s = plans[bound_s < target_s], bound_s[bound_s < target_s]
    space = PlanSpace(options, memory)
    calls = range(space.calls)
    choices = steps(space)
    rows, bounds = extended(choices[: space.calls], np.full((1, space.calls), -1), np.zeros(1), target_s)
    known = dict(zip(map(tuple, rows.tolist()), bounds, strict=True))
    on_meshes = np.stack([space.fastest_of[call][plans[:, call]] for call in calls], axis=1)
    for row, of_plan_s in zip(map(tuple, on_meshes.tolist()), bound_s, strict=True):
        assert known[row] <= of_plan_s + 1e-9
    rows, bounds = extended(choices[space.calls :], rows, bounds, target_s)
    assert (
        bounds == pytest.approx(period_bound_s(options, rows), rel=1e-9, abs=1e-9)
        or (bounds <= period_bound_s(options, rows) + 1e-9).all()
    )
    assert (options.peak_bytes(rows).max(axis=1, initial=0) <= memory).all()
    kept_meshes = np.stack([space.fastest_of[call][rows[:, call]] for call in calls], axis=1)
    best: dict[tuple[int, ...], float] = {}
    for row, left_s in zip(map(tuple, kept_meshes.tolist()), bounds, strict=True):
        best[row] = min(left_s, best.get(row, math.inf))
    for row, of_plan_s in zip(map(tuple, on_meshes.tolist()), bound_s, strict=True):
        assert best[row] <= of_plan_s + 1e-9


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 100_000), st.sampled_from([0.1, 2.0]), st.floats(0, 3))
def test_what_two_meshes_take_at_least_is_the_least_of_all_strategies(seed: int, link: float, rest_s: float) -> None:
    options, costs = small(4 * seed + 1, link, 8, (2, 2))  # GRPO: the actor generates and trains
    space = PlanSpace(options, math.inf)
    train, call = 3, 0
    target_s = 1.5 * float(space.least_s[[train, call]].sum()) + rest_s
    sent = RoleSeconds(options, call, (space.by_mesh[train], space.by_mesh[call]), rest_s)
    for one, other in itertools.product(space.fastest[train].tolist(), space.fastest[call].tolist()):
        all_s = [
            options.seconds[train][t] + options.seconds[call][c]
            + costs.reallocate("actor", options.layouts[train][t], options.layouts[call][c])[0]
            for t in space.by_mesh[train][one] for c in space.by_mesh[call][other]
        ]  # fmt: skip
        fastest_s = options.seconds[train][one] + options.seconds[call][other]
        (more_s,) = sent.more_s(np.array([one]), np.array([other]), target_s)
        if min(all_s) + rest_s < target_s:
            assert more_s + fastest_s == pytest.approx(min(all_s))
        else:
            assert target_s - 1e-9 <= more_s + fastest_s + rest_s
            assert more_s + fastest_s <= max(min(all_s), fastest_s) + 1e-9


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 100_000), st.sampled_from([0.0, 0.3, 2.0]), st.sampled_from([1.0, 0.6]), st.booleans(),
    st.sampled_from([0.5, 1.01]),
)  # fmt: skip
def test_partial_plans_cost_no_more_than_the_plans_that_they_become(
    seed: int, link: float, share: float, early: bool, at: float
) -> None:
    """With generation that releases GPUs early, too: its bounds are those of any generation plan."""
    options, _ = small(seed, link, 2, (1, 4))
    if early:
        options = freeing(options, np.random.default_rng(seed))
    plans = all_plans(options)
    memory = limit(options, plans, share)
    plans = plans[options.peak_bytes(plans).max(axis=1) <= memory]
    gpu_s, period_s = gpu_s_bound(options, plans), period_bound_s(options, plans)
    assert (gpu_s <= options.gpu_s(plans) + 1e-9).all()
    assert early or gpu_s == pytest.approx(options.gpu_s(plans))
    target_s = float(at * period_s.max())
    plans, gpu_s = plans[period_s < target_s], gpu_s[period_s < target_s]
    space = PlanSpace(options.bounding, memory)
    assert not len(plans) or space.gpu_seconds.of_any <= gpu_s.min() + 1e-9
    for depth in range(2 * space.calls + 1):
        placed, exact = space.chosen(depth)
        rows = np.full_like(plans, -1)
        for call in placed:
            rows[:, call] = plans[:, call] if call in exact else space.fastest_of[call][plans[:, call]]
        assert (space.gpu_seconds.of(rows, depth, target_s) <= gpu_s + 1e-9).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=20))
def test_an_option_is_left_out_if_a_faster_one_is_sent_to_as_fast(drawn: list[tuple[int, int, int]]) -> None:
    drawn = sorted(drawn, key=lambda one: one[:2])
    kept = not_dominated(np.array([p for p, _, _ in drawn]), np.array([float(s) for _, _, s in drawn]))
    for at, (parent, _, sent_s) in enumerate(drawn):
        before = [s for p, _, s in drawn[:at] if p == parent]
        assert kept[at] == (not before or sent_s < min(before))


def test_calls_may_run_first_come_first_served_where_that_is_shorter() -> None:
    """Here all plans are longer in the order of the longest remaining path."""
    options, costs = small(28, 0.05, 2, (1, 4))
    plans = all_plans(options)
    plan = plan_step(options.graph, Cluster(1, 4, 1), costs, gap=0.0)
    assert (plan.order, plan.status) == ("fifo", "optimal")
    assert plan.period_s < periods_s(options, plans).min() - 1e-9
    assert plan.period_s == pytest.approx(float(periods_s(options, plans, "fifo").min()))


@pytest.mark.parametrize("count", [pytest.param(40, marks=pytest.mark.full), pytest.param(200, marks=pytest.mark.nightly)])
def test_random_tables_against_all_plans(count: int) -> None:
    """The bound is never above the optimum of both orders, and the plan is within the gap of it, whatever its status.

    Reallocation and memory bind in a third of the tables.
    """
    sent = few_bytes = not_proven = 0
    for seed in range(count):
        cluster = ((1, 4), (2, 2), (1, 8), (2, 4))[seed // 4 % 4]
        options, costs = small(seed, (0.3, 2.0, 0.05)[seed % 3], 2, cluster)
        plans = all_plans(options)
        period_s = periods_s(options, plans)
        memory = limit(options, plans, (0.5, 0.15, 1.0)[seed % 3])
        fits = options.peak_bytes(plans).max(axis=1) <= memory
        best_s = float(period_s[fits].min())
        few_bytes += best_s > period_s.min() + 1e-9
        free = CallOptions.of(options.graph, options.gpus, options.gpus_per_node, FewLayouts(seed, 0.0, costs.most, cluster[1]))
        sent += best_s > float(periods_s(free, plans[fits]).min()) + 1e-9
        gap = (0.0, 0.01)[seed % 2]
        plan = plan_step(options.graph, Cluster(*cluster, 1), costs, memory_bytes=memory, gap=gap)
        best_s = min(best_s, float(periods_s(options, plans[fits], "fifo").min()))
        assert plan.lower_bound_s <= best_s + 1e-9
        assert plan.period_s * (1 - gap) <= best_s + 1e-9
        not_proven += plan.status != "optimal"
        assert max(plan.peak_bytes) <= memory
    assert min(sent, few_bytes) >= count / 3, (sent, few_bytes)
    assert not_proven <= 0.1 * count, not_proven  # 11 of 200
