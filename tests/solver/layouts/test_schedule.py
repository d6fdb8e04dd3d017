"""Times of following steps against a simulation of single GPUs, and bounds on the period of any order."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dataflow_samples import followed, random_plans, sample
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.layouts import Call, CallMemory, Layout, remax
from solver.layouts.bound import best_within, never_together, period_bound_s
from solver.layouts.costs import CallOptions
from solver.layouts.times import periods_s, step_times


@pytest.mark.parametrize("order", ["longest path", "fifo"])
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000))
def test_times_are_those_of_a_simulation_of_single_gpus(order: str, seed: int) -> None:
    options = sample(seed)
    plans = random_plans(options, 4, np.random.default_rng(seed))
    times = step_times(options, plans, order, steps=4)  # type: ignore[arg-type]
    for at, plan in enumerate(plans):
        ends = followed(options, plan, order, 4)
        for (step, task), end_s in ends.items():
            assert times.end_s[at, task, step] == pytest.approx(end_s, abs=1e-9)


class Halves:
    """Each generation of ReMax on half of the GPUs, everything else on all; all weights are where they are needed."""

    def seconds(self, call: Call, layout: Layout) -> float:
        first = {"sample": (0, 1), "greedy": (1, 1)}.get(call.name, (0, 2))
        return float(len(call.name)) if (layout.mesh.first, layout.mesh.gpus) == first else math.inf

    def memory(self, call: Call, layout: Layout) -> CallMemory:
        return CallMemory(0.0, 0.0)

    def reallocate(self, role: str, source: Layout, destination: Layout) -> tuple[float, float]:
        return 0.0, 0.0


@pytest.mark.parametrize("order", ["longest path", "fifo"])
def test_a_reallocation_of_nothing_waits_for_no_gpus(order: str) -> None:
    """The training had all GPUs, so the weights of one generation are not kept waiting by the other one."""
    options = CallOptions.of(remax(), 2, 2, Halves())
    names = ("sample", "reward_sample", "reward_greedy", "reference", "train_actor")
    assert periods_s(options, np.zeros((1, 6), np.int64), order) == pytest.approx(sum(map(len, names)))  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["longest path", "fifo"])
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.3, 2.0]))
def test_many_steps_have_the_period_of_few_or_these_are_not_periodic(order: str, seed: int, link: float) -> None:
    options = sample(seed, link=link)
    plans = random_plans(options, 20, np.random.default_rng(seed))
    few, many = (step_times(options, plans, order, steps=steps) for steps in (8, 32))  # type: ignore[arg-type]
    assert many.periodic.all()
    assert few.period_s[few.periodic] == pytest.approx(many.period_s[few.periodic], abs=1e-9)
    assert periods_s(options, plans, order) == pytest.approx(many.period_s, abs=1e-9)  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000))
def test_no_order_has_a_shorter_period_than_the_bound(seed: int) -> None:
    options, rng = sample(seed), np.random.default_rng(seed)
    plans = random_plans(options, 3, rng)
    bounds = period_bound_s(options, plans)
    assert (periods_s(options, plans) >= bounds - 1e-9).all()
    assert (periods_s(options, plans, "fifo") >= bounds - 1e-9).all()
    for plan, bound_s in zip(plans, bounds, strict=True):
        assert max(followed(options, plan, "random", 6, rng).values()) >= 6 * bound_s - 1e-9


@pytest.mark.nightly
def test_ten_thousand_random_orders_are_not_below_the_bound() -> None:
    for seed in range(500):
        options, rng = sample(seed, link=(0.0, 0.3, 2.0)[seed % 3]), np.random.default_rng(seed)
        plans = random_plans(options, 20, rng)
        for plan, bound_s in zip(plans, period_bound_s(options, plans), strict=True):
            assert max(followed(options, plan, "random", 4, rng).values()) >= 4 * bound_s - 1e-9


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000))
def test_tasks_that_the_graph_keeps_apart_never_run_together(seed: int) -> None:
    options, rng = sample(seed), np.random.default_rng(seed)
    (plan,) = random_plans(options, 1, rng)
    ends = followed(options, plan, "random", 4, rng)
    seconds = options.durations(plan[None])[0]
    apart = never_together(options)
    for (s, i), end_i in ends.items():
        for (t, j), end_j in ends.items():
            if apart[i, j] and (s, i) != (t, j):
                assert end_i <= end_j - seconds[j] + 1e-9 or end_j <= end_i - seconds[i] + 1e-9


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 7))
def test_the_heaviest_chain_is_that_of_all_sets(seed: int, tasks: int) -> None:
    rng = np.random.default_rng(seed)
    seconds = rng.random((3, tasks))
    apart = rng.random((3, tasks, tasks)) < 0.6
    apart |= apart.transpose(0, 2, 1)
    found = best_within(seconds, (apart * (1 << np.arange(tasks))).sum(axis=2))
    for at in range(3):
        chains = {}
        for mask in range(1 << tasks):
            members = [t for t in range(tasks) if mask >> t & 1]
            if all(apart[at, i, j] for i in members for j in members if i < j):
                chains[mask] = float(seconds[at, members].sum())
        for within in range(1 << tasks):
            assert found[at, within] == pytest.approx(max(s for mask, s in chains.items() if mask & within == mask))
