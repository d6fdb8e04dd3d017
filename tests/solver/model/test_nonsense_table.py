"""Every argument of planning gets values of the wrong type or size: each is refused in one sentence that names the argument."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import solver
from solver.prefix_sharing.deduplicate import deduplicate
from solver.step.choose_learner import choose_learner, latest_start
from solver.step.cut import choose_cut
from solver.step.work import Learner, TokenWork

WORK = solver.Workload([1], [0, 0], [5, 9])
HERE, SPEED = solver.Cluster(1, 4, 1), solver.LatencyModel("x", 1, 1e-3, 1e-4)
PROBLEM = solver.PlanningProblem(WORK, HERE, SPEED)
PLAN = solver.random_split(PROBLEM)
NO_RECORDS = ("'l40s'", 0.7, 16, None, [5, 9], {}, math.nan)  # where a record is needed
NO_FLAGS = ("yes", 1, 0.0, None, [True], math.nan)
NO_WORDS = ("soon", "", 0, None, ["done"], np.array(["done"]), math.nan)
NO_COUNTS = ("2", 1.5, 0, -1, math.nan, math.inf, [1], np.array([1, 2]))
NO_SECONDS = ("1", -1.0, math.nan, math.inf, None, [1.0])
NO_WORK = ("many", -1, 1.5, None, math.nan, math.inf, [1])
NO_TOKENS = ("many", -1.0, math.nan, math.inf, [1.0])
NO_SEEDS = ("7", -1, 1.5, None, math.nan, [1], True)

ARGUMENTS: dict[str, tuple[Callable[..., object], dict[str, tuple[Any, ...]]]] = {
    "PlanningProblem": (
        lambda **changes: solver.PlanningProblem(**{"workload": WORK, "cluster": HERE, "latency": SPEED, **changes}),
        {
            "workload": NO_RECORDS, "cluster": NO_RECORDS,
            "latency": ("l40s", 0.7, None, [SPEED], {"gpu": SPEED}, {("gpu", 1): 3}, {(1, "gpu"): SPEED}),
            "objective": NO_RECORDS, "phases": NO_RECORDS, "admission": NO_WORDS, "release": NO_WORDS,
            "keep_together": (*NO_FLAGS, "cheaper"), "share_prefill": NO_FLAGS, "min_actors": (*NO_COUNTS, None, 5),
            "max_actors": NO_COUNTS,
        },
    ),
    "plan": (
        lambda **changes: solver.plan(changes.pop("problem", PROBLEM), **changes),
        {"problem": (*NO_RECORDS, WORK), "seed": NO_SEEDS, "quick": NO_FLAGS},
    ),
    "random_split": (
        lambda **changes: solver.random_split(changes.pop("problem", PROBLEM), **changes),
        {"problem": NO_RECORDS, "seed": NO_SEEDS, "actors": (*NO_COUNTS, 2), "spread": NO_FLAGS},
    ),
    "pareto_front": (
        lambda **changes: solver.pareto_front(changes.pop("problem", PROBLEM), **changes),
        {"problem": NO_RECORDS, "points": (*NO_COUNTS, None)},
    ),
    "evaluate": (
        lambda **changes: solver.evaluate(**{"plan": PLAN, "problem": PROBLEM, **changes}),
        {"plan": (*NO_RECORDS, PROBLEM), "problem": (*NO_RECORDS, WORK), "table": NO_FLAGS},
    ),
    "deduplicate": (
        lambda **changes: deduplicate(**{"plan": PLAN, "problem": PROBLEM, **changes}),
        {"plan": (*NO_RECORDS, PROBLEM), "problem": (*NO_RECORDS, WORK), "share_in_actors": NO_FLAGS},
    ),
    "bound": (
        lambda **changes: solver.bound(**{"problem": PROBLEM, **changes}),
        {
            "problem": (*NO_RECORDS, WORK), "lp_work": NO_WORK, "prefill_tokens": NO_TOKENS,
            "of": (0, "any", np.array(["plans"] * 2)), "drafts": (0.5, "weak"),
        },
    ),
    "bound of plans": (
        lambda **changes: solver.bound(PROBLEM, of="plans", **changes),
        {"lp_work": NO_WORK},
    ),
    "curve": (
        lambda **changes: solver.bound(PROBLEM, lp_work=0).curve(**changes),
        {"points": (*NO_COUNTS, None, True), "furthest": ("2", 0.5, math.nan, math.inf, [2.0], None)},
    ),
    "choose_cut": (
        lambda **changes: choose_cut(PLAN, PROBLEM, TokenWork(0.1, 0.1), **changes),
        {"shares": (0.3, "0.3", None, np.array(0.3)), "keep": (1, "1", None), "places": ("released", 1, None)},
    ),
    "choose_learner": (
        lambda **changes: choose_learner(PLAN, PROBLEM, TokenWork(0.1, 0.1), **changes),
        {"servers": (2, "2", None, [-1], [1.5]), "released": NO_FLAGS},
    ),
    "latest_start": (
        lambda **changes: latest_start(PLAN, PROBLEM, TokenWork(0.1, 0.1), Learner(1), **changes),
        {"delay": NO_SECONDS, "gpus_per_server": NO_COUNTS, "whole_groups": NO_FLAGS},
    ),
}  # fmt: skip


def table() -> Iterator[tuple[str, str, Any]]:
    """Every function, argument and bad value."""
    for function, (_, arguments) in ARGUMENTS.items():
        for argument, values in arguments.items():
            yield from ((function, argument, value) for value in values)


CASES = list(table())


@pytest.mark.parametrize(("function", "argument", "value"), CASES, ids=[f"{f}-{a}-{v!r}"[:60] for f, a, v in CASES])
def test_it_is_refused_in_one_sentence_that_names_the_argument(function: str, argument: str, value: Any) -> None:
    with pytest.raises(solver.PlanningError) as refusal:
        ARGUMENTS[function][0](**{argument: value})
    sentence = str(refusal.value)
    assert argument in sentence.replace("admission rule", "admission")
    assert "\n" not in sentence
    assert len(sentence) < 300


def test_there_are_more_than_a_hundred() -> None:
    assert len(CASES) > 101
