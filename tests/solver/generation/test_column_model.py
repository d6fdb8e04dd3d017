"""The columns that GLOP and SCIP buy: as cheap as any path over the cuts, and within the pools."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_brute_force import mixed_instances
from solver_strategies import instances, l40s, lognormal_workload, problem_of

import solver
from solver.generation.column_model import NEAR, ColumnModel, risks
from solver.generation.columns import Prices
from solver.model.cluster import GpuPool, MixedCluster
from solver.timing.items import Items
from solver.timing.step_cost import StepObjective

shares = st.sampled_from([0.0, 0.2, 0.5, 0.9])


def model_of(problem: solver.PlanningProblem, counts=(1, 2, 3)) -> ColumnModel:
    """The model with a cell for every item."""
    items = Items.of(replace(problem, workload=problem.workload.points))
    columns = Prices(problem, items).of_offers(np.arange(len(items) + 1), counts)
    return ColumnModel(columns, len(items), items, problem, StepObjective.of_problem(problem, (1.0, 1.0)))


def makespan_of(model: ColumnModel, share: float) -> float:
    """One of the risks of the columns."""
    return float(np.quantile(model.risk_s, share, method="nearest"))


def cheapest_path(model: ColumnModel, makespan_s: float) -> float:
    """Least cost of columns that cover everything, by dynamic programming from the last cut; infinite if there are none."""
    cost, usable = model.cost_at(makespan_s), model.risk_s <= makespan_s * (1 + 1e-9)
    least = [math.inf] * model.cells + [0.0]
    for p in range(model.cells - 1, -1, -1):
        for c in np.flatnonzero(usable & (model.columns.first == p)).tolist():
            least[p] = min(least[p], cost[c] + least[int(model.columns.last[c])])
    return least[0]


def paths(model: ColumnModel, makespan_s: float) -> Iterator[list[int]]:
    """Every choice of columns that covers everything in time."""
    usable = model.risk_s <= makespan_s * (1 + 1e-9)

    def onwards(p: int) -> Iterator[list[int]]:
        if p == model.cells:
            yield []
            return
        for c in np.flatnonzero(usable & (model.columns.first == p)).tolist():
            for rest in onwards(int(model.columns.last[c])):
                yield [c, *rest]

    return onwards(0)


def within_pools(model: ColumnModel, problem: solver.PlanningProblem, chosen: list[int]) -> bool:
    """Whether the chosen columns keep the pools' GPUs, size by size, the prewarmed actors and the bounds on their number."""
    columns, offers = model.columns, problem.offers
    bought = [(int(columns.offer[c]), int(columns.actors[c]), bool(columns.warm[c])) for c in chosen]
    for i, pool in enumerate(problem.cluster.pools):
        sizes = {1, *(offer.gpus for offer in offers if offer.pool == i)}
        for size in sizes:
            used = sum(n * (offers[r].gpus // size) for r, n, _ in bought if offers[r].pool == i)
            if used > pool.nodes * (pool.gpus_per_node // size):
                return False
        if sum(n for r, n, warm in bought if warm and offers[r].pool == i) > pool.prewarmed:
            return False
    actors = sum(n for _, n, _ in bought)
    return problem.needed_actors <= actors <= (problem.max_actors or math.inf)


@given(st.booleans().flatmap(lambda refill: instances(refill=refill)), shares)
@settings(max_examples=30, deadline=None)
def test_with_room_for_all_the_choice_is_the_cheapest_path(instance, share):
    count = len(instance.workload)
    roomy = instance._replace(cluster=replace(instance.cluster, nodes=count + 3))
    model = model_of(problem_of(roomy))
    makespan_s = makespan_of(model, share)
    least, relaxed = cheapest_path(model, makespan_s), model.at(makespan_s)
    assert (relaxed is None) == math.isinf(least)
    if relaxed is None:
        return
    np.testing.assert_allclose(relaxed.cost, least, rtol=1e-6, atol=1e-12)
    chosen = model.whole(makespan_s, relaxed)
    assert chosen is not None
    np.testing.assert_allclose(model.cost_at(makespan_s)[chosen].sum(), least, rtol=1e-6, atol=1e-12)


@given(mixed_instances(refill=False), shares, st.sampled_from(["done", "generation"]), st.integers(1, 2), st.integers(0, 2))
@settings(max_examples=40, deadline=None)
def test_within_pools_no_choice_of_whole_columns_is_cheaper(instance, share, release, least, more):
    problem = problem_of(instance, min_actors=least, max_actors=least + more, release=release)
    model = model_of(problem, (1, 2))
    makespan_s = makespan_of(model, share)
    cost = model.cost_at(makespan_s)
    fitting = [cost[path].sum() for path in paths(model, makespan_s) if within_pools(model, problem, path)]
    relaxed = model.at(makespan_s)
    if relaxed is None:
        assert not fitting
        return
    best = min(fitting, default=math.inf)
    assert relaxed.cost <= best * (1 + 1e-6) + 1e-12
    chosen = model.whole(makespan_s, relaxed)
    if chosen is not None:
        assert within_pools(model, problem, chosen.tolist())
        assert cost[chosen].sum() >= best * (1 - 1e-9)
    if best <= relaxed.cost * (1 + 0.9 * NEAR):
        assert chosen is not None
        np.testing.assert_allclose(cost[chosen].sum(), best, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_choice_that_pools_make_fractional_is_made_whole_by_scip(seed):
    """Actors are bought in pairs, but the cheap pool has room for three: the linear programme buys a pair and a half."""
    cheap = replace(l40s(start_s=0.5, max_batch=24), gpus_per_actor=1, kind="cheap")
    models = {("cheap", 1): cheap, ("dear", 1): replace(cheap, kind="dear")}
    pools = MixedCluster([GpuPool("cheap", 1, 3, 1.0), GpuPool("dear", 1, 12, 5.0)])
    work = lognormal_workload(6, 4, seed=seed)
    problem = solver.PlanningProblem(work, pools, models, solver.Objective(cost="usd"))
    model = model_of(problem, (2,))
    makespan_s = float(model.items.shortest_makespan_s)
    relaxed = model.at(makespan_s)
    assert relaxed is not None
    assert np.abs(relaxed.values - np.rint(relaxed.values)).max() > 0.1
    chosen = model.whole(makespan_s, relaxed)
    assert chosen is not None
    assert within_pools(model, problem, chosen.tolist())
    first, last = model.columns.first[chosen], model.columns.last[chosen]
    assert (first[0], last[-1]) == (0, model.cells)
    assert (first[1:] == last[:-1]).all()
    assert model.risk_s[chosen].max() <= makespan_s * (1 + 1e-9)
    assert model.cost_at(makespan_s)[chosen].sum() >= relaxed.cost * (1 - 1e-6)


def test_longer_makespans_never_cost_more_and_too_short_ones_have_no_choice():
    problem = solver.PlanningProblem(lognormal_workload(8, 4), solver.Cluster(4, 2, 2), l40s(max_batch=8, start_s=0.1))
    model = model_of(problem, (1, 2, 4))
    assert model.at(0.99 * float(model.items.shortest_makespan_s)) is None
    found = [model.at(m) for m in np.geomspace(1.0, 3.0, 8) * float(np.quantile(model.risk_s, 0.3))]
    costs = [math.inf if one is None else one.cost for one in found]
    assert math.isfinite(costs[-1])
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in itertools.pairwise(costs))


def test_the_risk_of_a_column_is_that_of_the_objective():
    seconds = np.random.default_rng(0).random((5, 7))
    for tail in (1.0, 0.5, 0.3, 0.1):
        expected = [solver.Objective(cvar_alpha=tail).risk(row) for row in seconds]
        np.testing.assert_allclose(risks(seconds, tail), expected)
