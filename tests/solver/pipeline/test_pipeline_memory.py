"""Peak memory at a latency: proven by CP-SAT where one chain decides, under a hard capacity elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest
from pipeline_samples import least, peak_memory, random_problem, start_times, tiny_problem

from rlhfless.paper.fused_pipelines import rlhfuse_instances
from solver.pipeline import PipelinePlan, fused, schedule_pipeline, serial
from solver.pipeline.bounds import latency_bound
from solver.pipeline.kernels import PLAIN, compiled_kernels
from solver.pipeline.listing import ListScheduler
from solver.pipeline.problem import Operations
from solver.pipeline.search import RuleSearch, Work, first_rules, orders_within

INSTANCES = rlhfuse_instances()


@pytest.fixture(autouse=True)
def plain_python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without numba, whose compilation takes seconds, but where a test is about it."""
    compiled_kernels.cache_clear()
    if "compiled" not in request.node.name:
        monkeypatch.setitem(sys.modules, "numba", None)
    yield
    compiled_kernels.cache_clear()


def check(plan: PipelinePlan) -> None:
    spans = start_times(plan.problem, plan.orders)
    assert spans is not None
    assert plan.latency == max(end for _, end in spans.values())
    assert plan.memory_bound * (1 - 1e-9) <= plan.peak_memory == pytest.approx(peak_memory(plan.problem, plan.orders))


@pytest.mark.parametrize("number", [2, 5])
def test_latency_and_memory_are_proven_where_the_actor_decides(number: int) -> None:
    _is_proven(number)


@pytest.mark.full
@pytest.mark.parametrize("number", [8, 11])
def test_latency_and_memory_are_proven_on_sixteen_devices(number: int) -> None:
    _is_proven(number)


def _is_proven(number: int) -> None:
    plan = schedule_pipeline(INSTANCES[number].problem(), objective="latency_then_memory")
    check(plan)
    assert plan.status == "optimal"
    assert (plan.latency, plan.peak_memory) == (plan.latency_bound, plan.memory_bound)
    assert plan.search.memory_s > 0
    assert round(plan.peak_memory, 1) == INSTANCES[number].paper_memory


def test_memory_falls_at_the_same_latency_elsewhere() -> None:
    problem = INSTANCES[7].problem()
    fastest = schedule_pipeline(problem)
    lower = schedule_pipeline(problem, objective="latency_then_memory", time_limit_s=0.6)
    check(lower)
    assert lower.latency == fastest.latency
    assert lower.peak_memory < 0.8 * fastest.peak_memory
    assert lower.status in ("feasible", "stopped")
    assert 0.0 < lower.search.memory_share <= 1.1


def test_no_schedule_of_a_tiny_problem_needs_less_than_what_is_called_optimal() -> None:
    for seed in range(6):
        problem = tiny_problem(seed, most=6)
        latency, memory = least(problem)[0]
        plan = schedule_pipeline(problem, objective="latency_then_memory", time_limit_s=0.05)
        assert plan.latency == latency
        assert plan.peak_memory >= memory * (1 - 1e-9)
        if plan.status == "optimal":
            assert plan.peak_memory == pytest.approx(memory)


def test_a_later_deadline_needs_less_memory() -> None:
    problem = fused((4, 2, 8), (4, 1, 8), activations=(2, 1))
    bound = schedule_pipeline(problem).latency_bound
    tight, loose = (
        schedule_pipeline(problem, objective="memory_within", deadline=deadline, time_limit_s=0.2)
        for deadline in (bound, 2 * bound)
    )
    assert tight.latency == bound
    assert loose.latency <= 2 * bound
    assert loose.peak_memory < tight.peak_memory
    check(loose)


def test_the_same_seed_and_limit_give_the_same_schedule() -> None:
    problem = random_problem(5)
    first, again = (schedule_pipeline(problem, objective="latency_then_memory", time_limit_s=0.1, seed=2) for _ in range(2))
    assert first == again


def test_split_backward_lowers_memory_too() -> None:
    problem = fused((4, 2, 8), (2, 1, 4), activations=(2, 1), split_backward=True)
    plan = schedule_pipeline(problem, objective="latency_then_memory", time_limit_s=0.3)
    check(plan)
    assert plan.peak_memory < schedule_pipeline(problem, time_limit_s=0.3).peak_memory


def test_rules_never_exceed_the_capacity() -> None:
    for seed in range(4):
        ops = Operations.of(random_problem(seed))
        capacity = 2.0 * max(ops.taken)
        search = RuleSearch(ops, False, capacity, latency_bound(ops), PLAIN)
        found = search.search(Work(1.0), np.random.default_rng(0), passes=40)
        if found is not None:
            problem = random_problem(seed)
            orders = tuple(tuple(ops.types[i] for i in order) for order in found[1])
            assert peak_memory(problem, orders) <= capacity + 1e-6


def test_without_numba_the_search_runs_in_plain_python() -> None:
    assert compiled_kernels() is PLAIN
    plan = schedule_pipeline(random_problem(5), objective="latency_then_memory", time_limit_s=0.1)
    assert not plan.search.compiled
    assert "plain Python" in plan._repr_html_()


@pytest.mark.full
def test_compiled_passes_are_the_same() -> None:
    pytest.importorskip("numba")
    compiled = compiled_kernels()
    assert compiled.compiled
    for split in (False, True):
        ops = Operations.of(random_problem(3, split=split))
        for rule in first_rules(ops.reversed):
            plain, fast = ListScheduler(ops, backward=True), ListScheduler(ops, backward=True, kernels=compiled)
            assert plain.schedule(rule) == fast.schedule(rule)
            assert plain.orders() == fast.orders()
            assert plain.device_ends() == fast.device_ends()


def test_orders_that_are_late_by_little_end_the_search_by_rules() -> None:
    ops = Operations.of(random_problem(1))
    capacity, latency = 2.0 * max(ops.taken), latency_bound(ops) // 2  # which no schedule keeps
    work, shorter = Work(1.0), Work(1.0)
    both = orders_within(ops, capacity, latency, work, 0, 20, PLAIN)
    backwards = orders_within(ops, capacity, latency, shorter, 0, 20, PLAIN, near=10.0 * latency)
    assert both is not None
    assert backwards is not None
    assert 0 < both[0] <= backwards[0]
    assert shorter.spent_s < work.spent_s


def test_one_chain_at_its_bound_is_one_forward_one_backward() -> None:
    problem = fused((4, 1, 8), (1, 1, 1), activations=(1, 0))
    alone = serial(type(problem)([problem.chains[0]]))
    assert alone.peak_memory == alone.memory_bound
