"""What a time weight, a deadline or a budget minimises: ``T^w C^(1-w)``, the cost, or the time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from solver import Objective

amounts = st.floats(1e-3, 1e6)
weights = st.sampled_from([0.0, 0.2, 0.5, 0.7, 1.0])
tails = st.sampled_from([1.0, 0.5, 0.25])
references = st.tuples(amounts, amounts)
scenarios = st.integers(1, 6).flatmap(lambda count: st.lists(st.tuples(amounts, amounts), min_size=count, max_size=count))


def objectives(weight: float = 0.7) -> st.SearchStrategy[Objective]:
    limits = st.sampled_from(["deadline_s", "budget_gpu_s"])
    return st.one_of(weights.map(Objective), st.builds(lambda name, limit: Objective(weight, **{name: limit}), limits, amounts))


def columns(pairs: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([time_s for time_s, _ in pairs]), np.array([cost for _, cost in pairs])


@given(weights, amounts, amounts, references)
def test_the_value_is_the_product_relative_to_a_reference(w: float, time_s: float, cost: float, reference: tuple[float, float]):
    objective = Objective(w)
    expected = (time_s / reference[0]) ** w * (cost / reference[1]) ** (1 - w)
    assert objective.value(time_s, cost, reference) == pytest.approx(expected, rel=1e-9)
    assert objective.value(*reference, reference) == pytest.approx(1.0)
    assert objective.key(time_s, cost) == pytest.approx((0.0, time_s**w * cost ** (1 - w)))


@given(weights)
def test_one_per_cent_of_time_is_w_per_cent_of_the_value(w: float):
    """A product says so everywhere, whatever time and cost are; a weighted sum says so at its reference alone."""
    objective = Objective(w)
    for time_s, cost in ((1.0, 1.0), (50.0, 3.0), (0.02, 9e5)):
        value = objective.value(time_s, cost)
        assert objective.value(0.99 * time_s, cost) / value == pytest.approx(0.99**w)
        assert objective.value(time_s, 0.99 * cost) / value == pytest.approx(0.99 ** (1 - w))


@given(objectives(), amounts, amounts, st.floats(1, 3), st.floats(1, 3), references)
def test_no_value_and_no_key_falls_where_time_or_cost_grows(
    objective: Objective, time_s: float, cost: float, slower: float, dearer: float, reference: tuple[float, float]
):
    less, more = (time_s, cost), (time_s * slower, cost * dearer)
    assert objective.value(*less, reference) <= objective.value(*more, reference) * (1 + 1e-12)
    assert objective.key(*less)[0] <= objective.key(*more)[0]
    if objective.key(*more)[0] == 0:
        assert objective.key(*less)[1] <= objective.key(*more)[1] * (1 + 1e-12)


@given(weights, tails, scenarios, st.data(), references)
def test_the_order_of_two_plans_depends_on_no_reference_and_no_unit(
    w: float, tail: float, one: list[tuple[float, float]], data: st.DataObject, reference: tuple[float, float]
):
    other = data.draw(st.lists(st.tuples(amounts, amounts), min_size=len(one), max_size=len(one)))
    objective, (a, b) = Objective(w, cvar_alpha=tail), (columns(one), columns(other))
    keys = [objective.key(*plan)[1] for plan in (a, b)]
    assume(abs(keys[0] - keys[1]) > 1e-6 * max(keys))
    first = keys[0] < keys[1]
    assert (objective.value_over(*a, reference) < objective.value_over(*b, reference)) == first
    milliseconds, dollars = 1e3, 2.5 / 3600
    scaled = [objective.value_over(time_s * milliseconds, cost * dollars) for time_s, cost in (a, b)]
    assert (scaled[0] < scaled[1]) == first


@given(weights, tails, scenarios, references)
def test_over_scenarios_it_is_the_risk_of_the_products(
    w: float, tail: float, pairs: list[tuple[float, float]], reference: tuple[float, float]
):
    objective, (times, costs) = Objective(w, cvar_alpha=tail), columns(pairs)
    products = np.array([objective.value(*pair, reference) for pair in pairs])
    value = objective.value_over(times, costs, reference)
    assert value == pytest.approx(objective.risk(products))
    assert products.mean() <= value * (1 + 1e-9)
    assert value <= products.max() * (1 + 1e-9)
    assert objective.value_over(times[::-1], costs[::-1], reference) == pytest.approx(value)


@given(tails, scenarios)
def test_under_a_limit_the_risks_of_time_and_cost_are_compared(tail: float, pairs: list[tuple[float, float]]):
    times, costs = columns(pairs)
    free = Objective(cvar_alpha=tail)
    time_s, cost = free.risk(times), free.risk(costs)
    assert Objective(deadline_s=time_s, cvar_alpha=tail).value_over(times, costs) == pytest.approx(cost)
    assert Objective(budget_gpu_s=cost, cvar_alpha=tail).value_over(times, costs) == pytest.approx(time_s)
    assert math.isinf(Objective(deadline_s=time_s * 0.99, cvar_alpha=tail).value_over(times, costs))
    assert math.isinf(Objective(budget_gpu_s=cost * 0.99, cvar_alpha=tail).value_over(times, costs))


@pytest.mark.parametrize("limit", ["deadline_s", "budget_gpu_s", "budget_usd"])
def test_the_nearest_miss_has_the_least_key_and_any_plan_within_comes_first(limit: str):
    objective = Objective(**{limit: 10.0})
    pair = (lambda limited, other: (limited, other)) if limit == "deadline_s" else (lambda limited, other: (other, limited))
    plans = {"within": pair(9.0, 70.0), "cheaper within": pair(10.0, 60.0), "near": pair(10.5, 1.0), "far": pair(99.0, 0.1)}
    ranked = sorted(plans, key=lambda name: objective.key(*plans[name]))
    assert ranked == ["cheaper within", "within", "near", "far"]
    assert objective.key(*plans["near"])[0] == pytest.approx(0.5)
    for name, plan in plans.items():
        assert math.isinf(objective.value(*plan)) == (name in ("near", "far"))


@given(objectives(), st.lists(st.tuples(amounts, amounts), min_size=1, max_size=8), references)
def test_values_of_arrays_are_those_of_single_plans(
    objective: Objective, pairs: list[tuple[float, float]], reference: tuple[float, float]
):
    values = objective.values(*columns(pairs), reference)
    assert values.tolist() == [objective.value(*pair, reference) for pair in pairs]


@given(objectives(), amounts, amounts, st.floats(1e-3, 1e3), references)
def test_no_plan_of_less_value_reaches_the_most_time_or_the_most_cost(
    objective: Objective, time_s: float, cost: float, bound: float, reference: tuple[float, float]
):
    value = objective.value(time_s, cost, reference)
    assume(value < bound)
    assert cost <= objective.most_cost(bound, time_s, reference) * (1 + 1e-9)
    assert time_s <= objective.most_time(bound, cost, reference) * (1 + 1e-9)
    if not objective.limited:
        for found, plan in (
            (objective.most_cost(bound, time_s, reference), lambda most: (time_s, most)),
            (objective.most_time(bound, cost, reference), lambda most: (most, cost)),
        ):
            assert math.isinf(found) or objective.value(*plan(found), reference) == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize("w", [0.2, 0.7])
def test_a_second_is_worth_the_cost_that_leaves_the_value_as_it_is(w: float):
    objective, (time_s, cost) = Objective(w), (40.0, 900.0)
    little = 1e-6 * time_s
    saved = little * objective.cost_of_a_second(time_s, cost)
    assert objective.value(time_s + little, cost - saved) == pytest.approx(objective.value(time_s, cost), rel=1e-11)
    assert Objective(0.0).cost_of_a_second(time_s, cost) == 0.0
    assert math.isinf(Objective(1.0).cost_of_a_second(time_s, cost))
