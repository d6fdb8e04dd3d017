"""Passes that commit and feed several tokens: as before where it is one, and as a plain simulation says where it is more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_strategies import admissions, queues
from solver_reference import simulate
from solver_strategies import latencies, mixed_latencies

from rlhfless.latency import load_profile
from solver.model.admission import Admission
from solver.timing.batch import Batch, PassTokens
from solver.timing.timeline import busy_s, timeline


@given(st.data(), queues(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_one_token_per_pass_is_as_without_passes(data, queue, mixes):
    admission = data.draw(admissions(queue))
    latency = data.draw(mixed_latencies(max_batch=admission.max_batch) if mixes else latencies())
    one = PassTokens(np.ones(len(queue.remaining)), np.ones(len(queue.remaining)))
    plain, drafted = (timeline(queue.batch(admission, drafts=passes), latency) for passes in (None, one))
    for name in ("response", "first", "last", "context", "prefill", "ready", "pieces"):
        np.testing.assert_array_equal(getattr(plain.residency, name), getattr(drafted.residency, name))
    np.testing.assert_array_equal(plain.kv_tokens, drafted.kv_tokens)
    np.testing.assert_allclose(plain.boundary_s, drafted.boundary_s, rtol=1e-12)


@given(st.data(), queues(), latencies())
@settings(max_examples=200, deadline=None)
def test_times_are_those_of_the_plain_simulation(data, queue, latency):
    count = len(queue.remaining)
    growth = np.array(data.draw(st.lists(st.integers(1, 5), min_size=count, max_size=count)), dtype=float)
    fed = growth + data.draw(st.sampled_from([0.0, 0.5, 3.0]))
    queue = queue._replace(most=queue.most + (growth * queue.remaining).astype(np.int64) - queue.remaining)
    admission = data.draw(admissions(queue))
    passes = PassTokens(growth, fed)
    run = timeline(queue.batch(admission, drafts=passes), latency)
    columns = (column.tolist() for column in queue)
    visits, end_s = simulate(*columns, latency, admission, passes=(growth.astype(int).tolist(), fed.tolist()))
    stays = run.residency
    rows = (stays.response, stays.first, stays.last, stays.context, stays.prefill)
    assert sorted(zip(*(column.tolist() for column in rows), strict=True)) == visits
    np.testing.assert_allclose(run.end_s, end_s, rtol=1e-9, atol=1e-12)
    assert busy_s(queue.batch(admission, drafts=passes), latency) == pytest.approx(max(end_s), rel=1e-9, abs=1e-12)


@given(st.data(), queues())
@settings(max_examples=100, deadline=None)
def test_mixed_prefill_keeps_memory_and_its_total_is_a_sum(data, queue):
    count = len(queue.remaining)
    growth = np.array(data.draw(st.lists(st.sampled_from([1.0, 1.5, 2.25, 4.0]), min_size=count, max_size=count)))
    most = queue.context + np.ceil(growth * queue.remaining).astype(np.int64) + 1
    queue = queue._replace(most=most)
    admission = data.draw(admissions(queue))
    latency = data.draw(mixed_latencies(max_batch=admission.max_batch))
    passes = PassTokens(growth, growth + 1)
    run = timeline(queue.batch(admission, drafts=passes), latency)
    stays = run.residency
    decoded = np.bincount(stays.response, stays.last - stays.ready, minlength=count)
    np.testing.assert_array_equal(decoded, queue.remaining)
    assert run.batch.max(initial=0) <= admission.max_batch
    assert run.kv_tokens.max(initial=0) <= admission.kv_capacity_tokens + 1
    seconds = busy_s(queue.batch(admission, drafts=passes), latency)
    evictions = len(stays.response) - count
    rounding_s = latency.per_kv_token_s * (0.5 * len(run.batch) + evictions * len(run.batch))
    assert seconds == pytest.approx(run.busy_s, rel=1e-9, abs=1e-12 + rounding_s)


def test_drafts_are_fewer_where_the_table_ends() -> None:
    latency = load_profile("l40s-qwen2.5-3b-tp2")
    assert latency.table is not None
    count = 256
    passes = PassTokens(np.full(count, 4.0), np.full(count, 9.0))
    decode, context = np.full(count, 20), np.full(count, 100)
    batch = Batch(decode, context, 0 * context, np.full(count, 300), Admission(256, 10**6), drafts=passes)
    run = timeline(batch, latency)
    fed = passes.fed_per_iteration(run.residency, latency)
    assert fed.tolist() == [latency.table.batch[-1]] * 20
    np.testing.assert_allclose(np.diff(run.boundary_s), latency.iteration_s(fed, run.kv_tokens) + _joins_s(run, latency))


def _joins_s(run, latency):
    return latency.join_s * np.bincount(run.residency.first, minlength=len(run.batch))
