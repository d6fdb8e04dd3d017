"""A draft length per response: against trying all lengths, monotone in the batch and in survival, and longer on the critical
path."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from error_messages import refused

from solver import IterationTable, LatencyModel, PlanningError, choose_lengths, critical_lengths
from solver.timing.draft_length import DRAFT_CALL_S, DRAFT_TOKEN_S

AFFINE = LatencyModel("x", 1, base_s=5.6e-3, per_response_s=2.2e-5, per_kv_token_s=2.5e-8, max_batch=2048)


def _survival(rng: np.random.Generator, batch: int, positions: int) -> np.ndarray:
    shares = -np.sort(-rng.uniform(0, 1, (batch, positions)), axis=1)
    return np.round(shares, int(rng.integers(1, 8)))  # some are equal, some are 0


def _pass_s(latency: LatencyModel, fed: np.ndarray, drafted: np.ndarray, kv_tokens: float) -> np.ndarray:
    return np.asarray(latency.iteration_s(fed, kv_tokens) + (drafted > 0) * DRAFT_CALL_S + DRAFT_TOKEN_S * drafted)


def test_no_other_lengths_take_less_time_per_token() -> None:
    rng = np.random.default_rng(1)
    for _ in range(1000):
        batch, positions = (int(rng.integers(1, 5)) for _ in range(2))
        rows = np.sort(rng.uniform(1e-3, 1e-2, (6, 1)), axis=0) * rng.uniform(0.9, 1.1, (6, 1))
        table = IterationTable([1, 2, 4, 8, 14, 20], [1, 100, 4000], rows + np.sort(rng.uniform(0, 1e-2, (6, 3))))
        latency = LatencyModel("x", 1, 5e-3, 1e-4, max_batch=4, table=table if rng.random() < 0.7 else None)
        survival, kv_tokens = _survival(rng, batch, positions), float(rng.uniform(0, 3000) * batch)
        limit = int(rng.integers(batch, 21)) if rng.random() < 0.3 else None
        all_lengths = np.array(list(itertools.product(range(positions + 1), repeat=batch)))
        drafted = all_lengths.sum(axis=1)
        fit = drafted <= (20 if limit is None else limit) - batch
        all_lengths = all_lengths[fit & (all_lengths <= np.count_nonzero(survival, axis=1)).all(axis=1)]
        drafted = all_lengths.sum(axis=1)
        expected = np.concatenate([np.zeros((batch, 1)), survival.cumsum(axis=1)], axis=1)
        tokens = batch + expected[np.arange(batch), all_lengths].sum(axis=1)
        seconds = _pass_s(latency, batch + drafted, drafted, kv_tokens) / tokens
        lengths = choose_lengths(latency, survival, kv_tokens, max_fed_tokens=limit)
        chosen = (all_lengths == lengths).all(axis=1)
        assert chosen.sum() == 1
        assert seconds[chosen][0] == pytest.approx(seconds.min(), rel=1e-12)
        assert seconds[chosen][0] < seconds[0] if lengths.any() else seconds.min() >= seconds[0] * (1 - 1e-12)


def test_lengths_fall_with_the_batch_and_rise_with_survival() -> None:
    rng = np.random.default_rng(2)
    for _ in range(100):
        one = _survival(rng, 1, 8)
        by_batch = [choose_lengths(AFFINE, np.tile(one, (2**k, 1)), 500 * 2**k).sum() / 2**k for k in range(11)]
        assert by_batch == sorted(by_batch, reverse=True)
        batch = int(rng.integers(1, 65))
        less = _survival(rng, batch, 8)
        more = less ** rng.uniform(0.2, 1)
        for k in range(batch):
            alone = less.copy()
            alone[k] = more[k]
            assert choose_lengths(AFFINE, alone, 500 * batch)[k] >= choose_lengths(AFFINE, less, 500 * batch)[k]


def test_with_equal_shares_the_first_responses_draft_more() -> None:
    latency = LatencyModel("x", 1, base_s=5e-3, per_response_s=1e-4)
    alike = np.tile([0.9, 0.8, 0.7], (4, 1))
    assert choose_lengths(latency, alike, 0).tolist() == [3, 3, 3, 3]
    assert choose_lengths(latency, alike, 0, max_fed_tokens=10).tolist() == [2, 2, 1, 1]
    assert choose_lengths(latency, alike, 0, max_fed_tokens=4).tolist() == [0, 0, 0, 0]


def test_no_response_and_no_position_draft_nothing() -> None:
    assert choose_lengths(AFFINE, np.zeros((0, 4)), 0).shape == (0,)
    assert critical_lengths(AFFINE, np.zeros((0, 4)), [], []).shape == (0,)
    assert choose_lengths(AFFINE, np.zeros((3, 0)), 100).tolist() == [0, 0, 0]
    assert critical_lengths(AFFINE, np.zeros((3, 0)), [5, 6, 7], [1, 1, 1]).tolist() == [0, 0, 0]


def test_reading_kv_for_each_fed_token_makes_drafts_shorter() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        survival = _survival(rng, 32, 8)
        once, each = (choose_lengths(AFFINE, survival, 32 * 4000, kv_reads=reads) for reads in ("once", "each"))
        assert each.sum() <= once.sum()
    latency = LatencyModel("x", 1, base_s=1e-3, per_response_s=1e-6, per_kv_token_s=1e-6)
    assert choose_lengths(latency, np.array([[0.6]]), 10_000).tolist() == [1]
    assert choose_lengths(latency, np.array([[0.6]]), 10_000, kv_reads="each").tolist() == [0]


def test_critical_responses_never_draft_less_and_others_draft_the_same() -> None:
    rng = np.random.default_rng(4)
    longer = 0
    for _ in range(200):
        batch = int(rng.integers(2, 33))
        survival = _survival(rng, batch, 8)
        remaining, context = rng.integers(0, 1000, batch), rng.integers(1, 2000, batch)
        limit = int(rng.integers(batch, 12 * batch))
        adaptive = choose_lengths(AFFINE, survival, context.sum(), max_fed_tokens=limit)
        critical = critical_lengths(AFFINE, survival, remaining, context, max_fed_tokens=limit)
        assert (critical >= adaptive).all()
        assert critical.sum() + batch <= max(limit, batch)
        passes = remaining / (1 + np.array([row[:n].sum() for row, n in zip(survival, adaptive, strict=True)]))
        assert (critical == adaptive)[passes < np.quantile(passes, 0.75)].all()
        longer += int((critical > adaptive).any())
    assert longer > 20


def test_one_long_response_is_drafted_for_alone() -> None:
    latency = LatencyModel("x", 1, base_s=1e-2, per_response_s=1e-3)
    alike = np.tile([0.4, 0.15], (8, 1))
    assert not choose_lengths(latency, alike, 400).any()
    assert critical_lengths(latency, alike, [100, 900, *[100] * 6], [50] * 8).tolist() == [0, 2, 0, 0, 0, 0, 0, 0]
    assert not critical_lengths(latency, np.zeros((8, 2)), [900] * 8, [50] * 8).any()


HALF = np.full((2, 2), 0.5)
WRONG: dict[str, tuple[Any, tuple[str, ...]]] = {
    "one axis": (lambda: choose_lengths(AFFINE, np.array([0.5]), 10), ("(1,)", "row per response")),
    "above one": (lambda: choose_lengths(AFFINE, np.array([[0.5], [1.5]]), 10), ("response 1", "position 1", "1.5")),
    "not a number": (lambda: choose_lengths(AFFINE, np.array([[math.nan]]), 10), ("response 0", "nan")),
    "rising": (lambda: choose_lengths(AFFINE, np.array([[0.5, 0.6]]), 10), ("response 0", "0.5 at position 1", "0.6")),
    "remaining": (lambda: critical_lengths(AFFINE, HALF, [1], [1, 1]), ("remaining_tokens", "2 responses")),
    "context": (lambda: critical_lengths(AFFINE, HALF, [1, 1], [1, -1]), ("context_tokens", "2 responses")),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_one_sentence(case: str) -> None:
    make, named = WRONG[case]
    with refused(PlanningError, *named):
        make()
