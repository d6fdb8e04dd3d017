"""Exchanges between actors of several kinds: nothing lost, never worse, timed as ``evaluate`` times them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from planning_problems import several_kinds
from solver_strategies import lognormal_workload, mixed_problem, search_mixed

import solver
from solver.model.offers import offers_of
from solver.planning.mixed_kinds.exchanges import exchanged
from solver.planning.mixed_kinds.incumbents import Plans
from solver.planning.mixed_kinds.items import MixedWork
from solver.planning.work_budget import WorkBudget

WORK = lognormal_workload(16, 4, seed=3)


def problem_of(slots: int, **options):
    cluster, models = several_kinds(slots)
    return mixed_problem(WORK, offers_of(cluster, models), cluster, solver.Objective(0.5, cost="usd"), **options)


@pytest.mark.parametrize("options", [{}, {"keep_together": True}, {"share_prefill": True}, {"min_actors": 3}])
def test_a_filled_plan_becomes_better_and_keeps_its_responses(options):
    problem = problem_of(2, **options)
    plans = Plans(problem, MixedWork.of(problem), WorkBudget())
    plans.fill_split()
    before, filled = plans.value, plans._filled
    assert filled is not None
    better = exchanged(filled, problem, plans._improvers[0].filler, plans.goal, 0.1, math.inf)
    assert better is not None
    assert better.value < filled.value
    plans.exchange(0.1, math.inf)
    assert plans.value == pytest.approx(better.value)
    assert plans.value < before
    assert sorted(i for group in better.groups for i in group) == list(range(len(WORK)))
    assert len(better.groups) >= problem.needed_actors
    owners = [set(WORK.prompt_of[list(group)].tolist()) for group in better.groups]
    assert not problem.keep_together or sum(map(len, owners)) == len(set().union(*owners))


def test_where_all_fit_at_once_there_is_nothing_to_exchange():
    problem = problem_of(1024)
    plans = Plans(problem, MixedWork.of(problem), WorkBudget())
    filler = plans._improvers[0].filler
    filled = filler.fill(((0, 0), (1, 0)), 100.0)
    assert exchanged(filled, problem, filler, plans.goal, 0.1, math.inf) is None


def test_a_search_ends_with_exchanges_and_never_reads_the_clock():
    problem = problem_of(2)
    found = [search_mixed(problem, 0.2).plan for _ in range(2)]
    assert found[0].history[-1].solver == "exchanges"
    assert found[0].value == found[1].value
    taken = solver.evaluate(found[0], dataclasses.replace(problem_given(problem), workload=WORK))
    assert np.isclose(taken.makespan_s, found[0].makespan_s)


def problem_given(problem) -> solver.PlanningProblem:
    return solver.PlanningProblem(problem.workload, problem.cluster, problem.latency, problem.objective, problem.phases)
