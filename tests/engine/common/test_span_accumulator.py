"""Merged spans say what the iterations in them were."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.engine.common.span_accumulator import SpanAccumulator

iterations = st.lists(st.tuples(st.floats(1e-6, 10.0), st.integers(1, 8)), min_size=1, max_size=50)


@given(st.floats(0, 1e6), iterations)
def test_a_merged_span_has_their_tokens_and_a_batch_between_theirs(start_s, iterations):
    """Real clocks far from zero round: a full batch of 4 once had a mean of 4.000000000000001."""
    spans, now_s = SpanAccumulator(slots=8), start_s
    for duration_s, batch in iterations:
        spans.decode(now_s, now_s + duration_s, batch, batch * duration_s, 10.0 * batch * duration_s)
        now_s += duration_s
    [span] = spans.drain()
    batches = [batch for _, batch in iterations]
    assert (span.start_s, span.end_s, span.tokens) == (start_s, now_s, sum(batches))
    assert span.batch_mean <= span.slots
    assert min(batches) * (1 - 1e-3) <= span.batch_mean <= max(batches) * (1 + 1e-3)
    assert span.kv_tokens == pytest.approx(10.0 * span.batch_mean, rel=1e-3)
    assert not spans.drain()


@given(iterations)
def test_a_full_batch_is_never_more_than_full(iterations):
    spans, now_s = SpanAccumulator(slots=4), 0.0
    for duration_s, _ in iterations:
        spans.decode(now_s, now_s + duration_s, 4, 4 * duration_s, 0.0)
        now_s += duration_s
    assert all(span.batch_mean <= 4 for span in spans.drain())
