"""Co-located sets: partitions, placements, and the best strategies of a set against all of them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.scheduling.published import LayoutProblem, colocated_plan, partitions, placements
from solver import Cluster
from solver.layouts import CallMemory, Layout, dpo, grpo, missing_share, plan_step, ppo
from solver.layouts.costs import CallOptions
from solver.layouts.times import periods_s


class Costs:
    """Random seconds and bytes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def _random(self, *key: Any) -> float:
        return float(np.random.default_rng([self.seed, *(sum(repr(key).encode()) + 7 * i for i in range(2))]).random())

    def seconds(self, call: Any, layout: Layout) -> float:
        return (1 + self._random(call.name, layout.strategy)) * 4 / layout.mesh.gpus**0.8

    def memory(self, call: Any, layout: Layout) -> CallMemory:
        share = 1 / (layout.strategy.tp * layout.strategy.pp)
        return CallMemory(6 * share if call.kind == "train" else 0.0, share, 2 * share)

    def reallocate(self, role: str, source: Layout, destination: Layout) -> tuple[float, float]:
        near, far = missing_share(source, destination, 8)
        return float((near + far).max()), float((near + far).sum())


@pytest.mark.parametrize(("items", "count"), [(1, 1), (2, 2), (3, 5), (4, 15), (5, 52)])
def test_partitions_are_counted_by_bell_numbers(items: int, count: int) -> None:
    found = {frozenset(map(frozenset, one)) for one in partitions(tuple("abcde"[:items]))}
    assert len(found) == count == len(list(partitions(tuple("abcde"[:items]))))
    assert all(sorted(itertools.chain(*one)) == list("abcde"[:items]) for one in found)


@pytest.mark.parametrize(("gpus", "per_node"), [(4, 4), (8, 8), (16, 8), (24, 8)])
def test_sets_have_gpus_of_their_own(gpus: int, per_node: int) -> None:
    found = list(placements(CallOptions.of(ppo(), gpus, per_node, Costs(0))))
    for placed in found:
        assert sorted(itertools.chain(*placed)) == ["actor", "critic", "reference", "reward"]
        assert not any(one.overlaps(other) for one, other in itertools.combinations(placed.values(), 2))
    sizes = {tuple(sorted((roles, mesh.gpus) for roles, mesh in placed.items())) for placed in found}
    assert len(sizes) == len(found)
    if gpus == 4:  # two sets of roles on 2 + 2, 2 + 1, 1 + 2 and 1 + 1 GPUs
        assert len([one for one in found if len(one) == 2]) == 7 * 4


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([math.inf, 16.0, 9.0]), st.sampled_from(["fifo", "longest path"]))
def test_calls_of_a_set_have_the_strategies_that_take_least_together(seed: int, memory: float, order: Any) -> None:
    graph, costs = grpo() if seed % 2 else dpo(), Costs(seed)
    options = CallOptions.of(graph, 2, 2, costs)
    best_s = math.inf
    for placed in placements(options):
        mesh = {role: mesh for roles, mesh in placed.items() for role in roles}
        every = np.array(
            list(itertools.product(*(
                [at for at, layout in enumerate(of_call) if layout.mesh == mesh[call.role]]
                for call, of_call in zip(graph.calls, options.layouts, strict=True)
            )))
        )  # fmt: skip
        every = every[options.peak_bytes(every).max(axis=1) <= memory]
        if len(every):
            together_s = options.durations(every).sum(axis=1)
            least = every[together_s <= together_s.min() + 1e-12]
            best_s = min(best_s, float(periods_s(options, least, order).min()))
    plan = colocated_plan(LayoutProblem.of(graph, Cluster(1, 2, 1), costs, memory_bytes=memory, order=order))
    assert (plan.status == "given") == (best_s < math.inf)
    if best_s < math.inf:
        assert plan.period_s == pytest.approx(best_s)
        assert max(plan.peak_bytes) <= memory


def test_our_plan_and_bound_are_not_above_it() -> None:
    costs, cluster = Costs(3), Cluster(2, 8, 1)
    ours = plan_step(ppo(), cluster, costs)
    theirs = colocated_plan(LayoutProblem.of(ppo(), cluster, costs, order="longest path", lower_bound_s=ours.lower_bound_s))
    assert ours.period_s <= theirs.period_s / 0.99
    assert theirs.lower_bound_s == ours.lower_bound_s
    assert theirs.order == "longest path"
