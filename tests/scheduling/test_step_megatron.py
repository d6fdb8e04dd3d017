"""Megatron's rule for a step: its layouts, its period, and what does not fit."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rlhfless.errors import InputError
from rlhfless.scheduling.published import PUBLISHED_PLANS, LayoutProblem, megatron_plan, published_plans
from solver import Cluster
from solver.layouts import CallMemory, Layout, dpo, grpo, plan_step, ppo, remax
from solver.model.errors import PlanningError


class Even:
    """Seconds by the number of GPUs; a limit on pipeline stages; bytes of a training shared by all its GPUs."""

    def __init__(self, most_stages: int = 64) -> None:
        self.most_stages = most_stages

    def seconds(self, call: Any, layout: Layout) -> float:
        return math.inf if layout.strategy.pp > self.most_stages else 64.0 / layout.mesh.gpus

    def memory(self, call: Any, layout: Layout) -> CallMemory:
        return CallMemory(64.0 / layout.mesh.gpus if call.kind == "train" else 0.0, 1.0, 5.0)

    def reallocate(self, role: str, source: Layout, destination: Layout) -> tuple[float, float]:
        return (0.0, 0.0) if source == destination else (1.0, 1.0)


@pytest.mark.parametrize(
    ("nodes", "per_node", "strategy"),
    [(1, 1, "1x1x1"), (1, 4, "1x4x1"), (1, 8, "1x8x1"), (2, 4, "1x4x2"), (2, 8, "1x8x2"), (4, 8, "1x8x4"), (16, 8, "1x8x16")],
)
def test_every_call_has_all_gpus_tensor_parallel_in_nodes_and_stages_across(nodes: int, per_node: int, strategy: str) -> None:
    plan = megatron_plan(LayoutProblem.of(grpo(), Cluster(nodes, per_node, 1), Even()))
    assert {str(call.layout.strategy) for call in plan.calls} == {strategy}
    assert {(call.layout.mesh.first, call.layout.mesh.gpus) for call in plan.calls} == {(0, nodes * per_node)}
    assert plan.status == "given"


@pytest.mark.parametrize("order", ["fifo", "longest path"])
@pytest.mark.parametrize("graph", [ppo(), grpo(), remax(), dpo()])
def test_calls_run_one_after_another_and_no_weights_are_sent(graph: Any, order: Any) -> None:
    plan = megatron_plan(LayoutProblem.of(graph, Cluster(2, 8, 1), Even(), order=order))
    assert plan.period_s == pytest.approx(len(graph.calls) * 4.0)
    assert not any(call.reallocate_s for call in plan.calls)
    assert plan.order == order


def test_a_call_that_cannot_have_so_many_stages_has_more_copies() -> None:
    plan = megatron_plan(LayoutProblem.of(dpo(), Cluster(4, 8, 1), Even(most_stages=2)))
    assert {str(call.layout.strategy) for call in plan.calls} == {"2x8x2"}


def test_a_plan_beyond_the_memory_is_infeasible() -> None:
    assert megatron_plan(LayoutProblem.of(grpo(), Cluster(1, 8, 1), Even(), memory_bytes=14.0)).status == "given"
    assert megatron_plan(LayoutProblem.of(grpo(), Cluster(1, 8, 1), Even(), memory_bytes=13.9)).status == "infeasible"


def test_the_bound_of_all_plans_stands_beside_it() -> None:
    cluster = Cluster(1, 2, 1)
    best = plan_step(dpo(), cluster, Even())
    plan = megatron_plan(LayoutProblem.of(dpo(), cluster, Even(), lower_bound_s=best.lower_bound_s))
    assert plan.lower_bound_s == best.lower_bound_s <= plan.period_s
    assert "no bound" in repr(megatron_plan(LayoutProblem.of(dpo(), cluster, Even())))


@pytest.mark.parametrize("name", list(PUBLISHED_PLANS))
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"order": "random"}, "order is 'random'; 'longest path' or 'fifo' is needed"),
        ({"order": None}, "order is None"),
        ({"order": ["fifo"]}, "order is ['fifo']"),
        ({"lower_bound_s": math.nan}, "lower_bound_s is nan; a number of 0 or more is needed"),
        ({"lower_bound_s": -1.0}, "lower_bound_s is -1.0"),
        ({"lower_bound_s": "1"}, "lower_bound_s is '1'"),
    ],
)
def test_orders_and_bounds_that_are_none_are_refused_by_every_way(name: str, wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanningError) as found:
        PUBLISHED_PLANS[name](LayoutProblem.of(dpo(), Cluster(1, 2, 1), Even(), **wrong))
    assert sentence in str(found.value)


@pytest.mark.parametrize("names", [None, "real", 3, {"real": 1}, ["ours"], [["real"]], [None]])
def test_names_of_ways_are_a_list_of_those_that_exist(names: Any) -> None:
    with pytest.raises(InputError) as found:
        published_plans(names, dpo(), Cluster(1, 2, 1), Even())
    assert "megatron" in str(found.value)
    assert "\n" not in str(found.value)


def test_what_is_no_problem_is_refused() -> None:
    with pytest.raises(PlanningError, match="graph is 'ppo'; a Graph"):
        LayoutProblem.of("ppo", Cluster(1, 2, 1), Even())  # type: ignore[arg-type]
    with pytest.raises(PlanningError, match="problem is 3; a LayoutProblem"):
        megatron_plan(3)  # type: ignore[arg-type]
