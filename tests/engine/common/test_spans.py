"""Spans say what the iterations of a journal were."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.engine.common.journal import AdmittedResponse, EngineJournal
from rlhfless.engine.common.spans import IterationRun, spans_of
from rlhfless.engine.protocol import EngineSpan

iterations = st.lists(st.tuples(st.floats(1e-6, 10.0), st.integers(1, 8)), min_size=1, max_size=50)


def journal_of(slots: int, start_s: float, iterations: Sequence[tuple[float, int]], kv_per_response: int) -> EngineJournal:
    """Iterations of other batches, one after the other."""
    journal, now_s = EngineJournal(slots, start_s), start_s
    for duration_s, batch in iterations:
        journal.change(batch, kv_per_response * batch)
        journal.commit(now_s, 0.0, [duration_s], now_s + duration_s)
        now_s += duration_s
    return journal


def spans(journal: EngineJournal, first: int = 0) -> list[EngineSpan]:
    return spans_of(journal.iteration_runs(first), journal.slots)


@given(st.floats(0, 1e6), iterations)
def test_a_merged_span_has_their_tokens_and_a_batch_between_theirs(start_s, iterations):
    """Real clocks far from zero round: a full batch of 4 once had a mean of 4.000000000000001."""
    journal = journal_of(8, start_s, iterations, 10)
    [span] = spans(journal)
    batches = [batch for _, batch in iterations]
    assert (span.start_s, span.end_s, span.tokens) == (start_s, journal.end_s, sum(batches))
    assert span.batch_mean <= span.slots
    assert min(batches) * (1 - 1e-3) <= span.batch_mean <= max(batches) * (1 + 1e-3)
    assert span.kv_tokens == pytest.approx(10.0 * span.batch_mean, rel=1e-3)
    assert not spans(journal, len(journal.runs))


@given(iterations)
def test_a_full_batch_is_never_more_than_full(iterations):
    journal = journal_of(4, 0.0, [(duration_s, 4) for duration_s, _ in iterations], 0)
    assert all(span.batch_mean <= 4 for span in spans(journal))


def test_gaps_prefills_and_prepared_shapes_part_decode_spans():
    """Two join, with 5 and 1 missing tokens, after a second of preparation; later a third waits, with its context cached."""
    journal = EngineJournal(4, 1.0)
    journal.change(2, 18, [AdmittedResponse(0, 10, 5, True), AdmittedResponse(1, 8, 7, False)])
    journal.commit(2.0, 0.5, [0.25], 2.75, prepared_from_s=1.0)
    journal.commit(2.75, 0.0, [0.25, 0.75], 3.75)
    journal.change(1, 7, [AdmittedResponse(2, 7, 7, True)])
    journal.commit(5.0, 0.0, [0.5], 5.5)
    start, prefill, decode, later = spans(journal)
    assert start == EngineSpan("start", 1.0, 2.0, 0.0, 4, 0, 0.0, "capture")
    assert prefill == EngineSpan("prefill", 2.0, 2.5, 2.0, 4, 4, 4.0, computed=[(0, 4)])
    kv_tokens = (18 * 0.25 + 20 * 0.25 + 22 * 0.75) / 1.25
    assert decode == EngineSpan("decode", 2.5, 3.75, 2.0, 4, 6, kv_tokens)
    assert later == EngineSpan("decode", 5.0, 5.5, 1.0, 4, 1, 7.0)
    assert spans(journal, 2) == [later]


def test_chunks_of_contexts_beside_decoding():
    """Of an engine that feeds both in one pass; the first of its iterations gives no token."""
    journal = EngineJournal(4)
    journal.change(0, 9, chunks=[(0, 6)])
    journal.commit(0.0, 0.1, [0.0], 0.1)
    journal.change(1, 9, chunks=[(0, 3)])
    journal.commit(0.1, 0.3, [0.1], 0.5)
    first, second, decode = spans(journal)
    assert (first.phase, first.start_s, first.end_s, first.tokens, first.computed) == ("prefill", 0.0, 0.1, 6, [(0, 6)])
    assert (second.start_s, second.end_s, second.tokens) == (0.1, 0.4, 3)
    assert (decode.start_s, decode.end_s, decode.tokens, decode.batch_mean) == (0.4, 0.5, 1, pytest.approx(1.0))


@given(iterations, st.data())
def test_a_retimed_journal_has_the_same_iterations_at_other_times(iterations, data):
    journal = journal_of(8, 0.0, iterations, 10)
    seconds = np.array([[0.0, data.draw(st.floats(1e-3, 1.0))] for _ in iterations])
    ends_s = 5.0 + np.cumsum(seconds[:, 1])
    again = journal.retimed(np.append(5.0, ends_s[:-1]).tolist(), seconds, ends_s.tolist())
    assert (again.changes, again.end_s, len(again)) == (journal.changes, ends_s[-1], len(journal))
    [span] = spans(again)
    assert (span.start_s, span.end_s, span.tokens) == (5.0, ends_s[-1], sum(batch for _, batch in iterations))


def test_decode_spans_count_drafts_where_there_are_any() -> None:
    """Two responses accept 3 of 4 and then 0 of 2 drafted tokens; after a gap one is decoded without drafts."""
    runs = [
        IterationRun(0.0, 0.0, 1.0, 5, 2.0, 20.0, drafts=(4, 3)),
        IterationRun(1.0, 1.0, 2.0, 2, 2.0, 20.0, drafts=(2, 0)),
        IterationRun(5.0, 5.0, 6.0, 1, 1.0, 7.0),
    ]
    drafted, plain = spans_of(runs, 4)
    assert (drafted.tokens, drafted.drafted_tokens, drafted.accepted_tokens, drafted.fed_tokens) == (7, 6, 3, 10)
    assert (plain.tokens, plain.drafted_tokens, plain.accepted_tokens, plain.fed_tokens) == (1, None, None, None)
