"""The bound with drafts: nothing that drafts lies below it; without acceptance it is the bound without drafts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from drafted_passes import step_of_passes
from error_messages import refused
from solver_reference import partitions
from solver_strategies import lognormal_workload

import solver
from rlhfless.latency import load_profile
from solver.bounds.drafts import DraftedBound, Sharing, expected_charges, realised_charges, sharings
from solver.bounds.schedules import ScheduleBound
from solver.model.acceptance import Acceptance
from solver.model.iteration_table import IterationTable

STRONG = Acceptance([0.78, 0.67, 0.50, 0.44, 0.36, 0.31, 0.27, 0.22])
WEAK = Acceptance([0.45, 0.22, 0.11, 0.09, 0.04, 0.035, 0.03, 0.025])
ROUNDING = 1 - 1e-9


def _latency(rng: np.random.Generator) -> solver.LatencyModel:
    times = {
        "base_s": [1e-3, 5e-3, 2e-2], "per_response_s": [3e-3, 1e-4, 0.0], "per_kv_token_s": [1e-4, 1e-6, 0.0],
        "prefill_per_token_s": [0.0, 2e-4], "join_s": [0.0, 3e-3], "start_s": [0.0, 0.05],
    }  # fmt: skip
    return solver.LatencyModel(
        "x", int(rng.integers(1, 3)), **{name: float(rng.choice(values)) for name, values in times.items()},
        max_batch=int(rng.choice([1, 2, 32])),
    )  # fmt: skip


def _problem(rng: np.random.Generator, responses: int, most_tokens: int) -> solver.PlanningProblem:
    latency = _latency(rng)
    if rng.random() < 0.1:
        batch, context = np.array([1.0, 4.0, 16.0, 40.0, 400.0]), np.array([0.0, 20.0, 60.0])
        cells = latency.base_s + rng.uniform(0.5, 1.5, (5, 3)) * (1e-4 * batch[:, None] + 1e-6 * batch[:, None] * context)
        latency = replace(latency, table=IterationTable(batch, context, cells))
    lengths = rng.integers(0, most_tokens + 1, responses)
    work = solver.Workload(rng.integers(0, 20, 2), rng.integers(0, 2, responses), lengths, max_response_tokens=40)
    gpus = latency.gpus_per_actor
    return solver.PlanningProblem(work, solver.Cluster(responses, gpus, gpus), latency)


def _runs(rng: np.random.Generator, problem: solver.PlanningProblem, most: int) -> list[np.ndarray]:
    return [
        np.minimum(rng.integers(0, most + 1, tokens), np.arange(tokens)[::-1])
        for tokens in problem.workload.remaining_tokens.tolist()
    ]


def _at_most(runs: list[np.ndarray], drafts: int) -> list[np.ndarray]:
    """What is accepted if a pass drafts so many tokens at most."""
    return [np.minimum(own, drafts) for own in runs]


def _check_realised(seed: int) -> None:
    """Every constant draft length of three responses, on every split, and drafts of random lengths with more responses."""
    rng = np.random.default_rng(seed)
    drafts = int(rng.integers(0, 4))
    problem = _problem(rng, 3, 9)
    runs = _runs(rng, problem, drafts + 1)
    bound = DraftedBound(problem, _at_most(runs, drafts), lp_work=0 if seed % 10 else 10**6)
    for groups in partitions(3, 3):
        for lengths in itertools.product(range(drafts + 1), repeat=3):
            time_s, gpu_s = step_of_passes(problem, groups, runs, lambda i, _, n=lengths: n[i])
            assert bound.gpu_seconds(time_s) * ROUNDING <= gpu_s
        assert bound.shortest_s() <= time_s * (1 + 1e-9) + 1e-9  # of the longest drafts
    problem = _problem(rng, 7, 20)
    runs = _runs(rng, problem, drafts + 1)
    bound = DraftedBound(problem, _at_most(runs, drafts), lp_work=0)
    for _ in range(10):
        actor_of = rng.integers(0, int(rng.integers(1, 8)), 7)
        groups = [group for k in range(7) if len(group := np.flatnonzero(actor_of == k).tolist())]
        time_s, gpu_s = step_of_passes(problem, groups, runs, lambda i, _: int(rng.integers(0, drafts + 1)))
        assert bound.gpu_seconds(time_s) * ROUNDING <= gpu_s


def _check_expected(seed: int) -> None:
    """Where the first m drafted tokens of every pass are accepted, and no others, expectation is certain."""
    rng = np.random.default_rng(seed)
    drafts = int(rng.integers(1, 5))
    accepted = int(rng.integers(0, drafts + 1))
    problem = _problem(rng, 4, 15)
    runs = [np.minimum(accepted, np.arange(n)[::-1]) for n in problem.workload.remaining_tokens.tolist()]
    survival = (np.arange(drafts) < accepted).astype(float)
    bound = DraftedBound(problem, Acceptance(survival), lp_work=0 if seed % 3 else 10**6)
    lengths = [lambda i, _: int(rng.integers(0, drafts + 1)), *(lambda i, _, n=n: n for n in (0, accepted, drafts))]
    for groups in ([[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0], [1], [2], [3]]):
        for choose in lengths:
            time_s, gpu_s = step_of_passes(problem, groups, runs, choose)
            assert bound.gpu_seconds(time_s) * ROUNDING <= gpu_s


@pytest.mark.parametrize("check", [_check_realised, _check_expected])
def test_no_policy_is_below(check: Callable[[int], None]) -> None:
    for seed in range(25):
        check(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("check", [_check_realised, _check_expected])
def test_no_policy_is_below_in_a_thousand_cases(check: Callable[[int], None]) -> None:
    for seed in range(25, 1000):
        check(seed)


def test_the_mean_of_random_acceptance_is_not_below() -> None:
    """Actors are ready at once, so that the bound at the mean time holds for the mean cost; three standard errors are left."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        problem = _problem(rng, 4, 20)
        problem = replace(problem, latency=replace(_latency(rng), start_s=0.0, gpus_per_actor=problem.latency.gpus_per_actor))
        acceptance = Acceptance(-np.sort(-rng.uniform(0, 1, 3)))
        bound = DraftedBound(problem, acceptance)
        length = int(rng.integers(0, 4))
        results = []
        for _ in range(60):
            runs = [(acceptance.survival > rng.random((n, 1))).sum(axis=1) for n in problem.workload.remaining_tokens.tolist()]
            runs = [np.minimum(own, np.arange(len(own))[::-1]) for own in runs]
            results.append(step_of_passes(problem, [[0, 1], [2, 3]], runs, lambda i, _, n=length: n))
        (time_s, gpu_s), error = np.mean(results, axis=0), np.std(results, axis=0) / math.sqrt(len(results))
        assert bound.gpu_seconds(time_s + 3 * error[0]) <= gpu_s + 3 * error[1]


def test_the_dynamic_programme_is_the_best_of_all_drafts() -> None:
    rng = np.random.default_rng(3)
    for _ in range(30):
        problem = _problem(rng, 3, 8)
        runs = _runs(rng, problem, 3)
        context = problem.workload.context_tokens.astype(float)
        (sharing, *_) = sharings([(1e-2, 1e-3, 1e-4)], 4, (0.0, 30.0), 3, 2)

        found = realised_charges(sharing, runs, context, 2)
        for response in range(3):
            np.testing.assert_allclose(
                found[:, response], _least_charges(sharing, runs[response], context[response]), rtol=1e-12, atol=1e-15
            )


def _least_charges(sharing: Sharing, runs: np.ndarray, context: float) -> np.ndarray:
    """Of drafts of up to two tokens, by trying all of them."""
    if not len(runs):
        return np.zeros(len(sharing.lam) + 3)
    charged = [
        sharing.charges(sharing.load(n, np.array(context))) + _least_charges(sharing, runs[done:], context + done)
        for n in range(3)
        for done in [1 + min(n, int(runs[0]))]
    ]
    return np.asarray(np.min(charged, axis=0))


def test_expected_charges_are_below_those_of_every_token_and_near_them() -> None:
    context, length = np.array([0.0, 3.0, 100.0]), np.array([5.0, 2000.0, 700.0])
    tokens_per_pass = np.append(1.0, 1 + np.cumsum(STRONG.survival))
    for sharing in sharings([(5e-3, 2e-5, 2e-8)], 256, (0.0, 2003.0), 3, 8):
        found = expected_charges(sharing, tokens_per_pass, context, length)
        for response in range(3):
            token = context[response] + np.arange(length[response])
            exact = np.min(
                [sharing.charges(sharing.load(n, np.maximum(token - n, 0))) / tokens_per_pass[n] for n in range(9)], axis=0
            ).sum(axis=1)
            assert (found[:, response] <= exact * (1 + 1e-12)).all()
            np.testing.assert_allclose(found[:, response], exact, rtol=1e-4)


def _step(prompts: int = 64) -> solver.PlanningProblem:
    work = lognormal_workload(prompts, 4, mean_log=5.3)
    return solver.PlanningProblem(work, solver.Cluster(4, 8, 2), load_profile("l40s-qwen2.5-3b-tp2"), admission="preempt")


def test_without_acceptance_it_is_the_bound_by_load() -> None:
    problem = _step()
    for latency in (problem.latency, replace(problem.latency.affine, max_batch=1 << 20, token_budget=1 << 20)):
        case = replace(problem, latency=latency)
        bound, other = DraftedBound(case, Acceptance([0.0])), ScheduleBound(case, lp_work=0)
        shortest_s = other.shortest_s()
        for factor in (1.02, 1.1, 1.3, 2.0, 5.0):
            two_terms = max(_two_terms(other, terms, factor * shortest_s) for terms in other.minorants)
            without = ScheduleBound(case).gpu_seconds(factor * shortest_s)
            assert 0.995 * two_terms <= bound.gpu_seconds(factor * shortest_s) <= without


def _two_terms(bound, terms, time_s):
    """W + a S^2 / (X - a L), the sharing by load alone."""
    decode_s = time_s - bound.ready_s
    slack_s = decode_s - terms.base_s * bound.length
    if slack_s.min() <= 0:
        return 0.0
    busy_s = terms.load.sum() + terms.prompts_s + terms.base_s * (terms.root_squared / slack_s).sum()
    return bound.gpus * (busy_s + bound.joins_s) * (1 + bound.ready_s / decode_s)


def test_without_acceptance_it_knows_whole_actors_as_the_bound_of_one_token_per_pass_does() -> None:
    problem = _step()
    bound, without = DraftedBound(problem, Acceptance([0.0])), ScheduleBound(problem)
    fractions = DraftedBound(problem, Acceptance([0.0]), lp_work=0)
    for time_s in without.shortest_s() * np.array([1.1, 1.5, 3.0, 8.0]):
        assert without.method(time_s) == "configuration LP"
        assert bound.method(time_s) == "with drafts"
        assert 0.97 * without.gpu_seconds(time_s) <= bound.gpu_seconds(time_s)
        assert bound.gpu_seconds(time_s) > 1.1 * fractions.gpu_seconds(time_s)


def test_it_falls_with_acceptance_and_is_never_above_the_bound_without_drafts() -> None:
    problem = _step()
    weak, strong = (DraftedBound(problem, acceptance, lp_work=0) for acceptance in (WEAK, STRONG))
    other = ScheduleBound(problem, lp_work=0)
    assert strong.shortest_s() < 0.5 * weak.shortest_s() < 0.5 * other.shortest_s()
    for time_s in other.shortest_s() * np.array([0.3, 0.5, 0.8, 1.0, 1.2, 2.0, 8.0]):
        assert strong.gpu_seconds(time_s) <= weak.gpu_seconds(time_s) <= other.gpu_seconds(time_s)
    assert strong.gpu_seconds(2 * other.shortest_s()) < 0.95 * other.gpu_seconds(2 * other.shortest_s())


def test_known_runs_bound_more_than_their_mean() -> None:
    problem, rng = _step(16), np.random.default_rng(4)
    runs = [
        np.minimum((STRONG.survival > rng.random((n, 1))).sum(axis=1), np.arange(n)[::-1])
        for n in problem.workload.remaining_tokens.tolist()
    ]
    bound = DraftedBound(problem, runs)
    time_s = 1.5 * bound.shortest_s()
    plan_s, plan_gpu_s = step_of_passes(problem, [list(range(k, 64, 4)) for k in range(4)], runs, lambda i, _: 4)
    assert bound.gpu_seconds(plan_s) <= plan_gpu_s
    assert bound.gpu_seconds(time_s) <= DraftedBound(problem, [0 * own for own in runs]).gpu_seconds(time_s)
    assert "GPU-seconds" in repr(bound)


def test_nothing_to_generate_costs_nothing() -> None:
    work = solver.Workload([5], [0, 0], [0, 0])
    problem = solver.PlanningProblem(work, solver.Cluster(1, 1, 1), solver.LatencyModel("x", 1, 1e-3, 1e-4))
    assert DraftedBound(problem, STRONG).gpu_seconds(1.0) == 0.0
    assert DraftedBound(problem, [[], []]).gpu_seconds(1.0) == 0.0


SMALL = solver.PlanningProblem(
    solver.Workload([5], [0, 0], [3, 1]), solver.Cluster(1, 1, 1), solver.LatencyModel("x", 1, 1e-3, 1e-4)
)
WRONG: dict[str, tuple[Any, tuple[str, ...]]] = {
    "acceptance": (lambda: DraftedBound(SMALL, 0.5), ("drafts", "0.5")),
    "too many": (lambda: DraftedBound(SMALL, [[0, 33, 0], [0]]), ("drafts[0]", "33", "32")),
    "responses": (lambda: DraftedBound(SMALL, [[0, 0, 0]]), ("drafts", "2 responses")),
    "tokens": (lambda: DraftedBound(SMALL, [[0, 0], [0]]), ("drafts[0]", "3")),
    "fraction": (lambda: DraftedBound(SMALL, [[0, 0.5, 0], [0]]), ("drafts[0][1]", "0.5")),
    "problem": (lambda: DraftedBound(SMALL.workload, STRONG), ("Workload",)),
    "time": (lambda: DraftedBound(SMALL, STRONG).gpu_seconds(math.nan), ("time_s", "nan")),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_one_sentence(case: str) -> None:
    make, named = WRONG[case]
    with refused(solver.PlanningError, *named):
        make()
