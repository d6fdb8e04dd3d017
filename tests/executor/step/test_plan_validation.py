"""What a step refuses before anything is started: the same sentences on both clocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from error_messages import refused
from executor_samples import plan_of, uniform_step

from rlhfless.engine.protocol import Request
from rlhfless.executor import StepRecord, run_step
from rlhfless.executor.distributed.executor import WallStep
from rlhfless.executor.step.step_state import StepOptions
from solver import LatencyModel, Plan, PlanningError

STEP = uniform_step([3, 4, 5, 6, 7, 8])


def no_engine(latency: LatencyModel, admission: object, start_s: float) -> object:
    raise AssertionError("something was started")


def on_the_virtual_clock(plan: Plan, requests: Sequence[Request]) -> None:
    run_step(plan, requests, no_engine, STEP.latency, STEP.cluster)  # type: ignore[arg-type]


def on_the_wall_clock(plan: Plan, requests: Sequence[Request]) -> None:
    record = StepRecord("run", 0, plan, 0.0)
    WallStep(plan, requests, None, record, StepOptions(STEP.latency, STEP.cluster))  # type: ignore[arg-type]


@pytest.mark.parametrize("clock", [on_the_virtual_clock, on_the_wall_clock])
@pytest.mark.parametrize(
    ("groups", "responses", "sentence"),
    [
        ([[0, 1], [3, 4, 5]], range(6), ("response 2",)),
        ([[0, 1, 2], [2, 3, 4, 5]], range(6), ("response 2",)),
        ([[0, 1, 2], [3, 4, 5, 6]], range(6), ("response 6",)),
        ([[0, 1, 2], [3, 4, 5]], [0, 1, 1, 3, 4, 5], ("response 1",)),
        ([[0, 1, 2], [3, 4, 5]], [0, 1, 3, 4, 5], ("response 2",)),
    ],
)
def test_every_response_is_asked_for_and_planned_once(
    clock: Callable[[Plan, Sequence[Request]], None],
    groups: list[list[int]],
    responses: Sequence[int],
    sentence: tuple[str, ...],
) -> None:
    requests = STEP.requests()
    with refused(PlanningError, *sentence):
        clock(plan_of(groups), [requests[r] for r in responses])


@pytest.mark.parametrize("clock", [on_the_virtual_clock, on_the_wall_clock])
@pytest.mark.parametrize(
    ("gpu", "sentence"),
    [
        (0, ("actor 0", "actor 1")),
        (4, ("actor 1",)),
    ],
)
def test_every_actor_has_gpus_of_its_own(
    clock: Callable[[Plan, Sequence[Request]], None], gpu: int, sentence: tuple[str, ...]
) -> None:
    plan = plan_of([[0, 1, 2], [3, 4, 5]])
    first, second = plan.actors
    with refused(PlanningError, *sentence):
        clock(replace(plan, actors=(first, replace(second, gpu_ids=(gpu,)))), STEP.requests())
