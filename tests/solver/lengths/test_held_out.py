"""What a choice saves on scenarios that it was not made on, and when that is sure."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.lengths.held_out import OnHeldOut, held_out

differences = st.lists(st.floats(-3, 3), min_size=2, max_size=12).map(np.array)


def on_held_out(values: np.ndarray) -> OnHeldOut:
    """One plan, whatever is seen."""
    return lambda half: values[1 - half :: 2]


@pytest.mark.parametrize(
    ("values", "sure"),
    [([-1.0, -1.1, -0.9, -1.0], True), ([-3.0, 1.0, 1.0, -1.0], False), ([0.0] * 4, False), ([0.1] * 4, False)],
)
def test_a_saving_is_sure_beyond_two_standard_errors_and_never_when_there_is_none(values: list[float], sure: bool) -> None:
    assert held_out(on_held_out(np.array(values)), on_held_out(np.zeros(4)), errors=2).is_sure == sure


@given(differences, st.floats(0, 3))
def test_it_is_the_paired_test_of_all_scenarios(saved: np.ndarray, errors: float) -> None:
    rng = np.random.default_rng(0)
    other = rng.uniform(1, 9, len(saved))
    found = held_out(on_held_out(other - saved), on_held_out(other), errors)
    assert found.mean == pytest.approx(saved.mean(), abs=1e-12)
    assert found.error == pytest.approx(saved.std(ddof=1) / np.sqrt(len(saved)), abs=1e-12)
    if abs(saved.mean() - errors * found.error) > 1e-9:
        assert found.is_sure == (saved.mean() > errors * found.error)


def test_what_is_chosen_on_a_half_is_compared_on_the_other_half() -> None:
    """Each of two plans is good on one half only. The one that looks best there is bad where it is not seen."""
    values = np.array([[0.0, 9.0, 0.0, 9.0], [9.0, 0.0, 9.0, 0.0], [1.0, 1.0, 1.0, 1.0]])

    def best_of_two(half: int) -> np.ndarray:
        return values[int(values[:2, half::2].mean(axis=1).argmin()), 1 - half :: 2]

    found = held_out(best_of_two, on_held_out(values[2]), errors=0)
    assert (found.mean, found.is_sure) == (-8.0, False)
