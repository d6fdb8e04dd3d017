"""How long actors live, in real processes of this machine: what starts, waits and ends, and that all of it is in the trace."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from benchmark_scripts import counting_engine
from executor_samples import plan_of
from torch_wall_samples import until

from rlhfless.engine.protocol import Request
from rlhfless.executor import Faults, Lifecycle, PlanForecast, ProcessPool, RayPool, ShortestStep, StepRecord
from rlhfless.executor.carrier import Place
from rlhfless.executor.lifecycle import Forecast
from rlhfless.trace import Trace, held_gpu_seconds
from solver import Cluster, LatencyModel
from solver.objective import StepRest
from solver.rules import ActorView, Decision, StepState, Trigger

LATENCY = LatencyModel("tiny", 1, 2e-3, 0.0, max_batch=16, kv_capacity_tokens=1 << 20)
CLUSTER = Cluster(1, 2, 1)
PLAN = plan_of([[0, 1], [2, 3]])
REQUESTS = [Request(i, 3, 40, prompt_ids=np.arange(3), seed=i, target_tokens=30) for i in range(4)]


def step(pool: ProcessPool, records: list[StepRecord], rest: StepRest = StepRest()) -> StepRecord:  # noqa: B008 (frozen)
    engines = counting_engine.CountingEngines()
    records.append(pool.run_step(PLAN, REQUESTS, engines, LATENCY, CLUSTER, step=len(records), rest=rest))
    assert len(records[-1].completions) == len(REQUESTS)
    return records[-1]


def held(records: list[StepRecord]) -> pd.DataFrame:
    """GPU-seconds by role; the trace refuses a GPU with two holders, and every second is one of the four."""
    tables = {name: pd.DataFrame([row for r in records for row in getattr(r, name)]) for name in ("allocations", "spans")}
    rows = [
        {"step": r.step, "prompt_id": i, "sample": 0, "run": r.run, **r.rollout_times(i)} for r in records for i in range(4)
    ]
    by_role = held_gpu_seconds(Trace(rollouts=pd.DataFrame(rows), **tables)).groupby("role")
    found = by_role[["start", "sync", "work", "hold", "total"]].sum()
    assert found["total"].sum() == pytest.approx(found[["start", "sync", "work", "hold"]].to_numpy().sum())
    return found


def starts(record: StepRecord) -> list[str]:
    return sorted(s["holder"] for s in record.spans if s["phase"] == "start")


def test_a_kept_pool_is_reused_within_its_time_and_scales_to_zero_after_it() -> None:
    records: list[StepRecord] = []
    with ProcessPool(["cpu"] * 2, lifecycle=Lifecycle(keep_s=5.0)) as pool:
        step(pool, records)
        before = {p.pid for p in multiprocessing.active_children()}
        step(pool, records)
        assert {p.pid for p in multiprocessing.active_children()} == before
        assert (starts(records[0]), starts(records[1])) == (["actor-0", "actor-1"], [])
        until(lambda: not multiprocessing.active_children(), "scaled to zero")
        pool.settle(records[1])
        assert held(records).loc["warm", "hold"] >= 2 * 5.0
        assert [e["name"] for e in records[1].events] == ["kill", "kill"]
        step(pool, records)
        assert starts(records[2]) == ["actor-0", "actor-1"]


def test_the_serverful_pool_is_charged_for_learning_too_and_a_cold_one_for_every_start() -> None:
    found = {}
    for name, lifecycle in {"cold": Lifecycle.cold(), "serverful": Lifecycle.serverful()}.items():
        records: list[StepRecord] = []
        with ProcessPool(["cpu"] * 2, lifecycle=lifecycle) as pool:
            for _ in range(2):
                step(pool, records)
                assert len(multiprocessing.active_children()) == (2 if name == "serverful" else 0)
                time.sleep(0.5)  # learning
                pool.settle(records[-1])
            pool.close(records[-1])
        assert not multiprocessing.active_children()
        found[name] = held(records)
        assert starts(records[1]) == (["actor-0", "actor-1"] if name == "cold" else [])
    assert "warm" not in found["cold"].index
    assert found["serverful"].loc["warm", "hold"] >= 2 * 2 * 0.5
    allocations = [a for r in records for a in r.allocations]
    for gpu in (0, 1):
        own = sorted((a["start_s"], a["end_s"]) for a in allocations if a["gpu_ids"] == [gpu])
        assert all(one[1] == pytest.approx(after[0]) for one, after in itertools.pairwise(own)), "held without a gap"


@pytest.mark.parametrize("prewarm", [ShortestStep(4.0), PlanForecast(4.0)])
def test_prewarmed_processes_are_up_before_their_step(prewarm: Forecast) -> None:
    """Two steps say how long a step takes; the third one's processes are started ahead of it, and are charged from then on."""
    records: list[StepRecord] = []
    with ProcessPool(["cpu"] * 2, lifecycle=Lifecycle(prewarm=prewarm)) as pool:
        gap_s = 0.0
        for number in range(3):
            began = time.monotonic()
            step(pool, records)
            if number == 0:
                gap_s = 3 * (time.monotonic() - began)  # so long that starting ahead begins after the processes have ended
            if number == 2:
                break
            if number == 0:
                assert not multiprocessing.active_children(), "nothing waits without a forecast"
                time.sleep(max(0.0, gap_s - (time.monotonic() - began)))
            else:
                until(lambda: [p.up_s is not None for p in pool._idle.actors] == [True, True], "prewarmed")
            pool.settle(records[-1])
        assert not starts(records[2])
        ahead = [(s["holder"], s["call"]) for s in records[1].spans if s["holder"].startswith("warm")]
        assert sorted(ahead) == [("warm-0", "prewarm"), ("warm-1", "prewarm")]
        assert [e["name"] for e in records[1].events] == ["prewarm", "prewarm"]
        assert held(records).loc["warm", "start"] > 0


@dataclass
class CtrlC:
    """Presses it when responses 0 and 1 are complete."""

    name: str = "ctrl-c"

    def next_trigger(self, view: ActorView) -> Trigger:
        return Trigger(completions=view.completed + 1)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        if state.complete[:2].all():
            signal.raise_signal(signal.SIGINT)
        return []


def test_a_step_that_is_stopped_is_charged_for_what_waited_meanwhile() -> None:
    """GPU 0's actor is done early, GPU 1's is at work, GPU 2's was in the step before only."""
    lengths = [1, 150, 3000]
    forced = [replace(REQUESTS[i], target_tokens=n, limit_tokens=3000) for i, n in enumerate(lengths)]
    engines, cluster = counting_engine.CountingEngines(), Cluster(1, 3, 1)
    with ProcessPool(["cpu"] * 3) as pool:
        all_three = plan_of([[0], [1], [2]])
        before = pool.run_step(all_three, [replace(r, target_tokens=1) for r in forced], engines, LATENCY, cluster)
        time.sleep(0.3)
        with pytest.raises(KeyboardInterrupt) as error:
            pool.run_step(plan_of([[0], [1, 2]], CtrlC()), forced, engines, LATENCY, cluster, step=1, start_s=before.end_s)
        stopped: StepRecord = error.value.record  # type: ignore[attr-defined]
    assert sorted(stopped.completions) == [0, 1]
    allocations = [a for r in (before, stopped) for a in r.allocations]
    for gpu in range(3):
        own = sorted((a["start_s"], a["end_s"]) for a in allocations if a["gpu_ids"] == [gpu])
        assert all(one[1] == pytest.approx(after[0]) for one, after in itertools.pairwise(own)), "held without a gap"
        assert own[-1][1] >= stopped.completions[1].time_s, "until the end"
    assert [e["name"] for e in stopped.events] == ["kill"]


@dataclass
class KillTheLast:
    """Kills actor 1, which is at work, when actor 0 is done and waits. Something of actor 1 is complete by then, so who works
    is actor 1: before that it may still start, and what Ray starts has no known process yet."""

    pool: Any
    name: str = "kill the last"
    killed: int = 0

    def __deepcopy__(self, memo: object) -> KillTheLast:
        """It looks on from outside: the step's copy of it is the same one."""
        return self

    def next_trigger(self, view: ActorView) -> Trigger:
        return Trigger(completions=view.completed + 1)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        alone = [view.actor for view in state.actors] == [1] and state.complete[2:].any()
        if not self.killed and alone and len(self.pool.working) == 1:
            self.killed = self.pool.working[0]
            os.kill(self.killed, signal.SIGKILL)
        return []


@pytest.mark.parametrize("carrier", ["local", pytest.param("ray", marks=pytest.mark.full)])
def test_what_was_lost_goes_to_an_actor_that_waits_not_to_a_second_one_on_its_gpus(carrier: str) -> None:
    """One is done early and is kept; the other is killed: the first goes on with what is left, as nobody has other GPUs. Both
    are up before the step, so that the one with little to do is done first."""
    if carrier == "ray":
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
    lengths = [1, 1, *range(100, 500, 25)]
    many = [replace(REQUESTS[0], response=i, seed=i, target_tokens=n, limit_tokens=500) for i, n in enumerate(lengths)]
    faults, engines = Faults(restarts=1), counting_engine.CountingEngines()
    here = {"PYTHONPATH": os.path.dirname(counting_engine.__file__)}
    with mock.patch.dict("os.environ", here):
        made = ProcessPool(["cpu"] * 2, faults=faults) if carrier == "local" else None
        with made or RayPool(gpus=2, faults=faults, lifecycle=Lifecycle.serverful()) as pool:
            rule, plan = KillTheLast(pool), plan_of([[0, 1], range(2, len(many))])
            before = pool.run_step(plan, [replace(r, target_tokens=1) for r in many], engines, LATENCY, CLUSTER)
            options: dict[str, Any] = {"step": 1, "start_s": before.end_s}
            record = pool.run_step(replace(plan, rule=rule), many, engines, LATENCY, CLUSTER, **options)
            pool.settle(record)
    assert rule.killed
    assert [record.completions[i].response_tokens for i in range(len(many))] == lengths
    held([before, record])
    later = {a["holder"]: a["gpu_ids"] for a in record.allocations if a["role"] == "decode"}
    del later["actor-0"], later["actor-1"]
    assert [0] in later.values()
    assert not [s for s in record.spans if s["phase"] == "start" and later.get(s["holder"]) == [0]]


def test_an_actor_waits_for_places_with_its_devices_only() -> None:
    """GPU ids that share a device are names; others are not."""
    here, there = (Place("gpu", 0, (i,)) for i in range(2))
    for devices, serves in {("cpu", "cpu"): True, (): True, ("cuda:0", "cuda:1"): False}.items():
        with ProcessPool(devices) as pool:
            assert pool.serves(here, there) is serves
            assert pool.serves(here, here)
