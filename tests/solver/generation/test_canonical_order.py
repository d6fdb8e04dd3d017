"""Renumbering prompts and responses changes no number of a plan: not its value, its bound nor its reference."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_strategies import instances, l40s

import solver
from solver.generation.canonical_order import Canonical

CLUSTER = solver.Cluster(4, 2, 2)
LENGTHS = np.random.default_rng(3).integers(20, 400, (6, 4))
PROMPTS = np.array([40, 60, 40, 90, 60, 40])


def renumbered(work: solver.Workload, seed: int) -> tuple[solver.Workload, np.ndarray]:
    """The same prompts under other numbers and their responses in another order, and the old index of every response."""
    rng = np.random.default_rng(seed)
    prompts, responses = rng.permutation(len(work.prompt_tokens)), rng.permutation(len(work))
    number = np.argsort(prompts)
    other = solver.Workload(
        work.prompt_tokens[prompts], number[work.prompt_of[responses]], work.response_tokens[responses],
        work.generated_tokens[responses], work.max_response_tokens,
        None if work.scenarios is None else work.scenarios[:, responses],
    )  # fmt: skip
    return other, responses


def check_same(again: solver.Plan, first: solver.Plan) -> None:
    """The same reference and the same numbers."""
    assert again.reference == first.reference
    for name in ("value", "lower_bound", "makespan_s", "gpu_seconds", "cost_usd"):
        assert getattr(again, name) == getattr(first, name)
    lines = [[(line.solver, line.value, line.lower_bound) for line in plan.history] for plan in (again, first)]
    assert lines[0] == lines[1]


def sampled(scenarios: int = 5) -> np.ndarray:
    """(S, 24) lengths whose means are often equal although the scenarios differ."""
    rng = np.random.default_rng(0)
    halves = rng.integers(20, 300, (scenarios, 12))
    return np.concatenate([halves, halves[::-1]], axis=1)


VARIANTS = {
    "few slots": (solver.Workload.grid(PROMPTS, LENGTHS), {}, {"max_batch": 8}),
    "together": (solver.Workload.grid(PROMPTS, LENGTHS), {"keep_together": True}, {"max_batch": 8}),
    "shared": (solver.Workload.grid(PROMPTS, LENGTHS // 100 * 100), {"share_prefill": True}, {"prefill_per_token_s": 1e-3}),
    "scenarios": (solver.Workload(PROMPTS, np.repeat(np.arange(6), 4), sampled()), {}, {"max_batch": 8}),
    "equal prompts": (solver.Workload.grid(np.full(6, 50), np.tile(LENGTHS[:2], (3, 1))), {}, {"max_batch": 3}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_plan_has_the_same_numbers_whatever_the_prompts_are_called(name):
    work, options, speed = VARIANTS[name]

    def plan(asked: solver.Workload) -> solver.Plan:
        return solver.plan(solver.PlanningProblem(asked, CLUSTER, l40s(**speed), solver.Objective(0.5), **options))

    first = plan(work)
    for seed in range(2):
        other, old = renumbered(work, seed)
        again = plan(other)
        check_same(again, first)
        assert sorted(old[[*itertools.chain(*(a.responses for a in again.actors))]]) == list(range(len(work)))


@pytest.mark.parametrize("uncertain", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_a_mixed_plan_has_the_same_numbers_whatever_the_prompts_are_called(uncertain, together):
    lengths = sampled() if uncertain else LENGTHS.ravel()
    work = solver.Workload(PROMPTS, np.repeat(np.arange(6), 4), lengths)
    cluster = solver.MixedCluster((solver.GpuPool("slow", 1, 4), solver.GpuPool("fast", 1, 2)))
    models = {
        ("slow", 1): solver.LatencyModel("slow", 1, 6e-3, 2e-5, 3e-8, max_batch=8),
        ("fast", 1): solver.LatencyModel("fast", 1, 2e-3, 1e-5, 1e-8, max_batch=6),
    }

    def plan(asked: solver.Workload) -> solver.Plan:
        return solver.plan(solver.PlanningProblem(asked, cluster, models, keep_together=together))

    first = plan(work)
    for seed in range(2):
        check_same(plan(renumbered(work, seed)[0]), first)


@given(instances(refill=True), st.integers(0, 100))
@settings(deadline=None, max_examples=40)
def test_a_random_split_takes_the_same_whatever_the_prompts_are_called(instance, seed):
    work, cluster, latency, admission = instance
    splits = [
        solver.random_split(solver.PlanningProblem(w, cluster, latency, admission=admission))
        for w in (work, renumbered(work, seed)[0])
    ]
    assert (splits[0].makespan_s, splits[0].gpu_seconds) == (splits[1].makespan_s, splits[1].gpu_seconds)


def test_the_canonical_order_is_the_same_workload():
    work = solver.Workload(PROMPTS, np.repeat(np.arange(6), 4), sampled(), np.arange(24) % 7)
    asked = Canonical.of(work)
    same = asked.workload
    np.testing.assert_array_equal(same.prompt_tokens, work.prompt_tokens[asked.prompt])
    np.testing.assert_array_equal(asked.prompt[same.prompt_of], work.prompt_of[asked.response])
    for name in ("response_tokens", "generated_tokens", "context_tokens", "reserved_tokens"):
        np.testing.assert_array_equal(getattr(same, name), getattr(work, name)[asked.response])
    np.testing.assert_array_equal(same.scenarios, work.scenarios[:, asked.response])
    np.testing.assert_array_equal(np.sort(same.prompt_of), same.prompt_of)


def test_the_canonical_order_leaves_no_order_of_lengths():
    """A split in this order must not be one by length: first and last samples are as long, first and last prompts too."""
    rng = np.random.default_rng(0)
    lengths = np.sort(rng.integers(1, 1000, (2000, 4)), axis=None).reshape(2000, 4)
    asked = Canonical.of(solver.Workload.grid(np.full(2000, 10), lengths)).workload.response_tokens.reshape(2000, 4)
    assert abs(asked[:, 0].mean() - asked[:, 3].mean()) < 5  # within prompts of nearly equal lengths
    assert abs(asked[:1000].mean() - asked[1000:].mean()) < 60  # 4.6 standard errors
