"""expected_tokens: lengths that are only lower bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.predict import expected_tokens

logs = st.lists(st.tuples(st.integers(0, 60), st.booleans()), min_size=1, max_size=25)


def test_complete_lengths_are_themselves_up_to_the_limit() -> None:
    assert expected_tokens([3, 40, 9], [True] * 3, 20).tolist() == [3, 20, 9]


def test_a_response_cut_off_by_the_limit_in_force_counts_with_its_length() -> None:
    assert expected_tokens([3, 20], [True, False], 20).tolist() == [3, 20]


def test_a_response_cut_off_earlier_is_expected_to_go_on_like_the_others_that_got_so_far() -> None:
    """After 10, the two complete responses that got further took 20 and 40: 30 on average, 25 under a limit of 30."""
    assert expected_tokens([5, 10, 20, 40], [True, False, True, True], 100)[1] == pytest.approx(30)
    assert expected_tokens([5, 10, 20, 40], [True, False, True, True], 30)[1] == pytest.approx(25)


def test_nothing_is_added_where_nothing_was_seen_to_go_on() -> None:
    assert expected_tokens([5, 10, 10], [True, False, False], 1000).tolist() == [5, 10, 10]
    assert expected_tokens([7], [False], 1000).tolist() == [7]


@given(logs, st.integers(1, 80))
def test_expectations_lie_between_the_lower_bound_and_the_limit(log: list, limit: int) -> None:
    tokens, complete = (np.array(side) for side in zip(*log, strict=True))
    expected = expected_tokens(tokens, complete, limit)
    assert np.all(expected >= np.minimum(tokens, limit) - 1e-9)
    assert np.all(expected <= limit)
    assert np.all(expected <= max(tokens.max(), 0) + 1e-9)


@given(logs)
def test_expectations_grow_with_the_limit(log: list) -> None:
    tokens, complete = (np.array(side) for side in zip(*log, strict=True))
    by_limit = [expected_tokens(tokens, complete, limit) for limit in (10, 30, 100)]
    assert np.all(np.diff(by_limit, axis=0) >= -1e-9)
