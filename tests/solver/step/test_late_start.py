"""When a learner starts that is needed: no later than the step allows, as ``follow`` says, and never dearer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

import solver
from solver import Cluster, LatencyModel, PlanningError, PlanningProblem, Workload
from solver.step.charges import Charges
from solver.step.choose_learner import HALVINGS, latest_start
from solver.step.follow import follow
from solver.step.work import BESIDE_DECODING, Learner, TokenWork

OWN = replace(BESIDE_DECODING, own=1, grows=False)
UP_TO_TWO = TokenWork(0.0, 1e-3, charges=Charges((1.0, 1.0, math.inf), (0.0,) * 3, (0.0,) * 3))


def problem_of(seed: int, scenarios: int = 0) -> PlanningProblem:
    """A step on two actors."""
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(4, 0.8, 12).round() + 1
    drawn = None if not scenarios else (lengths * rng.lognormal(0, 0.2, (scenarios, 12))).round() + 1
    workload = Workload([10] * 4, np.repeat(range(4), 3), lengths, max_response_tokens=5000, scenarios=drawn)
    return PlanningProblem(workload, Cluster(1, 2, 1), LatencyModel("tests", 1, base_s=0.01, per_response_s=1e-3, max_batch=64))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    scenarios=st.sampled_from([0, 3]),
    per_token_s=st.sampled_from([1e-4, 1e-3, 1e-2]),
    load_s=st.sampled_from([0.0, 0.5]),
    gpus=st.integers(1, 3),
    unlock=st.sampled_from(["group", "response", "batch"]),
    delay=st.sampled_from([0.0, 0.005, 0.1]),
)
def test_the_step_ends_as_early_and_costs_no_more(
    seed: int, scenarios: int, per_token_s: float, load_s: float, gpus: int, unlock: str, delay: float
) -> None:
    problem = problem_of(seed, scenarios)
    plan = solver.random_split(problem, actors=2)
    charges = Charges.by_formula(gpus, 1, 0.0, load_s)
    work = TokenWork(per_token_s / 3, per_token_s, "group" if unlock == "batch" else unlock, charges)
    learner = replace(OWN, own=gpus, streams=unlock != "batch")
    start = latest_start(plan, problem, work, learner, delay=delay)
    assert start.from_s >= 0
    assert start.time_s <= start.held_time_s * (1 + delay) + 1e-12
    assert start.gpu_seconds <= start.held_gpu_seconds + gpus * delay * start.held_time_s + 1e-9
    if scenarios or gpus > 1:
        return
    done = np.array([solver.evaluate(plan, problem).done_s]).ravel()
    times = [
        follow(completions(plan, problem), done, work.of(problem.workload), replace(learner, from_s=from_s)).step_s
        for from_s in (start.from_s, start.from_s + start.held_time_s / 2 ** (HALVINGS - 1))
    ]
    assert times[0] == pytest.approx(start.time_s)
    assert times[1] > start.held_time_s * (1 + delay) or start.from_s > start.held_time_s * (1 - 2 / 2**HALVINGS)


def completions(plan: solver.Plan, problem: PlanningProblem) -> np.ndarray:
    """When each response is complete: every iteration has the responses that are not."""
    complete_s = np.zeros(12)
    for actor in plan.actors:
        lengths = problem.workload.response_tokens[list(actor.responses)]
        clock_s, done = 0.0, 0
        for length in sorted(set(lengths.tolist())):
            running = int((lengths > done).sum())
            clock_s += (length - done) * (0.01 + 1e-3 * running)
            for r in np.array(actor.responses)[lengths == length].tolist():
                complete_s[r] = clock_s
            done = length
    return complete_s


def test_a_learner_with_little_to_do_starts_with_the_last_prompt() -> None:
    problem = problem_of(1)
    plan = solver.random_split(problem, actors=2)
    start = latest_start(plan, problem, TokenWork(0.0, 1e-5), OWN)
    assert start.from_s > 0.98 * start.held_time_s
    assert start.gpu_seconds < start.held_gpu_seconds


@pytest.mark.parametrize(
    ("work", "learner", "more", "said"),
    [
        (TokenWork(0.0, 1e-3), Learner(), {}, ("0 servers", "own")),
        (TokenWork(0.0, 1e-3), OWN, {"delay": -0.1}, ("delay", "-0.1")),
        (TokenWork(0.0, 1e-3), "held", {}, ("'held'", "Learner")),
        ("work", OWN, {}, ("'work'", "TokenWork")),
        (UP_TO_TWO, replace(OWN, own=3), {}, ("3 servers", "one of [1, 2]")),
        (UP_TO_TWO, replace(OWN, own=4), {}, ("4 servers", "one of [1, 2]")),
    ],
)
def test_what_has_no_start_is_refused(work: Any, learner: Any, more: dict[str, Any], said: tuple[str, ...]) -> None:
    problem = problem_of(1)
    with refused(PlanningError, *said):
        latest_start(solver.random_split(problem, actors=2), problem, work, learner, **more)
