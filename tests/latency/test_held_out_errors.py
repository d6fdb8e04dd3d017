"""Stated errors hold: of equally likely orders, an unseen error is within the stated one in at least 9 of 10."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.latency.held_out_errors import error_of_most, errors_in_words


@settings(max_examples=50)
@given(errors=st.lists(st.floats(0, 10), min_size=10, max_size=60))
def test_whichever_error_is_unseen_nine_of_ten_are_within_what_the_others_state(errors):
    values = np.array(errors)
    within = [values[i] <= error_of_most(np.delete(values, i)) for i in range(len(values))]
    assert np.mean(within) >= 0.9


def test_the_ninetieth_percentile_would_be_too_small():
    values = np.arange(25.0)
    within = [values[i] <= np.quantile(np.delete(values, i), 0.9) for i in range(25)]
    assert np.mean(within) < 0.9


@pytest.mark.parametrize("count", [1, 2, 8])
def test_few_errors_state_no_range(count):
    assert error_of_most(np.ones(count)) is None
    assert f"{count} are too few for a range that holds for 9 of 10" in errors_in_words(np.ones(count))


def test_nine_errors_state_the_largest():
    errors = np.arange(1, 10) / 100
    assert error_of_most(errors) == 0.09
    assert errors_in_words(errors) == "median 5.0%, 9 of 10 within 9.0%, largest 9.0%"
