"""The frailty model of accepted drafts: it finds what responses accept, also where some draft longer than others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from rlhfless.engine.common.draft_frailty import frailty_survival

POSITIONS = 4
ODDS = np.array([0.3, 0.2, 0.2, 0.4])


def decoded(factors: np.ndarray, lengths: np.ndarray, passes: int, seed: int = 0) -> np.ndarray:
    """(B, 2, 5) counts of drafts whose tokens are refused with odds ``factor * ODDS``."""
    rng, counts = np.random.default_rng(seed), np.zeros((len(factors), 2, POSITIONS + 1))
    for i, (factor, length) in enumerate(zip(factors, lengths, strict=True)):
        for row in rng.random((passes, length)) < 1 / (1 + factor * ODDS[:length]):
            accepted = int(row.argmin()) if not row.all() else length
            counts[i, int(accepted == length), accepted] += 1
    return counts


def estimated(counts: np.ndarray, prompts: np.ndarray | None = None, left: np.ndarray | None = None) -> np.ndarray:
    prompts = np.arange(len(counts)) if prompts is None else prompts
    nobody = np.zeros((int(prompts.max()) + 1, 2, POSITIONS + 1))
    return frailty_survival(counts, nobody if left is None else left, prompts, np.zeros((2, POSITIONS + 1)))


def test_it_finds_the_survival_of_every_response() -> None:
    factors = np.array([0.3, 0.5, 1.0, 1.5, 2.0] * 8)
    true = (1 / (1 + factors[:, None] * ODDS)).cumprod(axis=1)
    found = estimated(decoded(factors, np.full(40, POSITIONS), 400))
    assert np.abs(found - true).mean() < 0.02


def test_who_drafts_long_says_nothing_wrong_about_who_drafts_short() -> None:
    """Only those that accept little draft beyond the first position; the others would accept more there."""
    factors = np.array([0.3] * 20 + [2.0] * 20)
    found = estimated(decoded(factors, np.array([1] * 20 + [POSITIONS] * 20), 300))
    true = (1 / (1 + factors[:, None] * ODDS)).cumprod(axis=1)
    assert found[:20].mean(axis=0) == pytest.approx(true[0], abs=0.05)
    pooled = decoded(factors, np.full(40, POSITIONS), 300)[20:].sum(axis=(0, 1))[2:].sum() / (20 * 300)
    assert found[:20, 1].mean() > pooled + 0.2, "what the others accept would be far too little"


def test_a_new_response_is_like_its_prompt() -> None:
    good, bad = decoded(np.array([0.2]), np.array([POSITIONS]), 300)[0], decoded(np.array([3.0]), np.array([POSITIONS]), 300)[0]
    new = np.zeros((2, 2, POSITIONS + 1))
    found = estimated(new, np.array([0, 1]), np.array([good, bad]))
    assert found[0, 0] > 0.85
    assert found[1, 0] < 0.6


@given(stn.arrays(np.int64, (3, 2, POSITIONS + 1), elements=st.integers(0, 200)))
@settings(max_examples=60, deadline=None)
def test_survival_is_a_share_that_does_not_rise(counts: np.ndarray) -> None:
    counts[:, 0, -1] = 0  # a draft that a refused token ended has not all positions accepted
    found = estimated(counts.astype(float), np.array([0, 0, 1]))
    assert ((found > 0) & (found <= 1)).all()
    assert (np.diff(found, axis=1) <= 1e-12).all()
