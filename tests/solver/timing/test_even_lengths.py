"""Draft lengths with which a batch finishes together: against trying all lengths, and what they do for stragglers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from error_messages import refused

from solver import LatencyModel, PlanningError
from solver.model.iteration_table import IterationTable
from solver.timing.draft_length import DRAFT_CALL_S, DRAFT_TOKEN_S
from solver.timing.even_lengths import EVENNESS, LEAST_SAVING, even_lengths

AFFINE = LatencyModel("x", 1, base_s=5.6e-3, per_response_s=2.2e-5, per_kv_token_s=2.5e-8, max_batch=2048)


def objective(
    latency: LatencyModel, survival: np.ndarray, kv_tokens: float, left: np.ndarray | None, lengths: np.ndarray
) -> float:
    """The seconds of a pass times the power mean of the passes that responses still need."""
    left = np.ones(len(survival)) if left is None else left
    drafted = int(lengths.sum())
    tokens = 1 + np.array([row[:n].sum() for row, n in zip(survival, lengths, strict=True)])
    pass_s = float(latency.iteration_s(len(survival) + drafted, kv_tokens)) + (drafted > 0) * DRAFT_CALL_S
    return (pass_s + DRAFT_TOKEN_S * drafted) * float(np.mean((left / tokens) ** EVENNESS)) ** (1 / EVENNESS)


def test_no_other_lengths_have_a_lower_objective() -> None:
    rng, drafted = np.random.default_rng(2), 0
    for _ in range(400):
        batch, positions = (int(rng.integers(1, 4)) for _ in range(2))
        seconds = np.sort(rng.uniform(1e-3, 1e-2, (6, 1)), axis=0) * np.ones((1, 2))
        table = IterationTable([1, 2, 4, 8, 14, 20], [1, 4000], seconds)
        latency = LatencyModel("x", 1, 5e-3, 1e-4, max_batch=4, table=table if rng.random() < 0.7 else None)
        survival, kv_tokens = -np.sort(-rng.uniform(0, 1, (batch, positions)), axis=1), float(rng.uniform(0, 3000))
        left = rng.uniform(1, 50, batch) if rng.random() < 0.5 else None
        limit = int(rng.integers(batch, 12)) if rng.random() < 0.3 else None
        chosen = even_lengths(latency, survival, kv_tokens, left, max_fed_tokens=limit)
        others = np.array(list(itertools.product(range(positions + 1), repeat=batch)))
        others = others[others.sum(axis=1) <= (20 if limit is None else limit) - batch]
        best = min(objective(latency, survival, kv_tokens, left, lengths) for lengths in others)
        assert batch + chosen.sum() <= (20 if limit is None else limit)
        undrafted = objective(latency, survival, kv_tokens, left, np.zeros(batch, np.int64))
        least = best if best <= (1 - LEAST_SAVING) * undrafted else undrafted
        assert objective(latency, survival, kv_tokens, left, chosen) == pytest.approx(least, rel=1e-9)
        drafted += chosen.any()
    assert 100 < drafted < 300


def test_who_accepts_less_is_drafted_for_before_who_ends_early_anyway() -> None:
    survival = np.array([[0.9, 0.8, 0.7, 0.6], *[[0.5, 0.3, 0.2, 0.1]] * 31])
    chosen = even_lengths(AFFINE, survival, 32 * 500)
    assert chosen[0] < chosen[1]
    assert len(set(chosen[1:].tolist())) == 1


def test_the_longest_is_drafted_for_and_who_is_done_is_not() -> None:
    survival = np.tile([0.5, 0.3, 0.2, 0.1], (64, 1))
    left = np.array([400, 0, *[100] * 62])
    chosen = even_lengths(AFFINE, survival, 64 * 300, left)
    assert chosen[0] == 4
    assert chosen[1] == 0
    assert chosen[2:].max() < 4


def test_drafts_end_where_they_do_not_pay() -> None:
    """Each fed token takes as long as a pass: no draft saves more than it takes."""
    dear = LatencyModel("x", 1, base_s=1e-6, per_response_s=1e-3)
    assert even_lengths(dear, np.full((4, 3), 0.9), 0).tolist() == [0] * 4
    assert even_lengths(AFFINE, np.zeros((4, 3)), 0).tolist() == [0] * 4
    assert even_lengths(AFFINE, np.zeros((0, 3)), 0).tolist() == []
    assert even_lengths(AFFINE, np.full((1, 3), 0.9), 500, [0]).tolist() == [0]


@pytest.mark.parametrize(("survival", "remaining", "named"), [
    ([0.5], None, ("survival", (1,))), ([[0.5]], [1, 2], ("remaining_tokens", (2,), 1)), ([[0.5]], [-1], ("remaining_tokens",)),
])  # fmt: skip
def test_wrong_arguments_are_refused(survival: list[float], remaining: list[float] | None, named: tuple[object, ...]) -> None:
    with refused(PlanningError, *named):
        even_lengths(AFFINE, np.array(survival), 0, remaining)
