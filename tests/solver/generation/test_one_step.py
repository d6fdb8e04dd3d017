"""One iteration looked up alone takes what it takes among others, to the bit: a simulated step may mix both ways."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver import LatencyModel, PlanningError
from solver.model.iteration_table import IterationTable

TABLE = IterationTable(
    np.array([1, 4, 16, 256]), np.array([0, 100, 900]),
    np.array([[2, 2.3, 3.1], [2.1, 2.2, 3.7], [2.7, 3.3, 6.1], [4.9, 7.7, 19.3]]) * 1e-3,
)  # fmt: skip
iterations = st.lists(
    st.integers(0, 200).flatmap(lambda b: st.tuples(st.just(b), st.integers(0, 900 * b))), min_size=1, max_size=40
)


@given(iterations, st.booleans())
@settings(max_examples=40, deadline=None)
def test_one_iteration_takes_what_it_takes_among_others(some, measured):
    """On the grid's points, between them, outside of it, and with nobody in the batch."""
    model = LatencyModel("x", 1, 2e-3, 7e-5, 1.3e-8, table=TABLE if measured else None)
    some = [*some, (4, 400), (16, 1600), (64, 64 * 900), (1, 0)]
    together = model.iteration_s(*np.array(some).T)
    assert [model.one_iteration_s(batch, kv) for batch, kv in some] == together.tolist()


@given(st.integers(1, 256), st.integers(0, 600), st.integers(1, 300), st.floats(0, 100))
@settings(max_examples=40, deadline=None)
def test_iterations_of_a_growing_batch_are_added_up_one_by_one(batch, context, count, from_s):
    each = (TABLE.one(batch, batch * (context + k)) for k in range(count))
    assert TABLE.added_up_s(from_s, batch, batch * context, count) == list(itertools.accumulate(each, initial=from_s))[1:]


def test_a_batch_that_grows_beyond_the_table_is_refused():
    assert len(TABLE.added_up_s(0.0, 8, 8 * 890, 11)) == 11
    with pytest.raises(PlanningError, match="901 KV tokens per fed token"):
        TABLE.added_up_s(0.0, 8, 8 * 890, 12)
