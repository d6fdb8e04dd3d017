"""A workload with passes: what it derives from them, and one sentence for passes that cannot be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from error_messages import refused

import solver


def workload(**options: Any) -> solver.Workload:
    return solver.Workload([10, 20], [0, 1, 1], [100, 50, 0], **options)


def test_without_passes_an_iteration_yields_a_token() -> None:
    plain = workload()
    assert plain.iterations is plain.remaining_tokens
    assert plain.tokens_per_pass.tolist() == [1.0, 1.0, 1.0]
    assert plain.fed_steps.tolist() == [100.0, 50.0, 0.0]
    assert plain.kv_steps.tolist() == [10 * 100 + 100 * 99 / 2, 20 * 50 + 50 * 49 / 2, 0.0]


def test_passes_are_rounded_up_and_keep_their_tokens() -> None:
    drafted = workload(passes=[39.2, 20, 0], fed_per_pass=[5, 4, 1])
    assert drafted.iterations.tolist() == [40, 20, 0]
    assert drafted.tokens_per_pass.tolist() == [2.5, 2.5, 1.0]
    assert drafted.fed_steps.tolist() == [200.0, 80.0, 0.0]
    assert drafted.kv_steps.tolist() == [10 * 40 + 2.5 * 40 * 39 / 2, 20 * 20 + 2.5 * 20 * 19 / 2, 0.0]
    assert workload(passes=[40, 20, 0]).fed_steps.tolist() == [100.0, 50.0, 0.0]
    assert "passes" in drafted._repr_html_()


def test_other_lengths_have_as_many_tokens_per_pass() -> None:
    drafted = workload(passes=[40, 20, 0], fed_per_pass=[5, 4, 1])
    longer = drafted.with_response_tokens([200, 1, 7])
    assert longer.passes is not None
    assert longer.passes.tolist() == [80, 1, 7]
    assert longer.fed_per_pass.tolist() == [5.0, 4.0, 1.0]
    assert drafted.with_response_tokens([100, 50, 0]).passes.tolist() == [40, 20, 0]


def test_another_order_keeps_them_beside_their_responses() -> None:
    drafted = workload(passes=[40, 20, 0], fed_per_pass=[5, 4, 1])
    turned = drafted.reordered(np.array([1, 0]), np.array([2, 1, 0]))
    assert turned.passes.tolist() == [0, 20, 40]
    assert turned.fed_per_pass.tolist() == [1.0, 4.0, 5.0]
    assert turned.kv_steps.tolist() == drafted.kv_steps[::-1].tolist()


WRONG: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "shape": ({"passes": [40, 20]}, ("passes", "(2,)", "3 responses")),
    "too few": ({"passes": [3, 20, 0]}, ("passes[0]", "3", "100 remaining tokens", "4")),
    "too many": ({"passes": [40, 51, 0]}, ("passes[1]", "51", "50")),
    "none needed": ({"passes": [40, 20, 1]}, ("passes[2]", "0")),
    "not a number": ({"passes": [40, math.nan, 0]}, ("passes[1]", "nan")),
    "negative": ({"passes": [40, -2, 0]}, ("passes[1]", "-2")),
    "fed alone": ({"fed_per_pass": [1, 1, 1]}, ("fed_per_pass", "passes")),
    "fed too few": ({"passes": [40, 20, 0], "fed_per_pass": [2, 4, 1]}, ("fed_per_pass[0]", "2.5")),
    "fed too many": ({"passes": [40, 20, 0], "fed_per_pass": [3, 34, 1]}, ("fed_per_pass[1]", "34", "33")),
    "fed shape": ({"passes": [40, 20, 0], "fed_per_pass": [[3, 4, 1]]}, ("fed_per_pass", "(1, 3)")),
    "scenarios": ({"passes": [40, 20, 0], "scenarios": [[100, 50, 0]]}, ("passes", "scenarios")),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_one_sentence(case: str) -> None:
    options, named = WRONG[case]
    with refused(solver.PlanningError, *named):
        workload(**options)
