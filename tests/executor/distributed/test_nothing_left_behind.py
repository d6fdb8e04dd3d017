"""Whatever ends a program that has actors, nothing of it stays: no process, no shared memory, no temporary folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from benchmark_scripts import chaos_counts
from torch_wall_samples import shared_memory, until

TESTS = Path(__file__).parents[2]
SCRIPT = """
import os, sys, time
sys.path[:0] = {paths!r}
from dataclasses import replace
import numpy as np
from chaos_counts import descendants
from counting_engine import CountingEngines
from executor_samples import plan_of
from rlhfless.engine.protocol import Request
from rlhfless.executor import Faults, Lifecycle, ProcessPool, RayPool, ShortestStep
from solver import Cluster, LatencyModel
from solver.model.runtime_rules import Trigger

pool_name, way = {what!r}
LATENCY = LatencyModel("tiny", 1, 2e-3, 0.0, max_batch=16, kv_capacity_tokens=1 << 20)


class Say:  # once both actors have completed something
    name = "say"
    said = False

    def next_trigger(self, view):
        return Trigger(completions=1)

    def decide(self, now_s, state):
        if not self.said and state.complete[0] and state.complete[4]:
            self.said = True
            say()
        return []


def say():
    folder = pool.cluster._folder if pool_name == "ray" else "none"
    print("running", folder, *descendants(os.getpid()), flush=True)


def step(tokens, rule=None, **changes):
    requests = [Request(i, 3, tokens, prompt_ids=np.arange(3), seed=i, target_tokens=tokens if i % 4 else 1) for i in range(8)]
    plan = replace(plan_of([range(4), range(4, 8)]), rule=rule)
    pool.run_step(plan, [replace(r, **changes) for r in requests], CountingEngines(), LATENCY, Cluster(1, 2, 1))


faults = Faults(restarts=0)
if pool_name == "local":  # no main guard
    lifecycle = Lifecycle(0.0, ShortestStep(), patience_s=600.0) if way == "prewarmed" else Lifecycle.serverful()
    pool = ProcessPool(["cpu"] * 2, faults=faults, lifecycle=lifecycle)
else:
    pool = RayPool(gpus=2, faults=faults, lifecycle=Lifecycle.serverful())
with pool:
    if way == "error":
        step(20)
        say()
        step(20, prompt_ids=None)
    elif way == "prewarmed":
        step(1)
        time.sleep(3)
        step(1)
        while not [p for p in pool.idle.values() if p.up_s]:
            time.sleep(0.05)
        say()
        time.sleep(600)
    else:
        step(500 if way == "end" else 100000, Say())
"""
SIGNALS = {"interrupted": signal.SIGINT, "killed": signal.SIGKILL, "prewarmed": signal.SIGKILL, "hanging": signal.SIGKILL}


@pytest.mark.parametrize(
    ("pool", "way"),
    [
        ("local", "interrupted"),
        ("local", "hanging"),
        pytest.param("local", "prewarmed", marks=pytest.mark.full),
        pytest.param("local", "error", marks=pytest.mark.full),
        pytest.param("ray", "end", marks=pytest.mark.nightly),
        pytest.param("ray", "interrupted", marks=pytest.mark.nightly),
        pytest.param("ray", "killed", marks=pytest.mark.full),
    ],
)
def test_nothing_is_left_behind(pool: str, way: str, tmp_path: Path) -> None:
    """A program ends normally, by an error that nobody catches, or by Ctrl-C, which a terminal sends to its actors, too. Or it
    is killed: outright, with an actor that hangs, or with actors that were started ahead of a step."""
    if pool == "ray":
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
    script, folder = tmp_path / "script.py", tmp_path / "temporary"
    folder.mkdir()
    benchmarks = str(TESTS / "benchmarks")
    script.write_text(SCRIPT.format(paths=[str(TESTS / "support"), benchmarks, str(TESTS.parent)], what=(pool, way)))
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": benchmarks}  # where Ray's actors find the engine
    program = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=environment,
    )  # fmt: skip
    try:
        assert program.stdout is not None
        lines = (line.split() for line in program.stdout)  # Ray prints there, too
        rest = next((words[1:] for words in lines if words[:1] == ["running"]), None)
        assert rest is not None, program.communicate()[1]
        rays, pids = Path("/tmp") / rest[0], [int(pid) for pid in rest[1:]]
        assert rays.exists() == (pool == "ray")
        assert len(pids) >= 2, "two actors"
        assert pool == "ray" or way == "prewarmed" or shared_memory(program.pid) or way == "error"
        if way == "hanging":
            os.kill(next(pid for pid in pids if is_actor(pid)), signal.SIGSTOP)
        if way == "interrupted":
            os.killpg(program.pid, SIGNALS[way])
        elif way in SIGNALS:
            program.send_signal(SIGNALS[way])
        _, errors = program.communicate(timeout=600)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
    assert program.returncode == {"end": 0, "error": 1, "interrupted": -signal.SIGINT}.get(way, -signal.SIGKILL), errors
    if way == "interrupted":
        assert errors.rstrip().endswith("KeyboardInterrupt")
    if way == "error":
        assert "ActorError: actor-" in errors
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "every process ends")
    until(lambda: not shared_memory(program.pid), "shared memory is freed")
    until(lambda: not rays.exists(), "Ray's folder is gone")
    assert not [*folder.iterdir()]


def is_actor(pid: int) -> bool:
    """Whether it is a spawned process, and not what frees the memory of a program that was killed."""
    return "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()


def test_descendants_are_found() -> None:
    child = subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True)
    try:
        until(lambda: set(chaos_counts.descendants(child.pid).values()) == {"sleep"}, "it starts one")
        assert child.pid in chaos_counts.descendants(os.getpid())
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
