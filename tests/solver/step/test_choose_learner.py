"""The learner of a step: candidates are what ``follow`` says, the best is chosen, and no GPU idles beside a small learner."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from error_messages import refused

import solver
from solver import Cluster, LatencyModel, PlanningError, PlanningProblem, Workload
from solver.model.objective import Objective
from solver.step.charges import Charges
from solver.step.choose_learner import choose_learner
from solver.step.follow import follow
from solver.step.work import BESIDE_DECODING, Learner, StepWork, TokenWork

LATENCY = LatencyModel("tests", 1, base_s=0.01, per_response_s=1e-3, max_batch=64)
PROMPTS, SAMPLES = 8, 4


def problem_of(time_weight: float = 0.7, actors: int = 4, scenarios: int = 0, size: int = 1) -> PlanningProblem:
    """A step with one long prompt, and lengths that are known or drawn."""
    rng = np.random.default_rng(2)
    lengths = np.repeat([40, 60, 80, 100, 120, 150, 200, 600], SAMPLES) + rng.integers(0, 20, PROMPTS * SAMPLES)
    drawn = None if not scenarios else (lengths * rng.lognormal(0, 0.2, (scenarios, len(lengths)))).round()
    workload = Workload([10] * PROMPTS, np.repeat(range(PROMPTS), SAMPLES), lengths, max_response_tokens=2000, scenarios=drawn)
    latency = LatencyModel("tests", size, base_s=0.01, per_response_s=1e-3, max_batch=64)
    return PlanningProblem(workload, Cluster(1, actors * size, size), latency, Objective(time_weight))


def planned(problem: PlanningProblem) -> solver.Plan:
    return solver.random_split(problem, actors=problem.cluster.gpus // problem.one_kind[0].gpus_per_actor)


def test_a_candidate_is_the_step_that_follow_makes_of_its_groups() -> None:
    """Groups are items; four servers of two GPUs lose a share of speed at each of two doublings."""
    problem = problem_of(actors=2, size=2)
    plan, work = planned(problem), TokenWork(1e-4, 2e-4, charges=Charges.by_formula(4, 1, 0.2, 0.3))
    learner = choose_learner(plan, problem, work, servers=[0, 2])
    done = np.array([solver.evaluate(plan, problem).done_s]).ravel()
    assert learner.candidates[0].learner == Learner(overlaps=True)
    grown = [one for one in learner.candidates if one.learner.own == 2 and one.learner.grows and one.learner.streams]
    assert grown
    for one in grown:
        tokens = np.bincount(problem.workload.prompt_of, 10 + problem.workload.response_tokens)
        seconds, sizes = tokens * 3e-4 / 0.8**2, 4
        charges = Charges((1.0,) * sizes, (0.0,) * sizes, (0.3,) * sizes)
        schedule = follow(
            completions(plan, problem), done,
            StepWork([0.0] * PROMPTS, seconds, range(PROMPTS), gpus_per_actor=2, charges=charges),
            replace(BESIDE_DECODING, own=2, from_s=one.learner.from_s),
        )  # fmt: skip
        assert one.time_s == pytest.approx(schedule.step_s)
        assert one.gpu_seconds == pytest.approx(2 * done.sum() + schedule.gpu_s)


def completions(plan: solver.Plan, problem: PlanningProblem) -> np.ndarray:
    """When the last response of each prompt is complete: every iteration has the responses that are not."""
    complete_s = np.zeros(PROMPTS)
    lengths, prompt_of = problem.workload.response_tokens, problem.workload.prompt_of
    for actor in plan.actors:
        mine = sorted(actor.responses, key=lambda r: lengths[r])
        at_s, made = 0.0, 0
        for position, response in enumerate(mine):
            at_s += (lengths[response] - made) * (0.01 + 1e-3 * (len(mine) - position))
            made = int(lengths[response])
            complete_s[prompt_of[response]] = max(complete_s[prompt_of[response]], at_s)
    return complete_s


@pytest.mark.parametrize("time_weight", [1.0, 0.7, 0.0])
def test_the_best_by_the_objective_is_chosen_over_scenarios(time_weight: float) -> None:
    problem = problem_of(time_weight, scenarios=3)
    plan = planned(problem)
    work = TokenWork(0.0, 3e-4, charges=Charges.by_formula(8))
    learner = choose_learner(plan, problem, work)
    chosen = learner.chosen
    assert chosen.value == min(one.value for one in learner.candidates) <= learner.batch.value
    assert {one.learner.streams for one in learner.candidates} == {False, True}
    if time_weight == 1.0:
        assert chosen.learner.streams
        assert chosen.time_s == min(one.time_s for one in learner.candidates) < learner.batch.time_s
    if time_weight == 0.0:
        assert chosen.gpu_seconds == min(one.gpu_seconds for one in learner.candidates)
    again = choose_learner(plan, problem, work)
    assert again.candidates == learner.candidates
    assert str(chosen) in repr(learner)


def test_no_gpus_idle_beside_a_small_learner_where_learning_takes_longest() -> None:
    """Time counts, and learning takes ten times generation: whatever is chosen learns on the GPUs of all actors, too."""
    problem = problem_of(1.0)
    plan = planned(problem)
    work = TokenWork(0.0, 2e-2, unlock="response")
    chosen = choose_learner(plan, problem, work, servers=[0, 1]).chosen
    alone = choose_learner(plan, problem, work, servers=[1], released=False).chosen
    assert chosen.learner.grows
    assert not alone.learner.grows
    assert chosen.time_s < 0.5 * alone.time_s


def test_a_learner_may_always_have_gpus_of_its_own_and_never_released_ones() -> None:
    problem = problem_of(1.0)
    plan, work = planned(problem), TokenWork(0.0, 2e-2, unlock="response")
    own = choose_learner(plan, problem, work, servers=[1, 2])
    assert {one.learner.own for one in own.candidates} <= {1, 2}
    assert own.chosen.learner.grows
    alone = choose_learner(plan, problem, work, servers=[1, 2], released=False)
    assert not any(one.learner.grows for one in alone.candidates)
    assert not any(one.learner.grows for one in choose_learner(plan, problem, work, released=False).candidates)
    assert own.chosen.value <= alone.chosen.value + 1e-9 or own.chosen.time_s < alone.chosen.time_s


@pytest.mark.parametrize("unit", [2.0**-12, 2.0**-6, 2.0**6])
def test_a_step_in_another_unit_of_time_has_the_same_candidates(unit: float) -> None:
    """All times are multiplied by a power of two, so nothing is rounded. With the smallest the step takes milliseconds."""
    problem = problem_of(scenarios=3)
    latency = replace(LATENCY, base_s=unit * LATENCY.base_s, per_response_s=unit * LATENCY.per_response_s)
    other = PlanningProblem(problem.workload, problem.cluster, latency, problem.objective)
    found = choose_learner(planned(problem), problem, TokenWork(0.0, 3e-4))
    scaled = choose_learner(planned(other), other, TokenWork(0.0, unit * 3e-4))
    assert max(one.learner.from_s for one in found.candidates) > 0
    assert [one.learner for one in scaled.candidates] == [
        replace(one.learner, from_s=unit * one.learner.from_s) for one in found.candidates
    ]
    assert scaled.chosen.time_s == pytest.approx(unit * found.chosen.time_s)
    assert scaled.chosen.gpu_seconds == pytest.approx(unit * found.chosen.gpu_seconds)


def test_loading_and_loss_cost_time() -> None:
    problem = problem_of()
    plan = planned(problem)
    steps = {
        (load_s, loss): choose_learner(
            plan, problem, TokenWork(0.0, 1e-3, charges=Charges.by_formula(8, 1, loss, load_s))
        ).candidates[0]
        for load_s in (0.0, 2.0)
        for loss in (0.0, 0.3)
    }
    assert steps[0.0, 0.0].time_s < steps[2.0, 0.0].time_s <= steps[0.0, 0.0].time_s + 2.0
    assert steps[2.0, 0.0].gpu_seconds >= steps[0.0, 0.0].gpu_seconds + 2.0
    assert steps[0.0, 0.3].time_s > steps[0.0, 0.0].time_s


def test_sizes_that_charges_do_not_allow_are_no_candidates() -> None:
    problem = problem_of()
    of_size = tuple(math.inf if servers in (1, 2, 5) else 1.0 for servers in range(1, 7))
    work = TokenWork(0.0, 1e-3, charges=Charges(of_size, (0.0,) * 6, (0.0,) * 6))
    found = choose_learner(planned(problem), problem, work).candidates
    assert {one.learner.servers(4) for one in found} <= {4, 6}
    with refused(PlanningError, "no learner", "charges"):
        choose_learner(planned(problem), problem, work, servers=[1, 2], released=False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"work": 3}, ("work", "3", "TokenWork")),
        ({"servers": [0.5]}, ("servers", "0.5")),
        ({"servers": [10**9]}, ("1,000,000,000 servers", "1,000,000 are possible")),
        ({"release": "generation"}, ("generation", "release")),
        ({"servers": [0], "released": False}, ("released", "1 or more")),
    ],
)
def test_what_cannot_be_planned_is_refused(changes: dict[str, Any], said: tuple[str, ...]) -> None:
    problem = problem_of(size=changes.pop("size", 1))
    if "release" in changes:
        problem = PlanningProblem(problem.workload, problem.cluster, problem.latency, release=changes.pop("release"))
    work = changes.pop("work", TokenWork(0.0, 1.0))
    with refused(PlanningError, *said):
        choose_learner(planned(problem), problem, work, **changes)
