"""A column's price is what ``evaluate`` says of its items where all fit at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_brute_force import mixed_instances
from solver_strategies import LIMIT, instances, l40s, lognormal_workload, problem_of

import solver
from solver.generation.columns import Prices, closer_cuts, first_cuts
from solver.generation.fill import Filler, Share
from solver.timing.items import Items

anywhere = st.one_of(instances(refill=False), mixed_instances(refill=False))
OPTIONS = [{}, {"keep_together": True}, {"keep_together": True, "share_prefill": True}]


def priced(problem: solver.PlanningProblem, cuts: np.ndarray | None = None, counts=(1,)):
    """The items, the pricing and the columns of a problem, a cell for every item."""
    items = Items.of(replace(problem, workload=problem.workload.points))
    prices = Prices(problem, items)
    return items, prices, prices.of_offers(np.arange(len(items) + 1) if cuts is None else cuts, counts)


def check_prices(problem: solver.PlanningProblem, exact: float = 1e-9) -> int:
    """Compare every column of one actor with a plan in which that actor takes its items, and others the rest; return how many
    were compared."""
    items, prices, columns = priced(problem)
    filler, work, compared = Filler(prices), problem.workload, 0
    cases = work.cases()
    for c in range(len(columns)):
        r, first, last = int(columns.offer[c]), int(columns.first[c]), int(columns.last[c])
        group = filler.actors([Share(r, 1, first, last)])[0][1]
        works = np.array([(case.iterations[group] > 0).any() for case in cases])
        if problem.offers[r].latency.prefill_base_s and not (items.call_at_least and works.all()):
            continue  # whether an actor makes a prefill call is counted for all actors or for none
        rest = np.setdiff1d(np.arange(len(work)), group)
        offers = (
            [r] if not len(rest) else [r, next((q for q in range(len(problem.offers)) if problem.offers[q].max_actors > 1), -1)]
        )
        if len(offers) == 2 and offers[1] < 0:
            continue
        groups = [group] if not len(rest) else [group, rest]
        given_groups = list(zip(offers, groups, strict=True)) if problem.several_kinds else groups
        try:
            plan = solver.plan_of(given_groups, problem)
        except solver.PlanningError:
            continue  # the rest fits nowhere beside it
        actor = next(a for a in plan.actors if set(a.responses) == set(group.tolist()))
        if actor.prewarmed != bool(columns.warm[c]):
            continue
        assert columns.time_s[c].mean() == pytest.approx(actor.predicted_s, rel=exact, abs=1e-12)
        if not len(rest):
            taken = solver.evaluate(plan, problem)
            np.testing.assert_allclose(columns.time_s[c], taken.makespans_s, rtol=exact, atol=1e-12)
            held = columns.held_s[c] * problem.offers[r].gpus
            np.testing.assert_allclose(held, taken.gpu_seconds_of, rtol=exact, atol=1e-12)
        compared += 1
    return compared


@given(anywhere, st.sampled_from(OPTIONS))
@settings(max_examples=40, deadline=None)
def test_prices_are_exact_on_one_kind_of_actors_and_several(instance, options):
    check_prices(problem_of(instance, **options))


@given(st.data(), anywhere)
@settings(max_examples=30, deadline=None)
def test_prices_are_exact_in_every_scenario(data, instance):
    work = instance.workload
    row = st.lists(st.integers(1, LIMIT), min_size=len(work), max_size=len(work))
    lengths = data.draw(st.lists(row, min_size=2, max_size=4))
    sampled = solver.Workload(work.prompt_tokens, work.prompt_of, lengths, max_response_tokens=LIMIT)
    check_prices(problem_of(instance._replace(workload=sampled)))


@given(st.data(), instances(refill=False))
@settings(max_examples=30, deadline=None)
def test_prices_are_exact_with_passes(data, instance):
    work = instance.workload
    remaining = work.remaining_tokens
    drafts = np.array(data.draw(st.lists(st.floats(1.0, 6.0), min_size=len(work), max_size=len(work))))
    drafted = solver.Workload(
        work.prompt_tokens, work.prompt_of, work.response_tokens, work.generated_tokens, work.max_response_tokens,
        passes=np.ceil(remaining / drafts), fed_per_pass=np.maximum(1.0, drafts),
    )  # fmt: skip
    check_prices(problem_of(instance._replace(workload=drafted)))


def test_many_prices_are_compared_cold_and_prewarmed():
    latency = l40s(prefill_base_s=4e-3, join_s=1e-3, sync_s=0.3)
    for prewarmed in (0, 2):
        problem = solver.PlanningProblem(lognormal_workload(2, 3), solver.Cluster(2, 2, 2, prewarmed=prewarmed), latency)
        assert check_prices(problem) == 6 * 7 / 2
        warm = priced(problem)[2].warm
        assert warm.all() == warm.any() == bool(prewarmed)


@pytest.mark.parametrize("slots", [16, 4])
def test_prompts_that_share_iterations_with_decoding_are_priced_within_an_iteration(slots):
    """A response waits for whole iterations; the price counts the tokens before it over the budget."""
    work = solver.Workload.grid([40, 30, 50, 20], [[30], [25], [20], [6]], max_response_tokens=64)
    latency = l40s(max_batch=slots, start_s=0.0).with_mixed_prefill(slots + 24)
    problem = solver.PlanningProblem(work, solver.Cluster(2, 2, 2), latency)
    _, prices, columns = priced(problem)
    for c in range(len(columns)):
        group = Filler(prices).actors([Share(0, 1, int(columns.first[c]), int(columns.last[c]))])[0][1]
        rest = np.setdiff1d(np.arange(4), group)
        plan = solver.plan_of([group, rest] if len(rest) else [group], problem)
        assert columns.time_s[c, 0] == pytest.approx(plan.actors[0].predicted_s, abs=2.5 * latency.base_s)


def test_actors_that_share_a_column_take_what_each_of_them_would():
    """Equal responses, as many on every actor: the price of the shared column is that of each actor's own."""
    work = solver.Workload.grid([50] * 8, np.full((8, 1), 100))
    problem = solver.PlanningProblem(work, solver.Cluster(4, 2, 2), l40s())
    columns = priced(problem, counts=(1, 2, 4))[2]
    whole = (columns.first == 0) & (columns.last == 8)
    for n in (1, 2, 4):
        c = int(np.flatnonzero(whole & (columns.actors == n))[0])
        plan = solver.plan_of([np.arange(8)[k::n] for k in range(n)], problem)
        assert columns.time_s[c, 0] == pytest.approx(plan.makespan_s)
        assert columns.held_s[c, 0] * 2 == pytest.approx(plan.gpu_seconds)


def test_round_robin_shares_are_even_and_complete():
    problem = solver.PlanningProblem(lognormal_workload(16, 4), solver.Cluster(4, 2, 2), l40s())
    _, prices, _ = priced(problem)
    actors = Filler(prices).actors([Share(0, 4, 0, 64)])
    assert sorted(np.concatenate([group for _, group in actors]).tolist()) == list(range(64))
    busy = [a.predicted_s for a in solver.plan_of([group for _, group in actors], problem).actors]
    assert max(busy) - min(busy) < 0.35 * max(busy)


def test_columns_that_are_later_than_the_latest_makespan_are_left_out():
    problem = solver.PlanningProblem(lognormal_workload(16, 4), solver.Cluster(4, 2, 2), l40s(max_batch=8))
    _, prices, columns = priced(problem)
    latest_s = float(np.median(columns.time_s.mean(axis=1)))
    fewer = prices.of_offers(np.arange(65), (1,), latest_s)
    assert 0 < len(fewer) < len(columns)
    assert fewer.time_s.mean(axis=1).max() <= 1.02 * latest_s
    assert (columns.time_s.mean(axis=1) <= latest_s).sum() <= len(fewer)


@given(st.integers(1, 300), st.integers(1, 60), st.data())
@settings(max_examples=30, deadline=None)
def test_cuts_rise_from_the_first_item_to_the_last(count, cells, data):
    lengths = np.random.default_rng(count).integers(0, 1000, count)
    problem = solver.PlanningProblem(
        solver.Workload([5], [0] * count, lengths), solver.Cluster(1, 1, 1), solver.LatencyModel("x", 1, 1e-3, 1e-5)
    )
    cuts = first_cuts(Items.of(problem), cells)
    assert (cuts[0], cuts[-1]) == (0, count)
    assert (np.diff(cuts) > 0).all()
    assert len(cuts) - 1 <= max(cells, 1)
    chosen = data.draw(st.lists(st.sampled_from(cuts.tolist()), max_size=4))
    closer = closer_cuts(cuts, chosen, cells)
    assert (closer[0], closer[-1]) == (0, count)
    assert (np.diff(closer) > 0).all()
    assert set(chosen) <= set(closer.tolist())
