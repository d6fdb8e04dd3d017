"""How many actors a split is best with where KV memory binds: as good as timing every count, with few of them timed."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver import Cluster, LatencyModel, NonGenerationPhases, Objective, Workload, evaluate
from solver.generation import actor_count
from solver.generation.prompt_order import candidate_counts
from solver.generation.random_split import random_split
from solver.model.admission import Admission
from solver.model.problem import PlanningProblem
from solver.timing.batch import Batch, peak_tokens
from solver.timing.evaluate import Evaluation
from solver.timing.group_times import GroupTimes
from solver.timing.timeline import timeline

LITTLE = LatencyModel("little", 1, 0.03, 3e-5, 2e-8, prefill_per_token_s=1e-5, start_s=2.0, kv_capacity_tokens=4000)
CLUSTER = Cluster(8, 8, 1)
OBJECTIVES = [
    Objective(0.7),
    Objective(0.3),
    Objective(0.5, cvar_alpha=0.4),
    Objective(deadline_s=120.0),
    Objective(budget_gpu_s=900.0),
]


def workload(scenarios: int = 0, seed: int = 0) -> Workload:
    draw = np.random.default_rng(seed)
    lengths = np.clip(draw.lognormal(5.0, 0.6, (100, 4)), 1, 600).astype(int)
    around = np.clip(lengths.ravel() * draw.lognormal(0, 0.4, (scenarios, 400)), 1, 600).astype(int) if scenarios else None
    one = Workload.grid(np.full(100, 100), lengths, max_response_tokens=600)
    return Workload(one.prompt_tokens, one.prompt_of, one.response_tokens, max_response_tokens=600, scenarios=around)


@functools.cache
def split_takes(actors: int, admission: str) -> Evaluation:
    """What the split of the workload over so many actors takes, whatever the objective."""
    work = workload(scenarios=3)
    plan = random_split(PlanningProblem(work, CLUSTER, LITTLE, admission=admission), actors=actors)
    return evaluate(plan, PlanningProblem(work, CLUSTER, LITTLE, admission=admission))


def key(work: Workload, objective: Objective, admission: str) -> tuple[float, float]:
    plan = random_split(PlanningProblem(work, CLUSTER, LITTLE, objective, admission=admission))
    took = evaluate(plan, PlanningProblem(work, CLUSTER, LITTLE, admission=admission))
    return objective.key(took.makespans_s, took.gpu_seconds_of)


@pytest.mark.parametrize("admission", ["preempt", "reserve"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_count_is_better_than_the_one_that_is_found(objective, admission):
    work = workload(scenarios=3)
    takes = [split_takes(n, admission) for n in candidate_counts(CLUSTER.max_actors)]
    best = min(objective.key(took.makespans_s, took.gpu_seconds_of) for took in takes)
    assert key(work, objective, admission) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("admission", ["preempt", "reserve"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_of_a_large_workload_it_is_close_to_the_best_of_all(monkeypatch, objective, admission):
    work = workload(scenarios=3)
    best = key(work, objective, admission)
    monkeypatch.setattr(actor_count, "EXACT_RESPONSES", 50)
    monkeypatch.setattr(actor_count, "MOST_TIMED", 8 * len(work))
    chosen = key(work, objective, admission)
    assert chosen[0] <= best[0] + 1e-9
    assert chosen[1] <= 1.05 * best[1]


def rows_timed(monkeypatch, work: Workload, latency: LatencyModel) -> int:
    """How often all groups of a count are timed exactly for one set of lengths."""
    timed = []
    exact_row = GroupTimes.exact_row
    monkeypatch.setattr(GroupTimes, "exact_row", lambda self, *given: timed.append(1) or exact_row(self, *given))
    random_split(PlanningProblem(work, CLUSTER, latency, Objective(0.7), NonGenerationPhases(), admission="preempt"))
    return len(timed)


def test_bounds_that_know_memory_leave_few_counts_to_be_timed(monkeypatch):
    work = workload(scenarios=4)
    assert rows_timed(monkeypatch, work, LITTLE) <= 4 * len(candidate_counts(CLUSTER.max_actors)) / 3


def test_what_is_timed_of_a_large_workload_is_bounded(monkeypatch):
    monkeypatch.setattr(actor_count, "EXACT_RESPONSES", 50)
    monkeypatch.setattr(actor_count, "MOST_TIMED", 200 + 10)
    one_and_two_looks = 4 + 2
    assert 4 <= rows_timed(monkeypatch, workload(scenarios=4), LITTLE) <= one_and_two_looks + 4  # the last one to its end


@st.composite
def splits(draw: st.DrawFn) -> tuple[Workload, Admission, np.ndarray]:
    count = draw(st.integers(2, 14))
    lengths = draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
    prompts = draw(st.lists(st.integers(0, 15), min_size=count, max_size=count))
    work = Workload(np.array(prompts), np.arange(count), np.array(lengths), max_response_tokens=40)
    alone = int(work.reserved_tokens.max())
    rule = draw(st.sampled_from(["preempt", "reserve"]))
    admission = Admission(draw(st.integers(1, 8)), draw(st.integers(max(1, alone // 2), max(2, 4 * alone))), rule)
    inner = sorted(draw(st.sets(st.integers(1, count - 1), max_size=3)))
    return work, admission, np.array([0, *inner, count])


@given(splits())
@settings(max_examples=40, deadline=None)
def test_groups_never_take_less_than_the_least(split):
    """Also where the memory is too small for a response, which then runs alone."""
    work, admission, edges = split
    times = GroupTimes.of(work, LITTLE, admission, np.arange(len(work)))
    assert np.all(times.least_s(edges)[0] <= times.busy_s(edges) * (1 + 1e-9))


@given(splits())
@settings(max_examples=40, deadline=None)
def test_the_peaks_of_those_that_join_at_once_are_those_of_their_time_lines(split):
    work, _, edges = split
    remaining, context = work.remaining_tokens, work.context_tokens
    peaks = peak_tokens(remaining, context, edges)
    for g, (first, last) in enumerate(itertools.pairwise(edges.tolist())):
        n, p = remaining[first:last], context[first:last]
        run = timeline(Batch(n, p, p, p + n, Admission(last - first, 10**9)), LITTLE)
        assert peaks[g] == run.kv_tokens.max(initial=0)


@given(splits())
@settings(max_examples=40, deadline=None)
def test_groups_take_what_each_takes_alone(split):
    work, admission, edges = split
    times = GroupTimes.of(work, LITTLE, admission, np.arange(len(work)))
    alone = []
    for first, last in itertools.pairwise(edges.tolist()):
        own = Batch.of(work, np.arange(first, last), np.zeros(last - first, dtype=int), admission)
        alone.append(timeline(own, LITTLE).busy_s)
    np.testing.assert_allclose(times.busy_s(edges)[0], alone, rtol=1e-9, atol=1e-12)
