"""Mixed prefill gives every random queue the iterations that a plain simulation, one iteration after the other, gives it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_strategies import admissions, queues
from solver_reference import MixedRun, simulate_mixed
from solver_strategies import instances, latencies, mixed_latencies

import solver
from solver.bounds.schedules import ScheduleBound
from solver.model.admission import Admission
from solver.model.iteration_table import IterationTable
from solver.timing.batch import Batch
from solver.timing.batching import schedule
from solver.timing.build_plan import assemble
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes
from solver.timing.timeline import Timeline, busy_s, timeline


def assert_same(run: Timeline, plain: MixedRun) -> None:
    """The same visits, chunks, fed tokens and completion times."""
    stays = run.residency
    columns = (stays.response, stays.first, stays.ready, stays.last, stays.context, stays.prefill)
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == plain.visits
    at, of, tokens = stays.chunks
    assert sorted(zip(at.tolist(), stays.response[of].tolist(), tokens.tolist(), strict=True)) == plain.chunks
    assert (run.batch + run.prefill_tokens).tolist() == plain.fed
    np.testing.assert_allclose(run.end_s, plain.end_s, rtol=1e-9, atol=1e-12)


@given(st.data(), queues())
@settings(max_examples=300, deadline=None)
def test_residencies_and_times_are_those_of_the_plain_simulation(data, queue):
    admission = data.draw(admissions(queue))
    latency = data.draw(mixed_latencies(max_batch=admission.max_batch))
    run = timeline(queue.batch(admission), latency)
    plain = simulate_mixed(*(column.tolist() for column in queue), latency, admission)
    assert_same(run, plain)
    assert max(plain.fed, default=0) <= latency.token_budget
    assert busy_s(queue.batch(admission), latency) == pytest.approx(max(plain.end_s), rel=1e-9, abs=1e-12)


@given(st.data(), queues())
@settings(max_examples=300, deadline=None)
def test_a_batch_that_runs_already_goes_on_as_in_the_plain_simulation(data, queue):
    """Its youngest response may be half computed."""
    admission = data.draw(admissions(queue))
    room = admission.max_batch
    if admission.rule == "reserve":
        room = min(room, int(np.searchsorted(np.cumsum(queue.most), admission.kv_capacity_tokens, side="right")))
    running = data.draw(st.integers(0, min(room, len(queue.remaining))))
    queue.there[: max(0, running - 1)] = queue.context[: max(0, running - 1)]
    latency = data.draw(mixed_latencies(max_batch=admission.max_batch))
    run = timeline(queue.batch(admission, running), latency)
    assert_same(run, simulate_mixed(*(column.tolist() for column in queue), latency, admission, running))


@given(st.data(), queues(), latencies())
@settings(max_examples=100, deadline=None)
def test_a_budget_that_nothing_reaches_schedules_as_separate_prefill_does(data, queue, latency):
    admission = data.draw(admissions(queue))
    mixed = latency.with_mixed_prefill(1000)
    one, other = timeline(queue.batch(admission), latency), timeline(queue.batch(admission), mixed)
    assert other.residency.first.tolist() == one.residency.first.tolist() == other.residency.ready.tolist()
    assert other.residency.last.tolist() == one.residency.last.tolist()


def test_a_prompt_longer_than_the_budget_by_hand():
    """Budget 4: response 0 (2 missing) and 2 tokens of response 1 (5 missing); then one decodes and 3 tokens are fed, which
    generate its first token; then both decode, and response 2, which has its KV cache, joins in a third slot."""
    latency = solver.LatencyModel(
        "x", 1, 1.0, 0.1, prefill_per_token_s=0.01, max_batch=3, prefill="mixed", token_budget=4, join_s=0.001
    )
    batch = Batch(np.array([3, 2, 1]), np.array([2, 5, 7]), np.array([2, 5, 0]), np.array([9, 9, 9]), Admission(3, 100))
    run = timeline(batch, latency)
    assert run.residency.first.tolist() == [0, 0, 2]
    assert run.residency.ready.tolist() == [0, 1, 2]
    assert run.batch.tolist() == [1, 2, 3]
    assert run.prefill_tokens.tolist() == [3, 2, 0]
    seconds = [1.0 + 0.1 + 0.03 + 0.002, 1.0 + 0.2 + 0.02, 1.0 + 0.3 + 0.001]
    assert run.boundary_s.tolist() == pytest.approx([0.0, *np.cumsum(seconds).tolist()])
    assert run.prefill_s.tolist() == pytest.approx([(1.0 + 0.1 + 0.03) * 3 / 4, (1.0 + 0.2 + 0.02) * 2 / 4, 0.0])


def test_who_is_evicted_half_computed_computes_everything_again():
    """Two responses in memory of 11, budget 3: the second one's context of 8 gets 1 and 2 tokens beside the first one, which
    grows from 2 to 4; then they hold 12."""
    context = np.array([2, 8])
    batch = Batch(np.array([6, 1]), context, context, np.array([9, 9]), Admission(2, 11, "preempt"))
    stays = schedule(batch, token_budget=3)
    rows = zip(stays.response, stays.first, stays.ready, stays.last, stays.prefill, stays.computed(), strict=True)
    assert sorted(tuple(map(int, row)) for row in rows) == [(0, 0, 0, 6, 2, 1), (1, 0, 2, 2, 8, 3), (1, 6, 8, 9, 8, 7)]


@given(st.data(), st.booleans().flatmap(lambda refill: instances(refill=refill, mixed=True)), st.booleans())
@settings(max_examples=100, deadline=None)
def test_group_times_are_those_of_evaluate_and_never_below_their_bound(data, instance, shares):
    work, cluster, latency, rule = instance
    order = np.array(data.draw(st.permutations(range(len(work)))))
    inner = data.draw(st.sets(st.integers(1, len(work) - 1), max_size=2)) if len(work) > 1 else set()
    edges = np.array([0, *sorted(inner), len(work)])
    cluster = replace(cluster, nodes=3)
    problem = solver.PlanningProblem(work, cluster, latency, admission=rule, share_prefill=shares)
    plan = assemble("hand", np.split(order, edges[1:-1]), problem)
    times = GroupTimes.of(work, latency, admission_of(latency, rule=rule), order, shares)
    ready_s = latency.start_s + latency.sync_s
    assert [a.predicted_s - ready_s for a in plan.actors] == pytest.approx(times.busy_s(edges)[0], rel=1e-9, abs=1e-12)
    least_s, may_take_more = times.least_s(edges)
    assert np.all(least_s <= times.busy_s(edges) * (1 + 1e-9) + 1e-12)
    assert np.all(may_take_more | np.isclose(least_s, times.busy_s(edges)))


def table(draw: st.DrawFn, budget: int) -> IterationTable:
    """Any positive numbers up to the budget."""
    fed = sorted({1, budget, *draw(st.sets(st.integers(1, budget), max_size=3)), budget + 1})
    cells = [[draw(st.floats(1e-3, 5e-2)) for _ in range(3)] for _ in fed]
    return IterationTable(np.array(fed), np.array([0, 20, 64]), np.array(cells))


@given(st.data(), instances(refill=False, mixed=True), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_bound_for_every_policy_is_not_above_a_plan(data, instance, measured):
    work, cluster, latency, rule = instance
    if measured:
        latency = replace(latency, table=data.draw(st.composite(table)(latency.token_budget)))
    problem = solver.PlanningProblem(work, cluster, latency, admission=rule)
    plan = assemble("hand", [np.arange(len(work))], problem)
    taken = solver.evaluate(plan, problem, table=True)
    bound = ScheduleBound(problem).gpu_seconds(taken.makespan_s * (1 + 1e-9))
    assert bound * (1 - 2e-9) <= taken.gpu_seconds


@pytest.mark.parametrize("prefill", [{"prefill": "mixed", "token_budget": 16}, {"prefill": "separate"}])
def test_iterations_beyond_the_table_are_refused(prefill):
    small = IterationTable(np.array([2, 16]), np.array([10, 64]), np.array([[0.01, 0.02], [0.02, 0.04]]))
    latency = solver.LatencyModel("x", 1, 0.01, 0.0, table=small, max_batch=4, **prefill)
    assert float(latency.iteration_s(2, 20, 14)) == latency.one_iteration_s(2, 20, 14)
    for iteration_s in (latency.iteration_s, latency.one_iteration_s):
        with refused(solver.PlanningError, "KV tokens per fed token", "130", "64"):
            iteration_s(1, 130, 0)
        with refused(solver.PlanningError, "17 fed tokens", "16"):
            iteration_s(2, 20, 15)


def test_less_work_than_the_table_has():
    """Fewer fed tokens take the first row's time; fewer KV tokens are read on the first cell's line, to the smallest time."""
    table = IterationTable(np.array([2, 16]), np.array([10, 64]), np.array([[0.010, 0.064], [0.02, 0.074]]))
    assert float(table(1, 64)) == table.one(1, 64) == 0.064
    assert float(table(16, 16 * 5)) == table.one(16, 16 * 5) == pytest.approx(0.015)
    assert float(table(2, 0)) == table.one(2, 0) == 0.010


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prefill": "piecewise"}, "prefill is 'piecewise'"),
        ({"prefill": "mixed"}, "token_budget is None"),
        ({"prefill": "mixed", "token_budget": 255}, "token_budget is 255"),
        ({"token_budget": 2048}, "prefill is separate"),
        ({"prefill": "mixed", "token_budget": 2048, "prefill_base_s": 0.1}, "prefill_base_s is 0.1"),
        (
            {"prefill": "mixed", "token_budget": 2048, "table": IterationTable([1, 512], [0, 64], np.ones((2, 2)))},
            "the iteration table ends at 512 fed tokens",
        ),
    ],
)
def test_what_mixed_prefill_needs(options, said):
    with refused(solver.PlanningError, said):
        solver.LatencyModel("x", 1, 0.01, 0.0, **options)
