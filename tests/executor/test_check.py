"""What a step refuses before anything is started: the same sentences on both clocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from executor_samples import plan_of, uniform_step

from rlhfless.engine.protocol import Request
from rlhfless.executor import StepRecord, run_step
from rlhfless.executor.wall import WallStep
from solver import LatencyModel, Plan, PlanningError
from solver.objective import StepRest

STEP = uniform_step([3, 4, 5, 6, 7, 8])


def no_engine(latency: LatencyModel, admission: object, start_s: float) -> object:
    raise AssertionError("something was started")


def on_the_virtual_clock(plan: Plan, requests: Sequence[Request]) -> None:
    run_step(plan, requests, no_engine, STEP.latency, STEP.cluster)  # type: ignore[arg-type]


def on_the_wall_clock(plan: Plan, requests: Sequence[Request]) -> None:
    record = StepRecord("run", 0, plan, 0.0)
    WallStep(plan, requests, None, STEP.latency, STEP.cluster, record, StepRest(), "reserve", "cheaper")  # type: ignore[arg-type]


@pytest.mark.parametrize("clock", [on_the_virtual_clock, on_the_wall_clock])
@pytest.mark.parametrize(
    ("groups", "responses", "sentence"),
    [
        ([[0, 1], [3, 4, 5]], range(6), r"response 2 is in the plan 0 times; each of the 6 responses must be in it exactly"),
        ([[0, 1, 2], [2, 3, 4, 5]], range(6), r"response 2 is in the plan 2 times"),
        ([[0, 1, 2], [3, 4, 5, 6]], range(6), r"the plan holds response 6, but the workload has responses 0 to 5 only"),
        ([[0, 1, 2], [3, 4, 5]], [0, 1, 1, 3, 4, 5], r"response 1 has two requests; the 6 requests of a step must be one for"),
        ([[0, 1, 2], [3, 4, 5]], [0, 1, 3, 4, 5], r"response 2 has none; the 5 requests"),
    ],
)
def test_every_response_is_asked_for_and_planned_once(
    clock: Callable[[Plan, Sequence[Request]], None], groups: list[list[int]], responses: Sequence[int], sentence: str
) -> None:
    requests = STEP.requests()
    with pytest.raises(PlanningError, match=sentence):
        clock(plan_of(groups), [requests[r] for r in responses])


@pytest.mark.parametrize("clock", [on_the_virtual_clock, on_the_wall_clock])
@pytest.mark.parametrize(
    ("gpu", "sentence"),
    [
        (0, r"GPU 0 belongs to actor 0 and to actor 1 of the plan; every actor needs GPUs of its own"),
        (4, r"actor 1 of the plan is on GPU 4; the cluster has GPUs 0 to 3 only"),
    ],
)
def test_every_actor_has_gpus_of_its_own(clock: Callable[[Plan, Sequence[Request]], None], gpu: int, sentence: str) -> None:
    plan = plan_of([[0, 1, 2], [3, 4, 5]])
    first, second = plan.actors
    with pytest.raises(PlanningError, match=sentence):
        clock(replace(plan, actors=(first, replace(second, gpu_ids=(gpu,)))), STEP.requests())
