"""Changes of orders: within capacities, in time, the same compiled and in plain Python, and never later than before."""

from __future__ import annotations

import pytest
from pipeline_samples import peak_memory, random_problem, start_times

from rlhfless.paper.fused_pipelines import rlhfuse_instances
from solver.pipeline import PipelineProblem, fused, schedule_pipeline
from solver.pipeline.bounds import latency_bound
from solver.pipeline.kernels import PLAIN, Kernels, compiled_kernels, is_compiled, kernels_for
from solver.pipeline.listing import ListScheduler, Orders, evaluate_orders, limits, longest_tail_first, peaks
from solver.pipeline.memory import squeezed
from solver.pipeline.problem import Operations
from solver.pipeline.search import OrderSearch, Work, earlier

SMALL = fused((4, 2, 8), (2, 1, 4), activations=(2, 1))


def by_tails(ops: Operations) -> Orders:
    """Orders by "longest tail first" backwards in time, which take much memory."""
    scheduler = ListScheduler(ops, backward=True)
    assert scheduler.schedule(longest_tail_first(scheduler.ops)) is not None
    return scheduler.orders()


def simulated(problem: PipelineProblem, ops: Operations, orders: Orders) -> tuple[float, float]:
    """Latency and peak memory of an evaluator that shares no code with the solver's."""
    named = [tuple(ops.types[i] for i in order) for order in orders]
    spans = start_times(problem, named)
    assert spans is not None
    return max(end for _, end in spans.values()), peak_memory(problem, named)


def annealed(ops: Operations, orders: Orders, capacity: float, kernels: Kernels = PLAIN) -> tuple[float, Orders, float]:
    """Energy and orders of a short search, and the work that it counted."""
    work = Work(0.001 if kernels.compiled else 0.05)  # 50,000 operations timed
    search = OrderSearch(ops, limits(ops, capacity), latency_bound(ops), kernels)
    energy, found = search.search(orders, work, work.most_s, 3)
    return energy, found, work.spent_s


@pytest.mark.parametrize("seed", range(4))
def test_changed_orders_stay_within_the_capacity_and_are_as_late_as_said(seed: int) -> None:
    problem = random_problem(seed, split=seed % 2 == 1)
    ops = Operations.of(problem)
    orders = by_tails(ops)
    capacity = max(peaks(ops, orders))
    energy, found, _ = annealed(ops, orders, capacity)
    latency, memory = simulated(problem, ops, found)
    assert memory <= capacity + 1e-6
    late = latency - latency_bound(ops) * ops.unit
    assert late <= energy * ops.unit
    assert (energy == 0) == (late == 0)


def test_memory_falls_where_orders_are_squeezed_and_changed() -> None:
    ops = Operations.of(SMALL)
    orders = by_tails(ops)
    most = max(peaks(ops, orders))
    tight = squeezed(ops, orders, limits(ops, 0.6 * most))
    assert tight is not None
    before, memory = simulated(SMALL, ops, tight)
    assert memory <= 0.6 * most
    energy, found, _ = annealed(ops, tight, 0.6 * most)
    after, memory = simulated(SMALL, ops, found)
    assert memory <= 0.6 * most
    assert after < before
    assert energy < before - latency_bound(ops)


def test_squeezing_changes_nothing_where_all_fits_and_gives_up_where_nothing_does() -> None:
    for seed in range(4):
        ops = Operations.of(random_problem(seed))
        orders = by_tails(ops)
        assert squeezed(ops, orders, peaks(ops, orders)) == orders
        assert squeezed(ops, orders, [0.5 * max(ops.taken)] * len(orders)) is None


def test_an_earlier_schedule_than_that_of_the_rule_is_found_within_its_memory() -> None:
    problem = rlhfuse_instances()[2].problem(split_backward=True)
    ops = Operations.of(problem.with_memory(30))
    scheduler = ListScheduler(ops)
    before = scheduler.schedule(longest_tail_first(ops))
    assert before is not None
    found = earlier(ops, scheduler.orders(), latency_bound(ops), Work(0.3), seed=0)
    latency, memory = simulated(problem, ops, found)
    assert latency < before * ops.unit
    assert memory <= 30


def test_limits_of_single_devices_hold_while_the_peak_is_lowered() -> None:
    free = schedule_pipeline(SMALL, objective="latency_then_memory", time_limit_s=0.2)
    uneven = [4.0, 16.0, 16.0, 16.0]
    plan = schedule_pipeline(SMALL, memory=uneven, objective="memory_within", deadline=2 * free.latency, time_limit_s=0.2)
    ops = plan.operations
    number = {op: i for i, op in enumerate(ops.types)}
    held = peaks(ops, [[number[op] for op in order] for order in plan.orders])
    assert all(most <= limit for most, limit in zip(held, uneven, strict=True))


def test_the_same_seed_gives_the_same_orders_and_counts_the_same_work() -> None:
    ops = Operations.of(random_problem(5))
    orders = by_tails(ops)
    assert annealed(ops, orders, 1e9) == annealed(ops, orders, 1e9)


def test_short_searches_run_in_plain_python() -> None:
    assert kernels_for(0.1) is PLAIN
    assert not is_compiled(0.1)


@pytest.mark.full
def test_compiled_changes_are_the_same() -> None:
    pytest.importorskip("numba")
    kernels = compiled_kernels()
    assert kernels.compiled
    for split in (False, True):
        ops = Operations.of(random_problem(3, split=split))
        orders = by_tails(ops)
        capacity = max(peaks(ops, orders))
        plain, fast = annealed(ops, orders, capacity), annealed(ops, orders, capacity, kernels)
        assert plain[:2] == fast[:2]
        assert evaluate_orders(ops, fast[1]).peak_memory <= capacity + 1e-6
