"""Bounds on latency and memory of pipelines: against all schedules of tiny problems, and the published values."""

from __future__ import annotations

import pytest
from pipeline_samples import least, random_problem, tiny_problem

from rlhfless.paper.fused_pipelines import rlhfuse_instances
from solver.pipeline import Chain, PipelineProblem, schedule_pipeline
from solver.pipeline.bounds import latency_bound, memory_bound, next_sum
from solver.pipeline.problem import Operations

PUBLISHED = (708, 372, 225, 702, 366, 225, 618, 330, 186, 606, 318, 186)
SPLIT = (684, 348, 180, 682, 346, 178, 590, 302, 158, 586)
MEMORY = (11.7, 13.65, 15.6, 10.95, 13.65, 15.6, 17.12, 16.0, 26.24, 17.0, 16.4, 26.24)


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_no_schedule_of_two_hundred_tiny_problems_is_below_the_bounds(first: int) -> None:
    for seed in range(first, first + 50):
        _compare_with_all_schedules(tiny_problem(seed, most=5, split=seed % 4 == 3))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(12))
def test_no_schedule_of_eight_operations_per_device_is_below_the_bounds(seed: int) -> None:
    _compare_with_all_schedules(tiny_problem(100 + seed, most=8, split=seed % 4 == 3))


def _compare_with_all_schedules(problem: PipelineProblem) -> None:
    ops = Operations.of(problem)
    front = least(problem)
    assert latency_bound(ops) * ops.unit <= front[0][0]
    for latency, memory in front:
        assert memory_bound(ops, round(latency / ops.unit)) <= memory * (1 + 1e-9)
    plan = schedule_pipeline(problem, time_limit_s=0.05)
    assert plan.latency >= front[0][0]
    assert plan.latency == front[0][0]


def test_the_bounds_of_the_published_instances() -> None:
    for number, instance in enumerate(rlhfuse_instances()):
        ops = Operations.of(instance.problem())
        assert latency_bound(ops) == PUBLISHED[number]
        assert memory_bound(ops, PUBLISHED[number]) == pytest.approx(MEMORY[number])
        if number < len(SPLIT):
            halves = Operations.of(instance.problem(split_backward=True))
            assert latency_bound(halves) * halves.unit == SPLIT[number] < PUBLISHED[number]


def test_one_chain_of_equal_stages_is_bounded_by_the_formula() -> None:
    ops = Operations.of(PipelineProblem([Chain("actor", range(4), 8, 1, 2, activation=1.5)]))
    assert latency_bound(ops) == (8 + 4 - 1) * (1 + 2)
    assert memory_bound(ops, latency_bound(ops)) == 4 * 1.5  # what 1F1B holds on the first stage


def test_no_memory_is_needed_without_activations() -> None:
    ops = Operations.of(PipelineProblem([Chain("actor", range(4), 8, 1, 2)]))
    assert memory_bound(ops, latency_bound(ops)) == 0


def test_more_time_needs_no_more_memory() -> None:
    for seed in range(6):
        ops = Operations.of(random_problem(seed))
        bound = latency_bound(ops)
        found = [memory_bound(ops, latency) for latency in range(bound, 2 * bound, 3)]
        assert found == sorted(found, reverse=True)


def test_a_memory_bound_is_a_sum_of_activations() -> None:
    ops = Operations.of(PipelineProblem([Chain("a", [0], 9, 1, 2, 1.95), Chain("b", [0], 9, 1, 2, 1.0)]))
    types = ops.on_device[0]
    assert [next_sum(ops, types, least) for least in (0.0, 0.5, 1.0, 1.5, 1.96, 2.5)] == [0.0, 1.0, 1.0, 1.95, 2.0, 2.95]
