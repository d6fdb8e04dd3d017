"""The affine fits: exact on affine data, never negative, optimal among non-negative coefficients."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.latency.fit import fit_changes, fit_table
from rlhfless.latency.timing import TimedChange
from solver.model.affine_fit import fit_nonnegative, triangle
from solver.model.iteration_table import IterationTable

BATCH, CONTEXT = np.array([1.0, 4, 16, 64, 256]), np.array([64.0, 512, 4096])


def affine_table(base_s: float, per_response_s: float, per_kv_token_s: float) -> IterationTable:
    size = BATCH[:, None]
    return IterationTable(BATCH, CONTEXT, base_s + per_response_s * size + per_kv_token_s * size * CONTEXT[None, :])


@given(st.floats(1e-4, 1e-1), st.floats(0, 1e-3), st.floats(0, 1e-6))
@settings(max_examples=40, deadline=None)
def test_an_affine_table_is_recovered(base_s: float, per_response_s: float, per_kv_token_s: float) -> None:
    fit = fit_table(affine_table(base_s, per_response_s, per_kv_token_s), max_batch=256, kv_capacity_tokens=1 << 40)
    assert (fit.base_s, fit.per_response_s, fit.per_kv_token_s) == pytest.approx(
        (base_s, per_response_s, per_kv_token_s), rel=1e-6, abs=1e-10
    )
    assert fit.max_relative_error < 1e-6
    assert fit.points == 15


@given(st.lists(st.floats(1e-3, 1.0), min_size=6, max_size=6))
@settings(max_examples=40, deadline=None)
def test_no_other_nonnegative_coefficients_fit_better(seconds: list[float]) -> None:
    """The optimality conditions: at the optimum no coefficient can be moved within its bound to gain anything."""
    times = np.array(seconds)
    size = np.array([1.0, 2, 4, 8, 16, 32])
    columns = np.stack([np.ones(6), size, size**2], axis=1)
    coefficients, errors = fit_nonnegative(columns, times)
    relative = columns / times[:, None]
    gradient = relative.T @ (relative @ coefficients - 1.0) / np.linalg.norm(relative, axis=0)
    assert coefficients.min() >= 0
    assert gradient.min() > -1e-6
    assert np.abs(gradient[coefficients > 0]).max(initial=0.0) < 1e-6
    np.testing.assert_allclose(errors, np.abs(columns @ coefficients / times - 1.0), atol=1e-9)


@given(st.lists(st.lists(st.floats(-100.0, 100.0), min_size=3, max_size=3), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_a_triangle_keeps_sums_of_squares(rows: list[list[float]]) -> None:
    columns = np.array(rows)
    columns = np.column_stack([columns, columns[:, 0] + 2 * columns[:, 1]])
    upper = triangle(columns)
    assert np.array_equal(upper, np.triu(upper))
    np.testing.assert_allclose(upper.T @ upper, columns.T @ columns, rtol=1e-9, atol=1e-9 * (columns**2).sum() + 1e-300)
    assert upper[3, 3] == 0.0, "a sum of other columns adds no direction"


FITS = """
import numpy as np
from solver.model.affine_fit import fit_iterations

random = np.random.default_rng(0)
batch, context = random.integers(1, 64, 40).astype(float), random.integers(100, 9000, 40).astype(float)
for noise in np.linspace(0.01, 0.2, 20):
    seconds = (0.01 + 2e-4 * batch + 1e-8 * batch * context) * (1 + noise * (random.random(40) - 0.5))
    print(*(float(number).hex() for number in fit_iterations(batch, context, seconds)[0]))
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the kernels that are chosen here are of x86-64")
def test_every_processor_fits_the_same_coefficients() -> None:
    """Drafts are planned by fitted latencies; a last digit that depends on the processor can choose another plan."""
    older = {"OPENBLAS_CORETYPE": "Prescott", "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX"}
    words = [sys.executable, "-W", "ignore", "-c", FITS]
    fitted = [
        subprocess.run(words, env={**os.environ, **kernels}, capture_output=True, text=True, check=True).stdout
        for kernels in ({}, older)
    ]
    assert len(fitted[0].splitlines()) == 20
    assert fitted[0] == fitted[1]


def test_only_points_that_an_actor_can_hold_count() -> None:
    table = affine_table(5e-3, 2e-5, 2e-8)
    spoilt = table.iteration_s.copy()
    spoilt[-1] *= 3.0
    fit = fit_table(IterationTable(BATCH, CONTEXT, spoilt), max_batch=64, kv_capacity_tokens=1 << 40)
    assert (fit.points, fit.base_s) == (12, pytest.approx(5e-3))
    assert fit_table(table, max_batch=256, kv_capacity_tokens=64 * 512).points == 11


def test_falling_times_get_a_constant() -> None:
    """A negative time per response would break the bounds; the best constant is what remains."""
    table = IterationTable(BATCH, CONTEXT, np.linspace(2e-2, 1e-2, 15).reshape(5, 3))
    fit = fit_table(table, max_batch=256, kv_capacity_tokens=1 << 40)
    assert (fit.per_response_s, fit.per_kv_token_s) == (0.0, 0.0)
    assert 1e-2 < fit.base_s < 2e-2


CHANGES = [(1, 16, 0), (4, 64, 0), (16, 128, 0), (1, 16, 1), (1, 64, 2), (0, 0, 1), (0, 0, 3)]


@given(*(st.sampled_from([0.0, value]) for value in (2e-3, 3e-5, 1e-4, 4e-4)), st.floats(0, 10))
@settings(max_examples=40, deadline=None)
def test_affine_changes_are_recovered(base_s: float, token_s: float, join_s: float, end_s: float, other_s: float) -> None:
    """Whatever else the iterations around take."""
    taken = [base_s * (n > 0) + token_s * n * t + join_s * n + end_s * ended for n, t, ended in CHANGES]
    fit = fit_changes([TimedChange(*one, s, s + other_s + 1e-3) for one, s in zip(CHANGES, taken, strict=True)])
    assert (fit.base_s, fit.per_token_s, fit.per_join_s, fit.per_end_s) == pytest.approx(
        (base_s, token_s, join_s, end_s), rel=1e-6, abs=1e-9
    )
    assert fit.errors.max() < 1e-6


def test_errors_of_changes_are_relative_to_the_iterations_around() -> None:
    """An end that took 1 ms, and one that took nothing, of iterations of 10 ms; the best constant is between."""
    fit = fit_changes([TimedChange(0, 0, 1, 1e-3, 1e-2), TimedChange(0, 0, 1, 0.0, 1e-2)])
    assert (fit.base_s, fit.per_token_s, fit.per_join_s, fit.per_end_s) == pytest.approx((0, 0, 0, 5e-4))
    assert fit.errors == pytest.approx([0.05, 0.05])


def test_ends_that_gain_time_take_none() -> None:
    fit = fit_changes([TimedChange(1, 8, 0, 2e-3, 5e-3), TimedChange(0, 0, 1, -1e-4, 1e-2)])
    assert fit.per_end_s == 0.0
    assert min(fit.base_s, fit.per_token_s, fit.per_join_s) >= 0
