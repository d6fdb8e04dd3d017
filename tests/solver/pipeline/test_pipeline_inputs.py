"""What is refused: malformed chains, problems, orders, deadlines and plans, each in one sentence."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from solver import PlanningError
from solver.pipeline import (
    Chain,
    PipelinePlan,
    PipelineProblem,
    evaluate_pipeline,
    fused,
    schedule_pipeline,
    serial,
)

GOOD: dict[str, Any] = {"name": "actor", "route": [0, 1], "micro_batches": 2, "forward": 1, "backward": 2, "activation": 1}
SMALL = PipelineProblem([Chain(**GOOD)])
ORDERS = schedule_pipeline(SMALL).orders


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("name", 3, "name"),
        ("route", [], "route"),
        ("route", 3, "route"),
        ("route", [0, -1], "-1"),
        ("route", [0, 0.5], "0.5"),
        ("micro_batches", 0, "micro_batches"),
        ("micro_batches", True, "micro_batches"),
        ("forward", 0, "forward"),
        ("forward", [1, 2, 3], "shape (3,)"),
        ("backward", math.inf, "inf"),
        ("backward", "1", "'1'"),
        ("activation", -1, "activation"),
        ("activation", [[1], [2, 3]], "activation"),
    ],
)
def test_malformed_chains(field: str, value: Any, named: str, snapshot: Any) -> None:
    with refused(PlanningError, named):
        Chain(**{**GOOD, field: value})


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"chains": []}, "chains"),
        ({"chains": [1]}, "chains"),
        ({"chains": [Chain(**GOOD), Chain(**GOOD)]}, "'actor'"),
        ({"devices": 1}, "device 1"),
        ({"memory": [2, 0.5]}, "device 1 has memory 0.5"),
        ({"chains": [Chain(**{**GOOD, "route": [0, 0]})], "memory": 1.5}, "2"),
        ({"memory": [1, 2, 3]}, "memory"),
        ({"transfer": -1}, "transfer"),
        ({"kept_for_weights": 2}, "kept_for_weights"),
        ({"split_backward": "yes"}, "split_backward"),
        ({"chains": [Chain(**{**GOOD, "micro_batches": 10**9})]}, "operations"),
        ({"chains": [Chain(**{**GOOD, "forward": 1e-9})]}, "1e-09"),
        ({"chains": [Chain(**{**GOOD, "forward": 1e300})]}, "too long"),
    ],
)
def test_malformed_problems(arguments: dict[str, Any], named: str) -> None:
    with refused(PlanningError, named):
        PipelineProblem(**{"chains": [Chain(**GOOD)], **arguments})


@pytest.mark.parametrize(
    ("actor", "critic", "named"),
    [
        ((8, 2, 4), (3, 1, 4), "do not divide"),
        ((8, 2), (4, 1, 4), "actor"),
        ((8, 2, 4), (4, "fast", 4), "critic"),
        ((0, 2, 4), (4, 1, 4), "stages"),
        ((10**9, 2, 4), (1, 1, 4), "stages"),
        ((8, 2, 4), (4, 1, 0), "micro_batches"),
    ],
)
def test_malformed_fusions(actor: Any, critic: Any, named: str) -> None:
    with refused(PlanningError, named):
        fused(actor, critic)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"objective": "speed"}, "objective"),
        ({"deadline": 5}, "deadline"),
        ({"deadline": math.nan}, "deadline"),
        ({"objective": "memory_within"}, "deadline"),
        ({"time_limit_s": -1}, "time_limit_s"),
        ({"seed": -1}, "seed"),
        ({"workers": 0}, "workers"),
        ({"memory": 0.5}, "memory"),
        ({"problem": 1}, "PipelineProblem"),
    ],
)
def test_malformed_searches(arguments: dict[str, Any], named: str) -> None:
    with refused(PlanningError, named):
        schedule_pipeline(**{"problem": SMALL, **arguments})


def test_a_deadline_that_is_not_reached_names_the_bound() -> None:
    problem = fused((8, 5, 8), (4, 4, 4), activations=(1, 1))
    with refused(PlanningError, "225"):
        schedule_pipeline(problem, memory=2, deadline=230, time_limit_s=0.01)


def test_orders_that_deadlock_name_who_waits() -> None:
    flipped = [ORDERS[0], ORDERS[1][::-1]]
    with refused(PlanningError, "micro-batch 0 of B of stage 1"):
        evaluate_pipeline(SMALL, flipped)


@pytest.mark.parametrize(
    ("orders", "named"),
    [
        ([ORDERS[0]], "1 devices"),
        ([ORDERS[0], ORDERS[1][1:]], "1 times"),
        ([ORDERS[0], ORDERS[1] + ORDERS[1][:1]], "3 times"),
        ([ORDERS[1], ORDERS[0]], "runs on device"),
        ([ORDERS[0], [(0, "X", 0)]], "'X'"),
        ([ORDERS[0], [3]], "3"),
        (7, "orders"),
        ([ORDERS[0], None], "device 1"),
    ],
)
def test_malformed_orders(orders: Any, named: str) -> None:
    with refused(PlanningError, named):
        evaluate_pipeline(SMALL, orders)


def test_chains_one_after_the_other_need_enough_memory() -> None:
    with refused(PlanningError, "holds 2"):
        serial(fused((2, 1, 4), (2, 1, 4), activations=(1, 1)).with_memory(1))


@pytest.mark.parametrize(
    "change", [{"format": "x"}, {"latency": 1.0}, {"orders": ["?"]}, {"memory_bound": 99.0}, {"search": 1}]
)
def test_malformed_plans(change: dict[str, Any]) -> None:
    text = json.dumps({**json.loads(schedule_pipeline(SMALL).to_json()), **change})
    with refused(PlanningError):
        PipelinePlan.from_json(text)


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 40), st.integers(), st.floats(), st.text(max_size=3),
    st.lists(st.one_of(st.integers(-1, 6), st.floats(-1, 9), st.none()), max_size=4),
)  # fmt: skip
NUMBERS = st.one_of(st.integers(1, 9), st.floats(1e-3, 9), ANYTHING)


ROUTES = st.one_of(st.lists(st.integers(0, 3), max_size=4), ANYTHING)
CHAINS = st.lists(st.tuples(ANYTHING, ROUTES, st.one_of(st.integers(1, 5), ANYTHING), NUMBERS, NUMBERS, NUMBERS), max_size=3)
OPTIONS = dict.fromkeys(("devices", "transfer", "memory", "kept_for_weights"), ANYTHING) | {"split_backward": st.booleans()}
SEARCH = {"memory": NUMBERS, "objective": ANYTHING, "deadline": NUMBERS, "seed": ANYTHING}


@settings(max_examples=1000)
@given(CHAINS, st.fixed_dictionaries({}, optional=OPTIONS), st.fixed_dictionaries({}, optional=SEARCH))
def test_a_thousand_malformed_problems_are_scheduled_or_refused_in_one_sentence(
    chains: list[Any], options: dict[str, Any], search: dict[str, Any]
) -> None:
    message = ""
    try:
        made = [Chain(f"{name}{number}", *rest) for number, (name, *rest) in enumerate(chains)]
        plan = schedule_pipeline(PipelineProblem(made, **options), **search, time_limit_s=0.001)
        assert plan.latency_bound <= plan.latency
    except PlanningError as error:
        message = str(error)
    assert "\n" not in message
    assert len(message) < 400
