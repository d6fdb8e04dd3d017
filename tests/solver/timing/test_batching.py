"""``solver.timing.batching`` says of every random queue what a plain simulation, one iteration after the other, says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_strategies import admissions, queues
from solver_reference import simulate
from solver_strategies import latencies

import solver
from solver.model.admission import Admission
from solver.timing.batch import Batch
from solver.timing.batching import schedule
from solver.timing.timeline import busy_s, timeline


@given(st.data(), queues(), latencies())
@settings(max_examples=100, deadline=None)
def test_residencies_and_times_are_those_of_the_plain_simulation(data, queue, latency):
    admission = data.draw(admissions(queue))
    run = timeline(queue.batch(admission), latency)
    visits, end_s = simulate(*(column.tolist() for column in queue), latency, admission)
    stays = run.residency
    columns = (stays.response, stays.first, stays.last, stays.context, stays.prefill)
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == visits
    np.testing.assert_allclose(run.end_s, end_s, rtol=1e-9, atol=1e-12)
    assert run.busy_s == pytest.approx(max(end_s))


@given(st.data(), queues(), latencies())
@settings(max_examples=100, deadline=None)
def test_a_batch_that_runs_already_goes_on_as_in_the_plain_simulation(data, queue, latency):
    """Under ``preempt`` it may hold too much already (responses have arrived with their KV cache): the youngest leave."""
    admission = data.draw(admissions(queue))
    room = admission.max_batch
    if admission.rule == "reserve":
        room = min(room, int(np.searchsorted(np.cumsum(queue.most), admission.kv_capacity_tokens, side="right")))
    running = data.draw(st.integers(0, min(room, len(queue.remaining))))
    queue.there[:running] = queue.context[:running]
    run = timeline(queue.batch(admission, running), latency)
    visits, end_s = simulate(*(column.tolist() for column in queue), latency, admission, running)
    stays = run.residency
    columns = (stays.response, stays.first, stays.last, stays.context, stays.prefill)
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == visits
    np.testing.assert_allclose(run.end_s, end_s, rtol=1e-9, atol=1e-12)


@given(st.data(), queues(), latencies())
@settings(max_examples=100, deadline=None)
def test_slots_and_memory_are_never_exceeded(data, queue, latency):
    admission = data.draw(admissions(queue))
    run = timeline(queue.batch(admission), latency)
    stays = run.residency
    counted = np.zeros(len(run.batch), dtype=np.int64)
    for response, first, last in zip(stays.response, stays.first, stays.last, strict=True):
        counted[first:last] += queue.most[response]
    assert run.batch.max(initial=0) <= admission.max_batch
    assert run.kv_tokens.max(initial=0) <= admission.kv_capacity_tokens
    assert admission.rule == "preempt" or counted.max(initial=0) <= admission.kv_capacity_tokens


@given(st.data(), queues())
@settings(max_examples=100, deadline=None)
def test_every_response_gets_all_its_iterations_and_only_preempt_splits_them(data, queue):
    admission = data.draw(admissions(queue))
    stays = schedule(queue.batch(admission))
    decoded = np.bincount(stays.response, weights=stays.last - stays.first, minlength=len(queue.remaining))
    assert decoded.tolist() == queue.remaining.tolist()
    if admission.rule == "reserve":
        assert sorted(stays.response.tolist()) == list(range(len(queue.remaining)))


def one_by_one(
    decode: list[int], prefill: list[int], reserved: list[int], admission: Admission, budget: int
) -> tuple[list[int], list[tuple[int, int, int]]]:
    """When each response is ready and the chunks before, iteration by iteration, by the rule of ``solver.timing.batching``."""
    ready, chunks, missing, place, now = [-1] * len(decode), [], list(prefill), 0, 0
    batch: list[int] = []
    while place < len(decode) or batch:
        batch = [i for i in batch if ready[i] < 0 or now < ready[i] + decode[i]]
        room = budget - sum(ready[i] >= 0 for i in batch)
        half = next((i for i in batch if ready[i] < 0), None)
        while room > 0:
            if half is None:
                held = sum(reserved[i] for i in batch)
                if place == len(decode) or (
                    batch and (len(batch) >= admission.max_batch or held + reserved[place] > admission.kv_capacity_tokens)
                ):
                    break
                half, place = place, place + 1
                batch.append(half)
            fed = min(room, missing[half])
            room, missing[half] = room - fed, missing[half] - fed
            if missing[half]:
                chunks.append((now, half, fed))
            else:
                ready[half], half = now, None
        now += 1
    return ready, chunks


@given(
    st.integers(1, 150), st.integers(1, 60), st.sampled_from([0, 1, 7, 100, 3000]), st.sampled_from([1, 3, 30]),
    st.sampled_from([1, 2, 20, 200]), st.booleans(), st.sampled_from([0.3, 1.0, 9.0]), st.integers(0, 2**20),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_many_responses_that_reserve_memory_join_as_they_would_iteration_by_iteration(
    count, slots, spare, longest, prompt, has_budget, memory, seed
):
    """Runs of equal lengths or any; prompts that fit the budget always, mostly, or hardly ever; memory that binds or not."""
    rng = np.random.default_rng(seed)
    decode, prefill = rng.integers(1, longest + 1, count), rng.integers(1, prompt + 1, count)
    decode = np.sort(decode) if seed % 2 else decode
    reserved = decode + prefill
    admission = Admission(slots, max(1, int(memory * slots * reserved.mean())))
    budget = slots + spare if has_budget else None
    stays = schedule(Batch(decode, prefill, prefill, reserved, admission), budget)
    most = int(prefill.sum()) + count if budget is None else budget
    expected, chunks = one_by_one(*(column.tolist() for column in (decode, prefill, reserved)), admission, most)
    assert stays.ready.tolist() == expected
    assert list(zip(*stays.pieces.tolist(), strict=True)) == chunks


def test_an_eviction_by_hand():
    """Two responses of context 4 and 5 tokens to go in 12 tokens of memory: both join, after two iterations they hold 12,
    after the third they would hold 14; the younger leaves with 7 tokens, waits two iterations and recomputes them."""
    five = np.array([5, 5])
    context = np.array([4, 4])
    stays = schedule(Batch(five, context, context, np.array([9, 9]), Admission(8, 12, "preempt")))
    rows = zip(stays.response, stays.first, stays.last, stays.context, stays.prefill, strict=True)
    assert sorted(tuple(map(int, row)) for row in rows) == [(0, 0, 5, 4, 4), (1, 0, 3, 4, 4), (1, 5, 7, 7, 7)]


def test_a_part_that_is_there_shortens_the_prefill_and_a_whole_context_makes_none():
    """Contexts of 10 with 10, 7 and 0 tokens there: one call for 3 + 10 tokens; then a slot is free and nothing is computed."""
    three, there = np.array([1, 2, 2, 1]), np.array([10, 7, 0, 10])
    latency = solver.LatencyModel("x", 1, 1.0, 0.0, prefill_base_s=0.5, prefill_per_token_s=0.1)
    batch = Batch(three, np.full(4, 10), 10 - there, np.full(4, 12), Admission(3, 99))
    run = timeline(batch, latency)
    assert run.prefill_tokens.tolist() == [13, 0]
    assert run.prefill_s.tolist() == pytest.approx([0.5 + 1.3, 0.0])
    assert run.end_s.tolist() == pytest.approx([2.8, 3.8, 3.8, 3.8])
    assert busy_s(batch, latency) == pytest.approx(3.8)


def test_who_is_evicted_computes_all_of_its_context_again():
    """As above by hand, but that both contexts were there at first."""
    five, context = np.array([5, 5]), np.array([4, 4])
    stays = schedule(Batch(five, context, 0 * context, np.array([9, 9]), Admission(8, 12, "preempt")))
    rows = zip(stays.response, stays.first, stays.prefill, strict=True)
    assert sorted(tuple(map(int, row)) for row in rows) == [(0, 0, 0), (1, 0, 0), (1, 5, 7)]


def test_zero_lengths_are_complete_at_once_and_take_no_slot():
    none = np.zeros(3, dtype=np.int64)
    batch = Batch(np.array([0, 4, 0]), none, none, none + 4, Admission(1, 4))
    run = timeline(batch, solver.LatencyModel("x", 1, 0.5, 0.0))
    assert run.end_s.tolist() == [0.0, 2.0, 0.0]
    assert run.batch.tolist() == [1, 1, 1, 1]


@given(st.data(), st.sampled_from(["reserve", "preempt"]))
@settings(max_examples=100, deadline=None)
def test_busy_seconds_without_iterations_are_those_of_the_timeline(data, rule):
    n = data.draw(st.integers(0, 12))
    numbers = st.lists(st.integers(0, 30), min_size=n, max_size=n)
    remaining, context = (np.array(data.draw(numbers), dtype=np.int64) for _ in range(2))
    there = np.minimum(context, np.array(data.draw(numbers), dtype=np.int64))
    most = context + 40
    admission = Admission(data.draw(st.integers(1, 6)), data.draw(st.integers(70, 300)), rule)
    latency = solver.LatencyModel("x", 1, 2.0, 0.3, 0.01, prefill_base_s=0.7, prefill_per_token_s=0.05)
    batch = Batch(remaining, context, context - there, most, admission)
    assert busy_s(batch, latency) == pytest.approx(timeline(batch, latency).busy_s, rel=1e-9, abs=1e-12)
