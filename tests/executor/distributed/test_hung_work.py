"""Work items in real processes of this machine: one that hangs is run once more, one that takes long is waited for."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import real_work
from error_messages import check_message, refused
from scripted_steps import events

import solver
from rlhfless.engine import SimulatedEngineFactory
from rlhfless.engine.protocol import Request
from rlhfless.executor import Executor, Faults, Gpus, ProcessPool, StepFailed, StepRecord, WorkItem
from rlhfless.latency import load_profile

FAULTS = Faults(silence_floor_s=5.0)
LENGTHS = [20, 30, 40, 50]
CLUSTER = solver.Cluster(1, 2, 1)


def run(function: Any) -> StepRecord:
    """A step with an item of which nobody knows how long it takes."""
    latency = load_profile("cpu-tiny-qwen2")
    workload = solver.Workload([6] * 4, range(4), LENGTHS, max_response_tokens=320)
    plan = solver.random_split(solver.PlanningProblem(workload, CLUSTER, latency), actors=2)
    requests = [Request(i, 6, 320, target_tokens=tokens) for i, tokens in enumerate(LENGTHS)]
    item = WorkItem("learn", gpus=Gpus.beside(CLUSTER, "learner"), responses=(0,), run=function)
    pool = ProcessPool(["cpu"] * 3, faults=FAULTS)
    with Executor(SimulatedEngineFactory(time_scale=0.1), CLUSTER, latency=latency, actor_pool=pool) as executor:
        return executor.run(plan, requests, work=[item])


@pytest.mark.full
def test_an_item_whose_process_is_stopped_is_run_once_more(tmp_path: Path) -> None:
    record = run(partial(real_work.stop_first, str(tmp_path / "mark")))
    assert [ran.result for ran in record.work] == ["worked"]
    (lost,) = events(record, "work lost")
    check_message(lost["why"], "has not reported since", "5 s", "silence_floor_s", "heartbeat_timeout_s")


@pytest.mark.full
def test_an_item_that_stops_every_process_ends_the_step() -> None:
    with refused(StepFailed, "work item 0 (learn)", "2 times", "learner", "has not reported since", "silence_floor_s"):
        run(real_work.stop)


@pytest.mark.full
@pytest.mark.parametrize("function", [real_work.wait, real_work.compute])
def test_an_item_that_takes_longer_than_the_limit_is_waited_for(function: Any) -> None:
    """It waits for something, or keeps Python's lock so that the process sends no heartbeats."""
    record = run(partial(function, FAULTS.silence_floor_s + 4.0))
    assert [ran.result for ran in record.work] == ["worked"]
    assert not events(record, "work lost")
