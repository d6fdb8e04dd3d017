"""Levelling keeps every response, changes only actors that refill, and lowers the makespan where few actors are late."""

from __future__ import annotations

import numpy as np
import pytest
from solver_strategies import l40s

import solver
from solver.planning.single_kind.items import SortedWork
from solver.planning.single_kind.levelling import levelled
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes, Split

SLOTS = 8
LATENCY = l40s(max_batch=SLOTS)


def uneven() -> tuple[solver.Workload, Split]:
    """Six actors of 40 responses each, the last one with 60, and one of 3 long responses that does not refill."""
    rng = np.random.default_rng(3)
    lengths = np.concatenate([rng.integers(20, 60, 6 * 40 + 20), [150, 140, 130]])
    work = solver.Workload([12], [0] * len(lengths), lengths)
    return work, Split(np.arange(len(lengths)), np.array([0, 40, 80, 120, 160, 200, 260, 263]))


def seconds(work: solver.Workload, split: Split) -> np.ndarray:
    return GroupTimes.of(work, LATENCY, admission_of(LATENCY), split.order).busy_s(split.edges)[0]


def each_s(work: solver.Workload) -> np.ndarray:
    items = SortedWork.of(work, LATENCY, admission_of(LATENCY), max_actors=16)
    each = np.empty(len(work))
    each[items.order] = np.diff(items.slot_load)
    return each


def test_a_late_actor_gives_responses_to_early_ones():
    work, split = uneven()
    before = seconds(work, split)
    after = levelled(split, before, each_s(work), SLOTS)
    assert after is not None
    assert np.sort(after.order).tolist() == list(range(len(work)))
    assert after.groups()[-1].tolist() == split.groups()[-1].tolist()
    busy_s = seconds(work, after)
    assert busy_s[:-1].max() < 0.93 * before[:-1].max()
    assert busy_s.sum() == pytest.approx(before.sum(), rel=0.02)


def test_nothing_is_moved_where_actors_end_together_or_most_are_late():
    work, split = uneven()
    even = np.full(7, 2.0)
    assert levelled(split, even, each_s(work), SLOTS) is None
    most_late = np.array([2.0, 2.0, 2.0, 2.0, 2.0, 1.0, 0.5])
    assert levelled(split, most_late, each_s(work), SLOTS) is None
    assert levelled(Split(np.arange(263), np.array([0, 260, 263])), np.array([2.0, 1.0]), each_s(work), SLOTS) is None


def test_a_plan_of_many_responses_is_never_worse_for_levelling(monkeypatch):
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(4.5, 0.8, 6_400), 1, 800).astype(int)
    work = solver.Workload(rng.integers(20, 200, 800), np.repeat(np.arange(800), 8), lengths)
    model = l40s(max_batch=64, prefill="mixed", token_budget=256)
    problem = solver.PlanningProblem(work, solver.Cluster(15, 2, 2), model)
    with_levelling = solver.plan_generation(problem, time_limit_s=0.15, deterministic=True)
    monkeypatch.setattr("solver.planning.single_kind.slot_search.levelled", lambda *given: None)
    without = solver.plan_generation(problem, time_limit_s=0.15, deterministic=True)
    assert with_levelling.value < without.value * (1 - 1e-3)
    assert with_levelling.lower_bound == without.lower_bound <= with_levelling.value
    assert solver.evaluate(with_levelling, problem).makespan_s == with_levelling.makespan_s
