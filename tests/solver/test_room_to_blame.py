"""A limit that is missed for want of slots or KV memory: the sentence names them, and what it says is enough is enough."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from solver_strategies import l40s, lognormal_workload

import solver

WORK = lognormal_workload(16, 4)
CLUSTER = solver.Cluster(1, 8, 2)
ROOMY = l40s()
LIMIT_S = 0.5


def best(latency: solver.LatencyModel, weight: float, work: solver.Workload = WORK) -> solver.Plan:
    return solver.plan_generation(work, CLUSTER, latency, solver.Objective(weight), time_limit_s=0.15)


def limit_between(few: solver.LatencyModel, kind: str, work: solver.Workload = WORK) -> solver.Objective:
    """A limit that a plan keeps with enough room, but not with as little as ``few`` has."""
    if kind == "deadline_s":
        times = [best(model, 1.0, work).makespan_s for model in (ROOMY, few)]
    else:
        times = [best(model, 0.0, work).gpu_seconds for model in (ROOMY, few)]
    assert times[0] < 0.9 * times[1]
    return solver.Objective(**{kind: (times[0] + times[1]) / 2})


def refusal(latency: solver.LatencyModel, objective: solver.Objective, work: solver.Workload = WORK) -> str:
    with pytest.raises(solver.PlanningError) as refused:
        solver.plan_generation(work, CLUSTER, latency, objective, time_limit_s=LIMIT_S)
    return str(refused.value)


def numbers(pattern: str, text: str) -> list[int]:
    found = re.search(pattern, text)
    assert found, text
    return [int(part.replace(",", "")) for part in found.groups()]


@pytest.mark.parametrize("kind", ["deadline_s", "budget_gpu_s"])
def test_slots_are_named_with_a_number_that_is_enough(kind):
    few = replace(ROOMY, max_batch=3)
    objective = limit_between(few, kind)
    have, enough = numbers(r"; the (\d+) slots of an actor are to blame: with (\d+) a plan keeps the", refusal(few, objective))
    assert have == 3 < enough < 64
    solver.plan_generation(WORK, CLUSTER, replace(few, max_batch=enough), objective, time_limit_s=LIMIT_S)


@pytest.mark.parametrize("kind", ["deadline_s", "budget_gpu_s"])
def test_memory_is_named_with_a_number_that_is_enough(kind):
    few = replace(ROOMY, kv_capacity_tokens=3 * int(WORK.reserved_tokens.max()))
    objective = limit_between(few, kind)
    text = refusal(few, objective)
    have, enough = numbers(r"; the ([\d,]+) KV tokens of an actor are to blame: with ([\d,]+) a plan keeps the", text)
    assert have == few.kv_capacity_tokens < enough
    solver.plan_generation(WORK, CLUSTER, replace(few, kv_capacity_tokens=enough), objective, time_limit_s=LIMIT_S)


def test_both_are_named_where_neither_alone_is_enough():
    few = replace(ROOMY, max_batch=3, kv_capacity_tokens=3 * int(WORK.reserved_tokens.max()))
    objective = limit_between(few, "deadline_s")
    text = refusal(few, objective)
    pattern = r"; the (\d+) slots and ([\d,]+) KV tokens of an actor are to blame: with (\d+) and ([\d,]+) a plan keeps"
    *_, slots, tokens = numbers(pattern, text)
    roomier = replace(few, max_batch=slots, kv_capacity_tokens=tokens)
    solver.plan_generation(WORK, CLUSTER, roomier, objective, time_limit_s=LIMIT_S)


def test_over_scenarios_slots_are_named_too():
    lengths = np.random.default_rng(0).integers(50, 400, (6, 24))
    work = solver.Workload(np.full(6, 40), np.repeat(np.arange(6), 4), lengths)
    few = replace(ROOMY, max_batch=2)
    text = refusal(few, limit_between(few, "deadline_s", work), work)
    assert "in the mean over the scenarios of lengths" in text
    assert "the 2 slots of an actor are to blame" in text


@pytest.mark.parametrize("few", [ROOMY, replace(ROOMY, max_batch=3)])
def test_they_are_not_blamed_for_what_more_of_them_would_not_help(few):
    soon = solver.Objective(deadline_s=0.9 * best(ROOMY, 1.0).makespan_s)
    assert "to blame" not in refusal(few, soon)
