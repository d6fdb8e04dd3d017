"""Filling chosen actors item by item: everything once, in order, by the least makespan; and repairs that keep a plan whole."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_brute_force import mixed_instances
from solver_strategies import instances, l40s, lognormal_workload, problem_of

import solver
from solver.generation.columns import Prices
from solver.generation.fill import WIDTH, Filler, Opening
from solver.generation.plan_values import PlanValues, ValuedPlan
from solver.generation.random_split import reference_of, sized_split
from solver.generation.repairs import ItemsOf, exchanged, levelled, repacked
from solver.timing.items import Items

either = st.one_of(
    st.booleans().flatmap(lambda refill: instances(refill=refill)),
    st.booleans().flatmap(lambda refill: mixed_instances(refill=refill)),
)


def filler_of(problem: solver.PlanningProblem) -> Filler:
    return Filler(Prices(problem, Items.of(replace(problem, workload=problem.workload.points))))


@st.composite
def openings_of(draw: st.DrawFn, problem: solver.PlanningProblem) -> list[Opening]:
    """Up to three single actors of any offers, prewarmed ones where a pool has such."""
    offers = draw(st.lists(st.integers(0, len(problem.offers) - 1), min_size=1, max_size=3))
    return [Opening(r, 1, draw(st.booleans()) and problem.offers[r].prewarmed > 0) for r in offers]


@given(st.data(), either, st.booleans())
@settings(max_examples=40, deadline=None)
def test_what_is_filled_holds_everything_once_in_order(data, instance, together):
    problem = problem_of(instance, keep_together=together)
    filler, openings = filler_of(problem), data.draw(openings_of(problem))
    items = filler.items
    filled = filler.least(openings, items.shortest_makespan_s, items.longest_makespan_s)
    if filled is None:  # no actor after the first may hold the longest response
        assert not items.allowed[[opening.offer for opening in openings]].all()
        return
    assert [share.first for share in filled.shares] == [0, *(share.last for share in filled.shares[:-1])]
    assert filled.shares[-1].last == len(items)
    for share in filled.shares:
        assert items.allowed[share.offer, share.first : share.last].all()
    actors = filler.actors(filled.shares)
    assert sorted(np.concatenate([group for _, group in actors]).tolist()) == list(range(len(problem.workload)))


def least_in_order(prices: Prices, openings: list[Opening], items: int) -> float:
    """The least makespan of giving the sorted items, in their order, to actors in theirs, by trying every division."""
    took = {}
    for r in {opening.offer for opening in openings}:
        for warm in (False, True):
            columns = prices.of_offer(r, np.arange(items + 1), [1], warm)
            for c in range(len(columns)):
                took[r, warm, int(columns.first[c]), int(columns.last[c])] = float(columns.time_s[c].mean())
    best = math.inf
    for inner in itertools.combinations_with_replacement(range(items + 1), len(openings) - 1):
        edges = [0, *inner, items]
        parts = zip(openings, itertools.pairwise(edges), strict=True)
        best = min(best, max(took.get((o.offer, o.warm, a, b), math.inf) for o, (a, b) in parts if a < b))
    return best


@given(st.data(), st.one_of(instances(refill=False), mixed_instances(refill=False)))
@settings(max_examples=40, deadline=None)
def test_nothing_in_this_order_is_faster_than_what_is_filled(data, instance):
    problem = problem_of(instance)
    filler, openings = filler_of(problem), data.draw(openings_of(problem))
    items = filler.items
    filled = filler.least(openings, items.shortest_makespan_s, items.longest_makespan_s)
    best = least_in_order(Prices(problem, items), openings, len(items))
    assert filled is not None
    assert filled.makespan_s <= best * (1 + 2 * WIDTH) + 1e-9
    late = filler.at(openings, best * (1 + 1e-6) + 1e-12)
    assert late is not None, "the best division is found at its makespan"


def starting_plan(problem: solver.PlanningProblem) -> tuple[PlanValues, ValuedPlan, ItemsOf]:
    """The right-sized random split, valued."""
    values = PlanValues(problem, Items.of(replace(problem, workload=problem.workload.points)))
    split = sized_split(problem)
    values.set_reference(reference_of(problem, split).norms(problem.objective.cost))
    return values, values.with_times(split.actors, split.busy_s), ItemsOf(values)


def check_whole(problem: solver.PlanningProblem, actors: list[tuple[int, np.ndarray]]) -> None:
    """Every response is on one actor, which can hold it; prompts that stay together do."""
    assert sorted(np.concatenate([group for _, group in actors]).tolist()) == list(range(len(problem.workload)))
    for r, group in actors:
        assert len(group)
        assert (problem.workload.reserved_tokens[group] <= problem.offers[r].latency.kv_capacity_tokens).all()
    if problem.keep_together:
        owners = [prompt for _, group in actors for prompt in set(problem.workload.prompt_of[group].tolist())]
        assert len(owners) == len(set(owners))


REPAIRED = {
    "slots": {"max_batch": 8},
    "memory": {"kv_capacity_tokens": 9000},
    "neither": {},
}


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("name", REPAIRED)
def test_repairs_keep_plans_whole(name, together):
    work = lognormal_workload(12, 4, limit=1024)
    latency = l40s(start_s=0.2, **REPAIRED[name])
    problem = solver.PlanningProblem(work, solver.Cluster(4, 2, 2), latency, solver.Objective(1.0), keep_together=together)
    values, plan, of = starting_plan(problem)
    found = [*repacked(values, plan, of, timed=3)]
    assert found or name != "slots"
    moved = levelled(values, plan, of)
    assert moved is not None
    for actors in [*found, moved]:
        check_whole(problem, actors)
        assert len(actors) <= 4
    better = exchanged(values, plan, of, 500)
    check_whole(problem, better.actors)
    assert better.rank < plan.rank
    assert values.of(better.actors).rank == pytest.approx(better.rank)


@given(either, st.booleans(), st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=30, deadline=None)
def test_repairs_of_any_plan_are_plans(instance, together, weight):
    problem = problem_of(instance, solver.Objective(weight), keep_together=together)
    values, plan, of = starting_plan(problem)
    repaired = [*repacked(values, plan, of, timed=3)]
    moved = levelled(values, plan, of)
    for actors in repaired if moved is None else [*repaired, moved]:
        check_whole(problem, actors)
    better = exchanged(values, plan, of, 50)
    check_whole(problem, better.actors)
    assert better.rank <= plan.rank
