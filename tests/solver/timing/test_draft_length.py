"""The best draft length: against trying all, monotone where the model is affine, and ranges without gaps."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from error_messages import refused

from solver import LatencyModel, PlanningError
from solver.model.acceptance import Acceptance
from solver.model.iteration_table import IterationTable
from solver.timing.draft_length import DRAFT_CALL_S, DRAFT_TOKEN_S, best_length, length_table

WEAK = Acceptance([0.45, 0.22, 0.11, 0.09, 0.04, 0.035, 0.03, 0.025])
STRONG = Acceptance([0.78, 0.67, 0.50, 0.44, 0.36, 0.31, 0.27, 0.22])


def test_it_is_the_best_of_all_lengths_on_random_tables() -> None:
    rng = np.random.default_rng(0)
    for _ in range(1000):
        rows, columns = np.array([1, 4, 16, 64, 256, 1024]), np.array([1, 100, 4000])
        table = IterationTable(rows, columns, rng.uniform(1e-3, 2e-2, (6, 1)) + np.sort(rng.uniform(0, 1e-2, (6, 3))))
        latency = LatencyModel("x", 1, base_s=5e-3, per_response_s=1e-4, max_batch=128, table=table)
        acceptance = Acceptance(np.sort(rng.uniform(0, 1, 6))[::-1])
        batch, context = int(rng.integers(1, 129)), float(rng.uniform(0, 3000))
        seconds = [
            (float(table(batch * (1 + n), batch * context)) + (n > 0) * (DRAFT_CALL_S + DRAFT_TOKEN_S * batch * n))
            / (1 + acceptance.survival[:n].sum())
            for n in range(7)
        ]
        length, speedup = best_length(latency, batch, context, acceptance)
        assert seconds[length] == min(seconds)
        assert speedup == pytest.approx(seconds[0] / min(seconds))
        assert (length == 0) == (speedup == 1)


def test_drafts_become_shorter_with_the_batch_and_longer_with_acceptance() -> None:
    latency = LatencyModel("x", 1, base_s=5.6e-3, per_response_s=2.2e-5, per_kv_token_s=2.5e-8, max_batch=2048)
    weak, strong = ([best_length(latency, 2**k, 500, a)[0] for k in range(12)] for a in (WEAK, STRONG))
    for found in (weak, strong):
        assert found == sorted(found, reverse=True)
        assert found[0] == 8
        assert found[-1] < 3
    assert all(more >= less for less, more in zip(weak, strong, strict=True))


def test_ranges_have_no_gaps_and_end_at_the_slots() -> None:
    latency = LatencyModel("x", 1, base_s=5e-3, per_response_s=1e-4, max_batch=100)
    table = length_table(latency, STRONG, 200)
    assert (table[0].first_batch, table[-1].last_batch) == (1, 100)
    for before, after in itertools.pairwise(table):
        assert before.last_batch + 1 == after.first_batch
        assert before.draft_tokens != after.draft_tokens
    for row in table:
        assert best_length(latency, row.first_batch, 200, STRONG) == (row.draft_tokens, row.speedup)


def test_geometric_acceptance_has_the_closed_form() -> None:
    assert Acceptance.geometric(0.8, 5).tokens_per_pass(5) == pytest.approx((1 - 0.8**6) / (1 - 0.8))


WRONG: dict[str, tuple[Any, tuple[str, ...]]] = {
    "rising": (lambda: Acceptance([0.3, 0.4]), ("0.3", "0.4", "position 2")),
    "above one": (lambda: Acceptance([1.5]), ("position 1", "1.5")),
    "not a number": (lambda: Acceptance([math.nan]), ("position 1", "nan")),
    "text": (lambda: Acceptance("half"), ("survival", "'half'")),
    "empty": (lambda: Acceptance([]), ("survival",)),
    "two axes": (lambda: Acceptance([[0.5]]), ("(1, 1)",)),
    "rate": (lambda: Acceptance.geometric(2.0, 3), ("rate", "2.0")),
    "too long": (lambda: WEAK.tokens_per_pass(9), ("9", "8")),
    "batch": (lambda: best_length(LatencyModel("x", 1, 1e-3, 1e-4), 0, 10, WEAK), ("batch", "0")),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_one_sentence(case: str) -> None:
    make, named = WRONG[case]
    with refused(PlanningError, *named):
        make()
