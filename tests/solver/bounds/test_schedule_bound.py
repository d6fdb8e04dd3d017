"""The bound beside every result: nothing that can be executed lies below it, and it says when nothing can be executed."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from every_schedule import Hand, schedules
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from solver_strategies import latencies, lognormal_workload

import solver
from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import run_step
from rlhfless.latency import list_profiles, load_profile
from rlhfless.scheduling import POLICIES, PlanningOptions, make_policy
from solver.bounds import schedules as schedule_bounds
from solver.bounds.schedules import ResponseGroups, ScheduleBound, affine_minorants
from solver.generation.random_split import random_split
from solver.model.iteration_table import IterationTable

EXACT = 1 - 2e-9  # the bound's own margin, and sums of times of a simulation against closed forms


@st.composite
def tables(draw: st.DrawFn) -> IterationTable:
    """Any positive numbers at all, rising or not, on grids that start at 1 or later and hold 32 slots and 50 tokens."""
    batch = sorted({*draw(st.sets(st.integers(1, 31), min_size=1, max_size=3)), draw(st.integers(32, 48))})
    context = sorted({*draw(st.sets(st.integers(0, 49), min_size=1, max_size=2)), draw(st.integers(50, 60))})
    cells = [[draw(st.floats(1e-3, 5e-2)) for _ in context] for _ in batch]
    return IterationTable(np.array(batch, float), np.array(context, float), np.array(cells))


@st.composite
def instances(draw: st.DrawFn) -> tuple[solver.Workload, solver.Cluster, solver.LatencyModel]:
    memory = draw(st.sampled_from([50, 51, 90, 200, 1 << 40]))  # a response takes up to 50 tokens
    latency = replace(draw(latencies(max_batch=draw(st.sampled_from([1, 3, 32])))), kv_capacity_tokens=memory)
    if draw(st.booleans()):
        latency = replace(latency, table=draw(tables()))
    prompts = draw(st.integers(1, 5))
    lengths = draw(st.lists(st.integers(0, 30), min_size=2 * prompts, max_size=2 * prompts))
    tokens = draw(st.lists(st.integers(0, 20), min_size=prompts, max_size=prompts))
    work = solver.Workload.grid(tokens, np.reshape(lengths, (prompts, 2)), max_response_tokens=30)
    return work, solver.Cluster(draw(st.integers(1, 3)), latency.gpus_per_actor, latency.gpus_per_actor), latency


def executed(
    work: solver.Workload, plan: solver.Plan, cluster: solver.Cluster, latency: solver.LatencyModel, admission: str = "reserve"
):
    """Makespan and GPU-seconds."""
    prompts = work.prompt_tokens[work.prompt_of].tolist()
    requests = [
        Request(i, p, work.max_response_tokens, target_tokens=n)
        for i, (p, n) in enumerate(zip(prompts, work.response_tokens.tolist(), strict=True))
    ]
    record = run_step(plan, requests, SimulatedEngine, latency, cluster, admission=admission)
    return record.makespan_s, sum(len(a["gpu_ids"]) * (a["end_s"] - a["start_s"]) for a in record.allocations)


@given(instances(), st.sampled_from(POLICIES), st.sampled_from([0.2, 0.9]), st.sampled_from(["reserve", "preempt"]))
@settings(max_examples=25, deadline=None)
def test_no_policy_beats_it(instance, name, weight, admission):
    work, cluster, latency = instance
    given_ = (
        solver.PlanningProblem(work, cluster, latency, solver.Objective(weight), admission=admission),
        PlanningOptions(),
    )
    time_s, gpu_s = executed(work, make_policy(name).plan(*given_), cluster, latency, admission)
    whatever = ScheduleBound(solver.PlanningProblem(work, cluster, latency, admission="preempt")).gpu_seconds(time_s)
    bound = ScheduleBound(solver.PlanningProblem(work, cluster, latency, admission=admission)).gpu_seconds(time_s)
    assert whatever <= bound
    assert bound * EXACT <= gpu_s


def test_little_kv_memory_raises_it_and_the_rule_that_reserves_more():
    """The shape of a large model in little memory: base time dominates, and memory says how many share it."""
    latency = solver.LatencyModel("large", 2, 0.027, 3.4e-5, 1.9e-8, start_s=1.0, kv_capacity_tokens=6000)
    work = lognormal_workload(60, 4, limit=1500, mean_log=6.0)
    cluster = solver.Cluster(4, 8, 2)
    ample = ScheduleBound(
        solver.PlanningProblem(work, cluster, replace(latency, kv_capacity_tokens=10**9), admission="preempt")
    )
    bounds = {
        rule: ScheduleBound(solver.PlanningProblem(work, cluster, latency, admission=rule)) for rule in ("preempt", "reserve")
    }
    for rule, bound in bounds.items():
        for name in ("random", "oracle", "oracle+replan", "least-loaded"):
            given_ = (
                solver.PlanningProblem(work, cluster, latency, solver.Objective(0.7), admission=rule),
                PlanningOptions(),
            )
            time_s, gpu_s = executed(work, make_policy(name).plan(*given_), cluster, latency, rule)
            assert bound.gpu_seconds(time_s) * EXACT <= gpu_s
    late = 10 * ample.shortest_s()
    assert bounds["preempt"].gpu_seconds(late) > 3 * ample.gpu_seconds(late)
    assert bounds["reserve"].gpu_seconds(late) > 1.5 * bounds["preempt"].gpu_seconds(late)


@pytest.mark.parametrize("profile", list_profiles())
def test_no_policy_beats_it_on_shipped_profiles(profile):
    latency = load_profile(profile)
    work = lognormal_workload(48, 4, limit=800, mean_log=5.0)
    cluster = solver.Cluster(2, 8, latency.gpus_per_actor)
    bound = ScheduleBound(solver.PlanningProblem(work, cluster, latency, admission="preempt"))
    ratios = []
    for name in POLICIES:
        plan = make_policy(name).plan(solver.PlanningProblem(work, cluster, latency), PlanningOptions())
        time_s, gpu_s = executed(work, plan, cluster, latency)
        ratios.append(gpu_s / bound.gpu_seconds(time_s))
    assert min(ratios) >= EXACT


def test_slots_that_bind_for_short_responses_raise_it_and_no_policy_beats_it(monkeypatch):
    """Unequal loads and slots that only short responses fill: charging by load up to a reference, by head beyond, is most."""
    latency = replace(load_profile("l40s-qwen2.5-3b-tp2").affine, max_batch=128)
    work = lognormal_workload(100, 4, limit=2000, mean_log=5.5)
    cluster = solver.Cluster(10, 8, latency.gpus_per_actor)
    bound = ScheduleBound(solver.PlanningProblem(work, cluster, latency, admission="preempt"))
    for name in ("random", "oracle", "oracle+replan"):
        for weight in (0.3, 0.7, 0.95):
            given_ = (
                solver.PlanningProblem(work, cluster, latency, solver.Objective(weight)),
                PlanningOptions(),
            )
            time_s, gpu_s = executed(work, make_policy(name).plan(*given_), cluster, latency)
            assert bound.gpu_seconds(time_s) * EXACT <= gpu_s
    bound = ScheduleBound(solver.PlanningProblem(work, cluster, latency, admission="preempt"), lp_work=0)
    times = np.geomspace(1.05, 2.0, 8) * bound.shortest_s()
    values = np.array([bound.gpu_seconds(t) for t in times])
    monkeypatch.setattr(schedule_bounds, "references", lambda *_: np.array([]))
    without = np.array([bound.gpu_seconds(t) for t in times])
    assert np.all(values >= without)
    assert np.max(values / without) > 1.02


@pytest.mark.parametrize("groups", [1, 3, 100])
def test_grouping_responses_for_the_bound_only_lowers_it(monkeypatch, groups):
    """Against one lam, one group and all tokens of every response by itself."""
    rng = np.random.default_rng(groups)
    length, context = rng.integers(0, 60, 40).astype(float), rng.integers(0, 30, 40).astype(float)
    a, b, c, slots, left = 5e-3, 1e-3, 1e-4, 6, 1.2
    monkeypatch.setattr(schedule_bounds, "GROUPS", groups)
    parts = ResponseGroups.of(length, context)
    lam = np.geomspace(1e-4, 1e3, 2000)[:, None]
    assert parts.tokens.sum() == pytest.approx(length.sum())
    assert parts.count.sum() == len(length)
    for reference in (1e-3, 3e-3, 8e-3):
        got = parts.base_time_shares(b, c, slots, np.array([reference]), parts.count * left - a * parts.length)
        most = slots * reference
        exact = 0.0
        for tokens, start in zip(length, context, strict=True):
            load = b + c * (start + np.arange(tokens))
            rising = np.where(load <= lam * most**2, 2 * np.sqrt(lam * load), load / most + lam * most)
            values = np.minimum(rising, 1 / slots + lam * most).sum(axis=1) - lam[:, 0] * (left - a * tokens)
            exact += max(0.0, float(values.max()), float(np.minimum(load / most, 1 / slots).sum()))
        assert 0 < got <= exact * (1 + 1e-9)


@given(
    latencies(max_batch=4),
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.booleans(),
    st.integers(1, 2),
    st.integers(1, 4),
    st.sampled_from([6, 7, 8, 11, 1 << 40]),
)
@settings(max_examples=40, deadline=None)
def test_no_schedule_of_a_tiny_workload_beats_it(latency, lengths, one_prompt, actors, slots, memory):
    assume(max(lengths) > 0)
    latency = replace(latency, max_batch=slots, kv_capacity_tokens=memory)
    owner = [0] * len(lengths) if one_prompt else list(range(len(lengths)))
    work = solver.Workload([3] * (max(owner) + 1), owner, lengths, max_response_tokens=3)
    cluster = solver.Cluster(actors, latency.gpus_per_actor, latency.gpus_per_actor)
    bound = ScheduleBound(solver.PlanningProblem(work, cluster, latency, admission="preempt"))
    hand = Hand(latency, latency.start_s + latency.sync_s, float(cluster.gpus_per_actor))
    found = schedules(work, [hand] * actors, 6000)
    assert found
    for time_s, gpu_s in found:
        assert bound.gpu_seconds(time_s * (1 + 1e-9)) * EXACT <= gpu_s


@given(instances())
@settings(max_examples=40, deadline=None)
def test_it_falls_with_time_and_is_infinite_where_the_longest_response_does_not_fit(instance):
    work, cluster, latency = instance
    bound = ScheduleBound(solver.PlanningProblem(work, cluster, latency, admission="preempt"))
    shortest = bound.shortest_s()
    times = np.linspace(0.2, 3, 25) * max(shortest, 0.01)
    values = [bound.gpu_seconds(t) for t in times]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in itertools.pairwise(values))
    if latency.table is None:
        longest_s = bound.ready_s + latency.base_s * work.response_tokens.max()
        assert shortest >= longest_s * EXACT
        if work.response_tokens.max() > 0:
            assert math.isinf(bound.gpu_seconds(longest_s * 0.999))
    assert bound.gpu_seconds(shortest * (1 + 1e-6) + 1e-9) <= cluster.gpus * (shortest * (1 + 1e-6) + 1e-9) * (1 + 1e-9)


def test_responses_without_tokens_need_nothing():
    work = solver.Workload([5, 5], [0, 1], [0, 0])
    for start_s in (0.0, 2.0):
        latency = solver.LatencyModel("x", 1, 0.1, 0.01, start_s=start_s)
        assert (
            ScheduleBound(solver.PlanningProblem(work, solver.Cluster(1, 2, 1), latency, admission="preempt")).gpu_seconds(
                start_s
            )
            == 0.0
        )


def test_a_batch_that_costs_nothing_is_bounded_by_its_longest_response():
    """tau = a: one actor that decodes all at once takes a * longest, and so says the bound."""
    work = solver.Workload([0, 0, 0], [0, 1, 2], [7, 3, 1])
    bound = ScheduleBound(
        solver.PlanningProblem(work, solver.Cluster(1, 1, 1), solver.LatencyModel("x", 1, 0.1, 0.0), admission="preempt")
    )
    assert 0 < bound.gpu_seconds(0.7) <= 0.7
    assert math.isinf(bound.gpu_seconds(0.69))


@given(tables(), st.integers(2, 50), st.sampled_from([1, 2, 8, 32]))
@settings(max_examples=40, deadline=None)
def test_minorants_lie_below_the_table(table, most_context, slots):
    latency = solver.LatencyModel("t", 1, 1e-3, 0.0, table=table, max_batch=slots)
    size, context = (x.ravel() for x in np.meshgrid(np.arange(1, slots + 1), np.linspace(0, most_context, 97)))
    minorants = affine_minorants(latency, most_context)
    assert minorants
    for a, b, c in minorants:
        assert min(a, b, c) >= 0
        assert np.all(a + b * size + c * size * context <= latency.iteration_s(size, size * context) * (1 + 1e-9))


@pytest.mark.filterwarnings("error")
def test_a_table_that_begins_at_an_empty_batch_has_minorants_without_a_warning():
    table = IterationTable([0, 1, 8], [0, 100], np.array([[1.0, 1.0], [1.0, 1.5], [2.0, 4.0]]) / 100)
    latency = solver.LatencyModel("t", 1, 1e-3, 0.0, table=table, max_batch=8)
    minorants = affine_minorants(latency, 100)
    assert all(a + b + c * 100 <= 0.015 for a, b, c in minorants)
    assert any(b > 0 for _, b, _ in minorants), "a programme was solved, not only the table's least time taken"


@pytest.mark.parametrize("profile", list_profiles())
def test_minorants_lie_below_shipped_tables_and_touch_them(profile):
    latency = load_profile(profile)
    longest = min(4096, int(latency.table.context_tokens[-1]))
    size, context = (x.ravel() for x in np.meshgrid(np.arange(1, latency.max_batch + 1), np.linspace(0, longest, 65)))
    measured = latency.iteration_s(size, size * context)
    best = np.zeros_like(measured)
    for a, b, c in affine_minorants(latency, longest):
        line = a + b * size + c * size * context
        assert np.all(line <= measured * (1 + 1e-9))
        best = np.maximum(best, line / measured)
    assert best.max() > 0.999


@given(instances(), st.floats(1.0, 4.0))
@settings(max_examples=20, deadline=None)
def test_time_at_a_given_cost_is_the_inverse_of_cost_at_a_given_time(instance, slack):
    workload, cluster, latency = instance
    bound = ScheduleBound(solver.PlanningProblem(workload, cluster, latency, admission="preempt"))
    shortest = bound.shortest_s()
    time_s = slack * max(shortest, 1e-6)
    cost = bound.gpu_seconds(time_s)
    assert bound.least_time_s(math.inf) == shortest
    if math.isfinite(cost) and cost > 0:
        assert bound.least_time_s(cost * (1 + 1e-9)) <= time_s * (1 + 1e-6)
        assert bound.least_time_s(cost * 0.999) >= bound.least_time_s(cost) * (1 - 1e-9)
    plan = random_split(solver.PlanningProblem(workload, cluster, latency), actors=1)
    taken = solver.evaluate(plan, solver.PlanningProblem(workload, cluster, latency), table=True)
    assert bound.least_time_s(taken.gpu_seconds) <= taken.makespan_s * (1 + 1e-9) + 1e-9


def test_fewer_tokens_to_prefill_lower_the_bound():
    workload, cluster = lognormal_workload(16, 4), solver.Cluster(2, 8, 2)
    latency = load_profile("l40s-qwen2.5-3b-tp2")
    every, none = (
        ScheduleBound(solver.PlanningProblem(workload, cluster, latency, admission="preempt"), prefill_tokens=t)
        for t in (None, 0)
    )
    time_s = 2 * every.shortest_s()
    saved = latency.prefill_per_token_s * float(workload.prompt_tokens.sum()) * latency.gpus_per_actor
    assert every.gpu_seconds(time_s) - none.gpu_seconds(time_s) >= saved
