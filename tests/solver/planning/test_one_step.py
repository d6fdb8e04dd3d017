"""One iteration looked up alone takes what it takes among others, to the bit: a simulated step may mix both ways."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from solver import LatencyModel
from solver.model.latency import IterationTable

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
