"""The latency model with drafts: the given one without acceptance, never slower, and as fast as passes with the best length."""

from __future__ import annotations

import numpy as np
import pytest
from error_messages import refused

import solver
from rlhfless.latency import load_profile
from solver import LatencyModel, PlanningError
from solver.model.acceptance import Acceptance
from solver.model.iteration_table import IterationTable
from solver.timing.draft_length import best_length, seconds_per_token
from solver.timing.drafted_latency import drafted

STRONG = Acceptance([0.78, 0.67, 0.50, 0.44, 0.36, 0.31, 0.27, 0.22])
WEAK = Acceptance([0.45, 0.22, 0.11, 0.09, 0.04, 0.035, 0.03, 0.025])


def _random_model(rng: np.random.Generator) -> LatencyModel:
    if rng.random() < 0.3:
        return LatencyModel("x", 1, *rng.uniform([1e-3, 1e-6, 0], [1e-2, 1e-4, 1e-7]), max_batch=int(rng.integers(1, 300)))
    batch = np.unique(rng.integers(1, 400, 8)).astype(float)
    context = np.unique(rng.integers(0, 5000, 6)).astype(float)
    seconds = rng.uniform(1e-3, 1e-2) + 1e-5 * batch[:, None] * rng.uniform(0.5, 1, (len(batch), 1))
    table = IterationTable(batch, context, seconds + 1e-9 * batch[:, None] * context * rng.uniform(0.8, 1.2))
    slots = int(rng.integers(1, batch[-1] + 1))
    return LatencyModel("x", 1, 5e-3, 2e-5, max_batch=slots, table=table)


def test_without_acceptance_it_is_the_given_model() -> None:
    for latency in (load_profile("l40s-qwen2.5-3b-tp2"), LatencyModel("x", 1, 5e-3, 1e-4)):
        assert drafted(latency, Acceptance([0.0, 0.0])) is latency


def test_no_iteration_takes_longer_and_none_is_left_out() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        latency = _random_model(rng)
        acceptance = Acceptance(-np.sort(-rng.uniform(0, 1, int(rng.integers(1, 9)))))
        most = 2000.0 if latency.table is None else latency.table.context_tokens[-1]
        batch, context = rng.integers(1, latency.max_batch + 1, 50), rng.uniform(0, most, 50)
        fast = drafted(latency, acceptance)
        assert (fast.iteration_s(batch, batch * context) <= latency.iteration_s(batch, batch * context) * (1 + 1e-12)).all()
        if latency.table is not None and fast.table is not None:
            assert (latency.table.batch[-1], most) == (fast.table.batch[-1], fast.table.context_tokens[-1])


@pytest.mark.parametrize("profile", ["l40s-qwen2.5-3b-tp2", "h100-qwen2.5-3b-tp1", "cpu-tiny-qwen2"])
def test_a_token_takes_as_long_as_with_the_best_length(profile: str) -> None:
    latency, rng = load_profile(profile), np.random.default_rng(1)
    for acceptance in (WEAK, STRONG):
        fast = drafted(latency, acceptance)
        assert fast.table is not None
        assert latency.table is not None
        for batch in latency.table.batch[latency.table.batch <= latency.max_batch].astype(int).tolist():
            for context in latency.table.context_tokens[:5].tolist():
                _, speedup = best_length(latency, batch, context, acceptance)
                alone_s = seconds_per_token(latency, batch, context, acceptance, 0)
                assert fast.one_iteration_s(batch, batch * int(context)) == pytest.approx(alone_s / speedup, rel=1e-12)
        errors = []
        for _ in range(300):
            batch, context = int(rng.integers(1, latency.max_batch + 1)), float(rng.uniform(16, 1000))
            length, _ = best_length(latency, batch, context, acceptance)
            exact_s = seconds_per_token(latency, batch, context, acceptance, length)
            errors.append(float(fast.iteration_s(batch, batch * context)) / exact_s - 1)
        assert np.abs(errors).max() < 0.04
        assert abs(np.mean(errors)) < 0.005
        assert fast.fit_mean_error < 0.1


def test_iterations_beyond_the_slots_feed_prompts_and_stay_as_they_are() -> None:
    latency = load_profile("h100-qwen2.5-3b-tp1")
    fast = drafted(latency, STRONG)
    fed = np.array([384, 512, 2048])
    assert fast.iteration_s(fed, 1000 * fed).tolist() == latency.iteration_s(fed, 1000 * fed).tolist()


def test_more_acceptance_is_faster() -> None:
    latency = load_profile("l40s-qwen2.5-3b-tp2")
    batch = np.array([1, 8, 64, 256])
    weak, strong = (drafted(latency, acceptance).iteration_s(batch, 1000 * batch) for acceptance in (WEAK, STRONG))
    assert (strong < weak).all()


def _passes_s(latency: LatencyModel, tokens: np.ndarray, acceptance: Acceptance, rng: np.random.Generator) -> float:
    """Seconds of a batch in passes of the best length, which draw how many drafts are accepted."""
    left, context, seconds = tokens.copy(), np.full(len(tokens), 200), 0.0
    while len(left):
        length, _ = best_length(latency, len(left), float(context.mean()), acceptance)
        token_s = seconds_per_token(latency, len(left), float(context.mean()), acceptance, length)
        seconds += token_s * acceptance.tokens_per_pass(length)
        accepted = (acceptance.survival[:length] > rng.random((len(left), 1))).sum(axis=1)
        committed = np.minimum(1 + accepted, left)
        left, context = (left - committed)[left > committed], (context + committed)[left > committed]
    return seconds


def test_a_step_of_passes_takes_as_long_as_a_step_of_its_iterations() -> None:
    """Where responses accept alike; in the mean over draws, because the longest response has luck or not."""
    latency, rng = load_profile("l40s-qwen2.5-3b-tp2"), np.random.default_rng(2)
    tokens = np.minimum(np.exp(rng.normal(5.0, 0.8, 128)), 1500).astype(int)
    iterations = np.arange(tokens.max())
    alive = tokens[:, None] > iterations
    for acceptance in (WEAK, STRONG):
        batch, kv_tokens = alive.sum(axis=0), (alive * (200 + iterations)).sum(axis=0)
        effective_s = float(drafted(latency, acceptance).iteration_s(batch, kv_tokens).sum())
        passes_s = np.mean([_passes_s(latency, tokens, acceptance, rng) for _ in range(8)])
        assert effective_s == pytest.approx(passes_s, rel=0.04)


def test_plans_are_made_for_it_like_for_any_other() -> None:
    latency, rng = load_profile("l40s-qwen2.5-3b-tp2"), np.random.default_rng(3)
    workload = solver.Workload.grid([100] * 32, np.minimum(np.exp(rng.normal(5.5, 0.7, (32, 4))), 2000).astype(int))
    plans = []
    for model in (latency, drafted(latency, STRONG)):
        problem = solver.PlanningProblem(workload, solver.Cluster(2, 8, 2), model)
        plan = solver.plan(problem)
        assert plan.gap is not None
        assert 0 <= plan.gap < 0.02
        plans.append(solver.evaluate(plan, problem, table=True))
    assert plans[1].makespan_s < 0.6 * plans[0].makespan_s
    assert plans[1].gpu_seconds < plans[0].gpu_seconds


def test_mixed_prefill_needs_a_table() -> None:
    latency = load_profile("l40s-qwen2.5-3b-tp2")
    assert latency.mixes
    assert drafted(latency, STRONG).token_budget == latency.token_budget
    with refused(PlanningError, latency.name, "mixed"):
        drafted(latency.affine, STRONG)
