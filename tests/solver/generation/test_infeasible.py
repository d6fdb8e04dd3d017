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


def best(latency: solver.LatencyModel, weight: float, work: solver.Workload = WORK) -> solver.Plan:
    return solver.plan(solver.PlanningProblem(work, CLUSTER, latency, solver.Objective(weight)))


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
        solver.plan(solver.PlanningProblem(work, CLUSTER, latency, objective))
    return str(refused.value)


def numbers(pattern: str, text: str) -> list[int]:
    found = re.search(pattern, text)
    assert found, text
    return [int(part.replace(",", "")) for part in found.groups()]


@pytest.mark.parametrize("kind", ["deadline_s", "budget_gpu_s"])
def test_slots_are_named_with_a_number_that_is_enough(kind):
    few = replace(ROOMY, max_batch=3)
    objective = limit_between(few, kind)
    have, enough = numbers(r"; the cause is an actor's (\d+) slots: with (\d+) a plan meets the", refusal(few, objective))
    assert have == 3 < enough < 64
    solver.plan(solver.PlanningProblem(WORK, CLUSTER, replace(few, max_batch=enough), objective))


@pytest.mark.parametrize("kind", ["deadline_s", "budget_gpu_s"])
def test_memory_is_named_with_a_number_that_is_enough(kind):
    few = replace(ROOMY, kv_capacity_tokens=3 * int(WORK.reserved_tokens.max()))
    objective = limit_between(few, kind)
    text = refusal(few, objective)
    have, enough = numbers(r"; the cause is an actor's ([\d,]+) KV tokens: with ([\d,]+) a plan meets the", text)
    assert have == few.kv_capacity_tokens < enough
    solver.plan(solver.PlanningProblem(WORK, CLUSTER, replace(few, kv_capacity_tokens=enough), objective))


def test_both_are_named_where_neither_alone_is_enough():
    few = replace(ROOMY, max_batch=3, kv_capacity_tokens=3 * int(WORK.reserved_tokens.max()))
    objective = limit_between(few, "deadline_s")
    text = refusal(few, objective)
    pattern = r"; the cause is an actor's (\d+) slots and ([\d,]+) KV tokens: with (\d+) and ([\d,]+) a plan meets"
    *_, slots, tokens = numbers(pattern, text)
    roomier = replace(few, max_batch=slots, kv_capacity_tokens=tokens)
    solver.plan(solver.PlanningProblem(WORK, CLUSTER, roomier, objective))


@pytest.mark.full
def test_over_scenarios_slots_are_named_too():
    lengths = np.random.default_rng(0).integers(50, 400, (6, 24))
    work = solver.Workload(np.full(6, 40), np.repeat(np.arange(6), 4), lengths)
    few = replace(ROOMY, max_batch=2)
    text = refusal(few, limit_between(few, "deadline_s", work), work)
    assert "in the mean over the length scenarios" in text
    assert "the cause is an actor's 2 slots" in text


@pytest.mark.parametrize("few", [ROOMY, replace(ROOMY, max_batch=3)])
def test_they_are_not_blamed_for_what_more_of_them_would_not_help(few):
    soon = solver.Objective(deadline_s=0.9 * best(ROOMY, 1.0).makespan_s)
    assert "the cause is" not in refusal(few, soon)


POOLS = solver.MixedCluster((solver.GpuPool("a", 1, 2, usd_per_gpu_hour=2.0), solver.GpuPool("b", 1, 2, usd_per_gpu_hour=5.0)))


def two_kinds(slots: int, kv_tokens: int = 1 << 40) -> dict[tuple[str, int], solver.LatencyModel]:
    return {
        (kind, 1): solver.LatencyModel(
            kind, 1, base_s, 2e-5, 3e-8, kind=kind, max_batch=slots * extra, kv_capacity_tokens=kv_tokens
        )
        for kind, base_s, extra in (("a", 6e-3, 1), ("b", 4e-3, 2))
    }


def mixed(work, models, objective):
    return solver.plan(solver.PlanningProblem(work, POOLS, models, objective))


def sampled(work: solver.Workload) -> solver.Workload:
    rng = np.random.default_rng(0)
    lengths = work.response_tokens * rng.uniform(0.8, 1.2, (5, len(work)))
    return solver.Workload(work.prompt_tokens, work.prompt_of, lengths)


@pytest.mark.parametrize("uncertain", [False, True])
@pytest.mark.parametrize("kind", ["deadline_s", pytest.param("budget_usd", marks=pytest.mark.full)])
def test_of_several_kinds_all_slots_are_named(uncertain, kind):
    work = sampled(WORK) if uncertain else WORK
    few, weight, cost = two_kinds(2), 1.0 if kind == "deadline_s" else 0.0, "usd" if kind == "budget_usd" else "gpu_s"
    plans = [mixed(work, models, solver.Objective(weight, cost=cost)) for models in (two_kinds(64), few)]
    taken = [plan.makespan_s if kind == "deadline_s" else plan.cost_usd for plan in plans]
    assert taken[0] < 0.8 * taken[1]
    objective = solver.Objective(**{kind: 0.5 * (taken[0] + taken[1])})
    with pytest.raises(solver.PlanningError) as refused:
        mixed(work, few, objective)
    pattern = r"; the cause is an actor's (\d+) to (\d+) slots: with (\d+) to (\d+) a plan meets the"
    have, also, enough, double = numbers(pattern, str(refused.value))
    assert (have, also) == (2, 4)
    assert 2 < enough <= double <= 2 * enough
    assert mixed(work, two_kinds(enough), objective).value is not None


@pytest.mark.parametrize(
    ("objective", "unit"),
    [
        (solver.Objective(budget_usd=2e-4), "USD"),
        (solver.Objective(budget_gpu_s=0.5), "GPU-seconds"),
        (solver.Objective(deadline_s=2e-3), "s"),
        (solver.Objective(deadline_s=2e-3, cvar_alpha=0.4), "s"),
    ],
)
def test_over_scenarios_on_several_kinds_the_sentence_says_what_is_needed(objective, unit):
    """Small numbers are shown, the least is a bound, GPUs are no advice for a budget, and the limit raised so is kept."""
    work, models = sampled(WORK), two_kinds(64)
    with pytest.raises(solver.PlanningError) as refused:
        mixed(work, models, objective)
    text = str(refused.value)
    what = "deadline" if objective.deadline_s is not None else "budget"
    over = "in the mean over" if objective.cvar_alpha == 1.0 else "in the mean of the worst 40% over"
    limit = objective.deadline_s or objective.budget
    found = re.match(
        rf"no plan found for the {what} of (\S+) {unit} {over} the length scenarios: the step needs at least (\S+) {unit}, "
        rf"and the best plan found takes (\S+); raise the {what} by (\S+) {unit}( or add GPUs)?$",
        text,
    )
    assert found, text
    shown, least, best, raised = (float(number) for number in found.groups()[:4])
    assert shown == pytest.approx(limit, rel=1e-2)
    assert limit < least <= best * 1.001
    assert least > 0.5 * best
    assert (found[5] is not None) == (what == "deadline")
    enough = {"deadline_s": None, "budget_usd": None, "budget_gpu_s": None}
    name = next(name for name in enough if getattr(objective, name) is not None)
    later = replace(objective, **{name: limit + raised})
    assert np.isfinite(mixed(work, models, later).value)
