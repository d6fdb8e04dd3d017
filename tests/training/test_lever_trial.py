"""Levers that are chosen by counted costs: losers are left out after a step, winners stay, and both are tried again."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.training.lever_trial import FIRST_WAIT, LEAST_SAVING, LeverTrial


def steps_of(lever: LeverTrial, cost_with: Callable[[int], float], steps: int) -> list[bool]:
    """The states of a lever over steps whose cost without it is 1."""
    states = []
    for step in range(steps):
        states.append(lever.choose())
        lever.note(states[-1], cost_with(step) if states[-1] else 1.0)
    return states


@given(st.floats(1.0, 3.0), st.integers(2, 110))
@settings(max_examples=30)
def test_a_lever_whose_price_is_above_its_gain_is_left_out_and_tried_again_ever_more_rarely(cost: float, steps: int) -> None:
    lever = LeverTrial("drafts")
    states = steps_of(lever, lambda step: cost, steps)
    tried = [step for step, used in enumerate(states) if used]
    assert not lever.on
    assert tried == [step for step in (1, 2 + FIRST_WAIT, 3 + 3 * FIRST_WAIT) if step < steps]


@given(st.floats(0.2, 1.0 - LEAST_SAVING - 0.01), st.integers(8, 60))
@settings(max_examples=30)
def test_a_lever_that_pays_is_used_but_for_controls(cost: float, steps: int) -> None:
    lever = LeverTrial("drafts")
    states = steps_of(lever, lambda step: cost, steps)
    assert lever.on
    assert lever.saving is not None
    assert abs(lever.saving - (1.0 - cost)) < 1e-9
    assert states.count(False) <= 1 + steps // FIRST_WAIT


def test_a_lever_that_begins_to_pay_is_found_and_one_that_stops_is_dropped() -> None:
    later = LeverTrial("drafts")
    steps_of(later, lambda step: 1.2 if step < 10 else 0.8, 2 * FIRST_WAIT)
    assert later.on
    steps_of(later, lambda step: 1.2, 3 * FIRST_WAIT)
    assert not later.on


def test_one_lucky_step_is_not_enough() -> None:
    lever = LeverTrial("drafts")
    states = steps_of(lever, lambda step: 0.9 if step == 1 else 1.3, 12)
    assert states == [False, True, True, *[False] * 9]


def test_what_cannot_save_or_may_not_be_tried_is_not_used() -> None:
    lever = LeverTrial("pieces")
    lever.note(False, 1.0)
    assert not lever.choose(can_save=False)
    assert not lever.choose(may_try=False)
    assert lever.choose()
