"""Draft lengths per response: estimates follow what was accepted, decisions hold for 16 passes, memory is never exceeded."""

from __future__ import annotations

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

import solver
from rlhfless.engine.common.draft_control import DECISION_PASSES, PROBES, TRIALS, DraftControl, shortened
from solver.model.drafting import Drafting
from solver.model.errors import PlanningError
from solver.model.iteration_table import IterationTable

LATENCY = solver.LatencyModel("x", 1, base_s=5e-3, per_response_s=1e-4)
MOST = 4


def control(length: str | int = "adaptive", latency: solver.LatencyModel = LATENCY) -> DraftControl:
    return DraftControl(Drafting(max_draft_tokens=MOST, length=length), latency)


def drafts(seed: int, rates: list[float], passes: int) -> list[int]:
    """Accepted tokens of drafts of MOST tokens, each of which is accepted in these shares if it was right so far."""
    draws = np.random.default_rng(seed).random((passes, MOST)) < rates
    return np.where(draws.all(axis=1), MOST, draws.argmin(axis=1)).tolist()


def test_a_fixed_length_is_limited_by_room_only() -> None:
    fixed = control(3)
    fixed.start(5)
    fixed.observe([5], [3], [0])
    assert fixed.lengths([5, 6, 7], [10, 2, 0], [50, 50, 50]) == [3, 2, 0]


def test_the_estimate_approaches_the_shares_of_accepted_drafts() -> None:
    learning, rates = control(), [0.9, 0.5, 0.5, 0.2]
    learning.start(0)
    for accepted in drafts(1, rates, 5_000):
        learning.observe([0], [MOST], [accepted])
    assert learning.survival([0])[0] == pytest.approx(np.cumprod(rates), abs=0.02)


def test_passes_without_drafts_are_known_in_advance() -> None:
    """Skipping them leaves the same lengths as asking for each of them, also where trials end them."""
    asking, skipping = control(), control()
    names, seen, skipped = list(range(12)), [], 0
    for one in (asking, skipping):
        for name in names:
            one.start(name)
            for _ in range(40):
                one.observe([name], [MOST], [0])

    def try_drafts(one: DraftControl) -> None:
        for place in one.trials(12):
            for _ in range(40):
                one.observe([place], [MOST], [MOST])

    for _ in range(400):
        seen.append(asking.lengths(names, [99] * 12, [100] * 12))
        try_drafts(asking)
    at = 0
    while at < 400:
        passes = min(skipping.undrafted_passes(names, 1200), 400 - at)
        assert not any(map(any, seen[at : at + passes]))
        skipping.skip(passes)
        at, skipped = at + passes, skipped + passes
        if at < 400 and not passes:
            assert skipping.lengths(names, [99] * 12, [100] * 12) == seen[at]
            at += 1
        try_drafts(skipping)
    assert 0 < skipped < 400
    assert control(0).undrafted_passes(names, 1200) > 400
    assert control(2).undrafted_passes(names, 1200) == 0


def test_measured_passes_that_cost_more_than_the_profile_says_draft_less() -> None:
    by_profile, measuring = control(), control()
    for one in (by_profile, measuring):
        for name in range(8):
            one.start(name)
            for accepted in drafts(name, [0.6] * MOST, 50):
                one.observe([name], [MOST], [accepted])
    for drafted in (0, 8, 16) * 20:
        measuring.observe_seconds(8, 800, drafted, 7e-3 + 12e-4 * drafted)
    (more, less) = (sum(one.lengths(range(8), [99] * 8, [100] * 8)) for one in (by_profile, measuring))
    assert more > less


def test_lengths_are_decided_early_where_time_is_measured() -> None:
    """Four passes after the first measured one; a control that measures nothing waits for 16."""
    changes = {}
    for measuring in (True, False):
        one, seen = control(latency=solver.LatencyModel("x", 1, base_s=5e-3, per_response_s=2.2e-3)), []
        one.start(0)
        for k in range(20):
            seen += one.lengths([0], [99], [50])
            one.observe([0], [MOST], [MOST if k < 10 else 0])
            if measuring:
                one.observe_seconds(1, 50, seen[-1], 7.2e-3 + 2.2e-3 * seen[-1])
        changes[measuring] = [k for k in range(1, 20) if seen[k] != seen[k - 1]]
    assert min(changes[True]) == 5
    assert min(changes[False]) == DECISION_PASSES


def test_short_drafts_do_not_bias_the_estimate() -> None:
    learning, rates = control(), [0.8, 0.8, 0.8, 0.8]
    learning.start(0)
    for k, accepted in enumerate(drafts(2, rates, 5_000)):
        drafted = 1 + k % MOST
        learning.observe([0], [drafted], [min(accepted, drafted)])
    assert learning.survival([0])[0] == pytest.approx(np.cumprod(rates), abs=0.03)


def test_a_response_begins_with_what_its_prompt_accepts_and_others_with_what_all_accept() -> None:
    learning = control()
    for response, prompt in ((0, "a"), (1, "a"), (2, "b"), (3, "b"), (4, None)):
        learning.start(response, prompt)
    for response, rate in ((0, 0.95), (2, 0.5)):
        for accepted in drafts(response, [rate] * MOST, 200):
            learning.observe([response], [MOST], [accepted])
    good, bad, unknown = learning.survival([0, 1, 2, 3, 4])[[1, 3, 4], 0]
    assert bad < 0.6 < unknown < 0.85 < good
    learning.remove(0)
    assert learning.survival([1, 2, 3, 4])[0, 0] == pytest.approx(good, abs=0.02), "what it left is kept for its siblings"
    learning.remove(1)
    learning.remove(2)
    learning.start(9, "a")
    assert learning.survival([9])[0, 0] < 0.8, "the prompt is forgotten with its last response"


def test_a_batch_is_decided_anew_after_16_passes_or_when_it_changes() -> None:
    learning = control(latency=solver.LatencyModel("x", 1, base_s=5e-3, per_response_s=4e-3))
    for response in (0, 1):
        learning.start(response)
        for _ in range(30):
            learning.observe([response], [MOST], [MOST])
    first = learning.lengths([0, 1], [9, 9], [50, 50])
    assert first == [MOST, MOST]
    for _ in range(300):
        learning.observe([0], [MOST], [0])
        learning.observe([1], [MOST], [0])
    held = [learning.lengths([0, 1], [9, 9], [50, 50]) for _ in range(DECISION_PASSES - 1)]
    assert held == [first] * (DECISION_PASSES - 1)
    assert learning.lengths([0, 1], [9, 9], [50, 50]) == [0, 0]
    for _ in range(9_000):
        learning.observe([0], [MOST], [MOST])
        learning.observe([1], [MOST], [MOST])
    assert learning.lengths([0, 1], [9, 9], [50, 50]) == [0, 0]
    learning.start(2)
    assert learning.lengths([0, 1, 2], [9, 1, 9], [50, 50, 50])[:2] == [MOST, 1]


def test_drafts_are_tried_now_and_then_where_they_do_not_seem_to_pay() -> None:
    """Each fed token takes a hundredth of a pass, so 100 responses draft nothing until what they would accept is known."""
    latency = solver.LatencyModel("x", 1, base_s=0.0, per_response_s=1e-4)
    learning, batch = control(latency=latency), list(range(100))
    for response in batch:
        learning.start(response)
    tried = []
    for _ in range(4 * DECISION_PASSES):
        assert not any(learning.lengths(batch, [9] * 100, [50] * 100))
        tried.append(learning.trials(100))
    due = [k for k, places in enumerate(tried) if places]
    assert due == [DECISION_PASSES * k - 1 for k in range(1, 5)]
    assert [tried[k] for k in due[:2]] == [[0, 25, 50, 75], [1, 26, 51, 76]]
    assert control(2).trials(100) == []


def test_the_price_of_drafts_is_measured_where_only_it_speaks_against_them() -> None:
    """By the profile a drafted token costs as much as any. Here it costs a fifth of that, which a few passes find out."""
    latency = solver.LatencyModel("x", 1, base_s=0.0, per_response_s=1e-4)

    def drafted(price_s: float, affords: bool = True) -> list[int]:
        learning, batch, fed = control(latency=latency), list(range(32)), []
        learning.affords = lambda responses, saved_s: affords
        for response in batch:
            learning.start(response)
            if response < TRIALS:
                learning.observe([response], [MOST], [MOST])
        for _ in range(200):
            lengths = learning.lengths(batch, [9] * 32, [50] * 32)
            fed.append(sum(lengths))
            learning.observe(batch, lengths, lengths)
            learning.observe_seconds(32, 1600, fed[-1], 3.2e-3 + price_s * fed[-1])
        return fed

    cheap, dear, unread = drafted(2e-5), drafted(4e-4), drafted(2e-5, affords=False)
    assert cheap[0] == 0
    assert cheap[-1] == 32 * MOST
    assert 0 < sum(map(bool, dear)) <= PROBES + DECISION_PASSES
    assert dear[-1] == 0
    assert max(unread) <= TRIALS * MOST, "what has to be read first is not paid by them"


def test_trials_take_a_limited_share_of_measured_time() -> None:
    learning = control()
    learning.start(0)
    assert learning.new_trials() == TRIALS, "nothing is measured"
    learning.observe_seconds(1, 50, 0, 0.5)
    assert learning.new_trials() == 1
    learning.observe_trials(0.02)
    assert learning.new_trials() == 0
    learning.observe_seconds(1, 50, 0, 2.0)
    assert learning.new_trials() == 1


def test_responses_that_draft_need_no_trial() -> None:
    learning = control()
    learning.start(0)
    for _ in range(2 * DECISION_PASSES):
        assert learning.lengths([0], [9], [50]) == [MOST]
        assert learning.trials(1) == []


def test_drafts_are_cut_to_the_tokens_that_a_pass_may_feed() -> None:
    table = IterationTable([1, 8, 12], [1, 1000], [[1e-3, 1e-3]] * 3)
    latency = solver.LatencyModel("x", 1, base_s=1e-3, per_response_s=0.0, table=table, max_batch=8)
    fixed = control(4, latency)
    assert fixed.lengths([0, 1, 2], [9, 9, 9], [50, 50, 50]) == [3, 3, 3]
    assert fixed.lengths([0, 1, 2], [9, 1, 9], [50, 50, 50], max_fed_tokens=8) == [2, 1, 2]


def test_critical_lengths_need_remaining_lengths() -> None:
    learning = control("critical")
    learning.start(0)
    with refused(PlanningError, "critical", "predictor"):
        learning.lengths([0], [9], [50])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=8), st.integers(-3, 40))
def test_shortened_drafts_fit_and_keep_the_short_ones(lengths: list[int], tokens: int) -> None:
    kept = shortened(lengths, tokens)
    assert sum(kept) == min(sum(lengths), max(tokens, 0))
    cut = [after for before, after in zip(lengths, kept, strict=True) if after < before]
    assert all(after >= max(cut, default=0) - 1 for after in cut)
    assert all(after <= before for before, after in zip(lengths, kept, strict=True))
    assert max(kept, default=0) <= min(cut, default=99) + 1
