"""Draft lengths per response: estimates follow what was accepted, decisions hold for some passes, memory is never exceeded."""

from __future__ import annotations

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

import solver
from rlhfless.engine.common.draft_lengths import (
    DECISION_PASSES,
    FIRST_TOKENS,
    SAMPLE_RESPONSES,
    DraftLengths,
    shortened,
)
from solver.model.drafting import Drafting
from solver.model.errors import PlanningError
from solver.model.iteration_table import IterationTable

LATENCY = solver.LatencyModel("x", 1, base_s=5e-3, per_response_s=1e-4)
MOST = 4


def adaptive(length: str | int = "adaptive", latency: solver.LatencyModel = LATENCY) -> DraftLengths:
    return DraftLengths(Drafting(max_draft_tokens=MOST, length=length), latency)


def passes(lengths: DraftLengths, batch: list[int], room: list[int], count: int) -> list[list[int]]:
    """The drafted tokens of so many passes, of which nothing is observed."""
    drafted = []
    for _ in range(count):
        drafted.append(lengths.next(batch, room, [50] * len(batch)))
        lengths.ran()
    return drafted


def drafts(seed: int, rates: list[float], passes: int) -> list[int]:
    """Accepted tokens of drafts of MOST tokens, each of which is accepted in these shares if it was right so far."""
    draws = np.random.default_rng(seed).random((passes, MOST)) < rates
    return np.where(draws.all(axis=1), MOST, draws.argmin(axis=1)).tolist()


def test_a_fixed_length_is_limited_by_room_only() -> None:
    fixed = adaptive(3)
    fixed.start(5)
    fixed.observe([5], [3], [0])
    assert fixed.next([5, 6, 7], [10, 2, 0], [50, 50, 50]) == [3, 2, 0]


def test_the_estimate_approaches_the_shares_of_accepted_drafts() -> None:
    learning, rates = adaptive(), [0.9, 0.5, 0.5, 0.2]
    learning.start(0)
    for accepted in drafts(1, rates, 5_000):
        learning.observe([0], [MOST], [accepted])
    assert learning.survival([0])[0] == pytest.approx(np.cumprod(rates), abs=0.02)


def test_passes_without_drafts_are_known_in_advance() -> None:
    """Skipping them leaves the same lengths as asking for each of them, while the batch shrinks until drafts pay."""
    latency = solver.LatencyModel("x", 1, base_s=5e-3, per_response_s=5e-3)
    asking, skipping = adaptive(latency=latency), adaptive(latency=latency)
    names = list(range(10))
    for one in (asking, skipping):
        for name in names:
            one.start(name)
            for _ in range(40):
                one.observe([name], [MOST], [1])

    def batch(at: int) -> list[int]:
        return names[: 10 - at // 40]

    seen = []
    for at in range(400):
        seen.append(asking.next(batch(at), [99] * len(batch(at)), [100] * len(batch(at))))
        asking.ran()
    at = skipped = 0
    while at < 400:
        size = len(batch(at))
        undrafted = min(skipping.undrafted_passes(batch(at), 100 * size), 40 - at % 40)
        assert not any(map(any, seen[at : at + undrafted]))
        skipping.ran(undrafted)
        at, skipped = at + undrafted, skipped + undrafted
        if not undrafted:
            assert skipping.next(batch(at), [99] * size, [100] * size) == seen[at]
            skipping.ran()
            at += 1
    assert 0 < skipped < 400
    assert adaptive(0).undrafted_passes(names, 1200) > 400
    assert adaptive(2).undrafted_passes(names, 1200) == 0


def test_a_sample_of_the_batch_drafts_until_something_is_known() -> None:
    """Each fed token takes a hundredth of a pass, so nothing would be drafted for 100 responses that accept 4 in 10."""
    latency = solver.LatencyModel("x", 1, base_s=0.0, per_response_s=1e-4)
    learning, batch, count = adaptive(latency=latency), list(range(100)), 0
    for response in batch:
        learning.start(response)
    verified = 0
    while verified < FIRST_TOKENS:
        lengths = learning.next(batch, [9] * 100, [50] * 100)
        places = [response for response, length in enumerate(lengths) if length]
        assert places == [k * 100 // SAMPLE_RESPONSES for k in range(SAMPLE_RESPONSES)]
        assert {lengths[place] for place in places} == {1}
        learning.observe(batch, lengths, [0] * 100)
        learning.ran()
        verified += SAMPLE_RESPONSES
        count += 1
    assert count == FIRST_TOKENS // SAMPLE_RESPONSES
    assert not any(learning.next(batch, [9] * 100, [50] * 100))


def test_short_drafts_do_not_bias_the_estimate() -> None:
    learning, rates = adaptive(), [0.8, 0.8, 0.8, 0.8]
    learning.start(0)
    for k, accepted in enumerate(drafts(2, rates, 5_000)):
        drafted = 1 + k % MOST
        learning.observe([0], [drafted], [min(accepted, drafted)])
    assert learning.survival([0])[0] == pytest.approx(np.cumprod(rates), abs=0.03)


def test_a_response_begins_with_what_its_prompt_accepts_and_others_with_what_all_accept() -> None:
    learning = adaptive()
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


def test_a_batch_is_decided_anew_after_some_passes_or_when_it_changes() -> None:
    learning = adaptive(latency=solver.LatencyModel("x", 1, base_s=5e-3, per_response_s=4e-3))
    for response in (0, 1):
        learning.start(response)
        for _ in range(30):
            learning.observe([response], [MOST], [MOST])
    first = passes(learning, [0, 1], [9, 9], 1)
    assert first == [[MOST, MOST]]
    for _ in range(300):
        learning.observe([0], [MOST], [0])
        learning.observe([1], [MOST], [0])
    held = passes(learning, [0, 1], [9, 9], DECISION_PASSES - 1)
    assert held == first * (DECISION_PASSES - 1)
    assert passes(learning, [0, 1], [9, 9], 1) == [[0, 0]]
    for _ in range(9_000):
        learning.observe([0], [MOST], [MOST])
        learning.observe([1], [MOST], [MOST])
    assert learning.next([0, 1], [9, 9], [50, 50]) == [0, 0]
    learning.start(2)
    assert learning.next([0, 1, 2], [9, 1, 9], [50, 50, 50])[:2] == [MOST, 1]


def test_drafts_are_cut_to_the_tokens_that_a_pass_may_feed() -> None:
    table = IterationTable([1, 8, 12], [1, 1000], [[1e-3, 1e-3]] * 3)
    latency = solver.LatencyModel("x", 1, base_s=1e-3, per_response_s=0.0, table=table, max_batch=8)
    fixed = adaptive(4, latency)
    assert fixed.next([0, 1, 2], [9, 9, 9], [50, 50, 50]) == [3, 3, 3]
    assert fixed.next([0, 1, 2], [9, 1, 9], [50, 50, 50], max_fed_tokens=8) == [2, 1, 2]


def test_critical_lengths_need_remaining_lengths() -> None:
    learning = adaptive("critical")
    learning.start(0)
    with refused(PlanningError, "critical", "predictor"):
        learning.next([0], [9], [50])


def test_drafters_of_vllm_have_a_fixed_length() -> None:
    assert Drafting("vllm-ngram", length=4).vllm_method == "ngram"
    assert Drafting("suffix").vllm_method is None
    with refused(PlanningError, "'vllm-suffix'", "adaptive", "number of tokens"):
        Drafting("vllm-suffix")
    with refused(PlanningError, "'eagle'", "'suffix'", "'vllm-ngram'", "draft"):
        Drafting("eagle")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=8), st.integers(-3, 40))
def test_shortened_drafts_fit_and_keep_the_short_ones(lengths: list[int], tokens: int) -> None:
    kept = shortened(lengths, tokens)
    assert sum(kept) == min(sum(lengths), max(tokens, 0))
    cut = [after for before, after in zip(lengths, kept, strict=True) if after < before]
    assert all(after >= max(cut, default=0) - 1 for after in cut)
    assert all(after <= before for before, after in zip(lengths, kept, strict=True))
    assert max(kept, default=0) <= min(cut, default=99) + 1
