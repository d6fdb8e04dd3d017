"""Contention that is measured from a step's spans, on steps whose factors are known."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import solver
from rlhfless.training.measured_contention import MOST, Busy, decoded, slowdown


@given(st.floats(1.0, 3.0), st.floats(1.0, 3.0), st.floats(0.5, 4.0), st.integers(1, 3), st.integers(2, 4))
@settings(max_examples=40)
def test_known_factors_are_found_again(decode: float, learn: float, scale: float, actors: int, cores: int) -> None:
    """Actors decode for 2 s alone and 3 s beside one learner, all by equal shares of the cores."""
    alone, beside = min(1.0, cores / actors), min(1.0, cores / (actors + 1))
    work_s = (2.0 * alone + 3.0 * beside / decode) / scale
    spans = [Busy(0.0, 5.0, work_s) for _ in range(actors)]
    found = slowdown(spans, [Busy(2.0, 5.0, 3.0 * beside / learn)], cores, scale)
    assert found.decoding == pytest.approx(decode)
    assert found.learning == pytest.approx(learn)
    assert found.scale is None
    assert slowdown([Busy(0.0, 2.0, 2.0 * alone / scale)] * actors, [], cores).scale == pytest.approx(scale)


def test_nothing_is_said_where_nothing_was_beside() -> None:
    after = slowdown([Busy(0.0, 2.0, 1.0)], [Busy(2.0, 3.0, 1.0)], 2, scale=2.0)
    assert (after.scale, after.decoding, after.learning) == (2.0, None, None)
    assert slowdown([], [Busy(0.0, 1.0, 1.0)], 2) == slowdown([], [], 2)
    assert slowdown([Busy(0.0, 9.0, 1.0)], [Busy(0.0, 9.0, 1.0)], 2, scale=1.0).decoding == MOST


def test_passes_count_at_equal_batch_with_drafts_and_without() -> None:
    latency = solver.LatencyModel("mine", 1, base_s=0.01, per_response_s=1e-3)
    plain = {"phase": "decode", "start_s": 0.0, "end_s": 1.0, "batch_mean": 4.0, "tokens": 40, "kv_tokens": 0.0, "detail": None}
    drafted = {**plain, "tokens": 80, "detail": '{"fed_tokens": 120, "drafted": 80, "accepted": 40}'}
    (one,), (two,) = decoded([plain], latency), decoded([drafted, {**plain, "phase": "prefill"}], latency)
    assert one.alone_s == pytest.approx(10 * 0.014)
    assert two.alone_s == pytest.approx(10 * 0.022), "8 more tokens a pass"
