"""The error message for a limit that no plan keeps: its numbers, its cause, and more room that would be enough."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from solver_strategies import l40s, lognormal_workload

import solver
from solver.generation.infeasible import MOST_TRIES, MissedLimit, more_room, no_room, too_long_together
from solver.generation.random_split import random_split

WORK = lognormal_workload(16, 4)
CLUSTER = solver.Cluster(1, 8, 2)
REST = solver.NonGenerationPhases(prepare_s=1.0, learn_s=2.0, learner_gpus=4)
KINDS = solver.MixedCluster([solver.GpuPool("a", 1, 4), solver.GpuPool("b", 1, 4)])


def limited(limit: dict[str, float], slots: int = 1024, *, kinds: bool = False, work: solver.Workload = WORK, **options):
    model = l40s(max_batch=slots)
    models = {("a", 2): replace(model, kind="a"), ("b", 2): replace(model, kind="b", max_batch=2 * slots)}
    where = (KINDS, models) if kinds else (CLUSTER, model)
    return solver.PlanningProblem(work, *where, solver.Objective(**limit), REST, **options)


def step(problem: solver.PlanningProblem) -> float:
    """What the limit counts, for the random split that misses it least."""
    split = random_split(problem)
    if problem.objective.deadline_s is not None:
        return REST.step_time_s(split.makespan_s)
    return REST.step_gpu_s(split.makespan_s, split.gpu_seconds)


def split_within(problem: solver.PlanningProblem) -> None:
    """Refuse a problem whose random split misses the limit."""
    if step(problem) > (problem.objective.deadline_s or problem.objective.budget):
        raise solver.PlanningError("missed")


@pytest.mark.parametrize("kinds", [False, True])
@pytest.mark.parametrize("limit", ["deadline_s", "budget_gpu_s"])
def test_the_least_is_below_the_best_and_the_limit_is_raised_by_what_is_missing(limit, kinds):
    best = step(limited({limit: 1.0}, kinds=kinds))
    missed = MissedLimit.of(limited({limit: 0.9 * best}, kinds=kinds), best)
    assert 0 < missed.least <= best
    text = missed.message()
    raised = re.search(r"raise the (?:deadline|budget) by ([\d.]+)", text)
    assert raised, text
    assert 0.9 * best + float(raised[1]) >= best
    assert ("add GPUs" in text) == (limit == "deadline_s")
    assert "time_limit" not in text


def test_a_limit_below_the_bound_is_impossible_and_one_above_it_in_doubt():
    best = step(limited({"deadline_s": 1.0}))
    impossible, doubtful = (MissedLimit.of(limited({"deadline_s": s}), best) for s in (4.0, 0.999 * best))
    assert impossible.impossible
    assert not doubtful.impossible
    assert "may exist" not in impossible.message()
    assert "may exist" in doubtful.message()
    proven = MissedLimit.of(limited({"deadline_s": 0.999 * best}), best, proven=True)
    assert proven.impossible
    assert proven.least == best


def test_over_scenarios_the_message_says_of_what_the_numbers_are_means():
    lengths = np.clip(WORK.response_tokens * np.random.default_rng(0).lognormal(0, 0.3, (4, len(WORK))), 1, 2048)
    work = solver.Workload(WORK.prompt_tokens, WORK.prompt_of, lengths, max_response_tokens=2048)
    text = MissedLimit.of(limited({"deadline_s": 4.0, "cvar_alpha": 0.5}, work=work), 20.0).message()
    assert "worst 50%" in text
    assert "scenarios" in text


@pytest.mark.parametrize("kinds", [False, True])
def test_slots_that_are_enough_are_named(kinds):
    roomy, few = (step(limited({"deadline_s": 1.0}, slots, kinds=kinds)) for slots in (1024, 3))
    problem = limited({"deadline_s": (roomy + few) / 2}, 3, kinds=kinds)
    calls: list[int] = []

    def plan(asked: solver.PlanningProblem) -> None:
        calls.append(1)
        split_within(asked)

    text = more_room(problem, plan, impossible=True)
    assert len(calls) <= MOST_TRIES
    has, enough = re.search(r"an actor's (\d+)[^:]* slots: with (\d+)", text).groups()
    assert int(has) == 3 < int(enough)
    split_within(replace(problem, latency=limited({"deadline_s": 1.0}, int(enough), kinds=kinds).latency))


def test_room_that_would_not_help_is_not_named():
    problem = limited({"deadline_s": 0.5 * step(limited({"deadline_s": 1.0}))}, 3)
    assert more_room(problem, split_within, impossible=True) == ""
    assert more_room(limited({"deadline_s": 1.0}), split_within, impossible=True) == ""


@pytest.mark.parametrize("kinds", [False, True])
def test_a_prompt_that_is_too_long_together_is_named_by_its_number(kinds):
    tokens = np.full((8, 4), 100)
    tokens[5] = 2000
    work = solver.Workload.grid([10] * 8, tokens, max_response_tokens=2048)
    problem = limited({"deadline_s": 8.0}, 2, kinds=kinds, work=work, keep_together=True)
    assert "prompt 5" in too_long_together(problem)
    assert "prompt 50" in too_long_together(problem, np.arange(0, 80, 10))
    assert "4 responses" in too_long_together(problem)
    assert too_long_together(replace(problem, keep_together=False)) == ""
    assert too_long_together(replace(problem, objective=solver.Objective(deadline_s=1e3))) == ""
    assert too_long_together(replace(problem, objective=solver.Objective())) == ""


def test_pools_without_room_are_named():
    text = no_room(limited({"deadline_s": 8.0}, kinds=True), 5, 9)
    assert all(named in text for named in ("5 to 9 actors", "8 GPUs", "min_actors"))
