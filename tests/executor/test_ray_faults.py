"""Actors and drivers of a Ray cluster that is there, of two nodes: killed while they start, stopped, starved, slow, interrupted
by Ctrl-C, killed outright."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmark_scripts import chaos_counts, counting_engine
from executor_samples import plan_of
from torch_wall_samples import LATENCY as TORCH_LATENCY
from torch_wall_samples import assert_noticed_in_time, factory_of, forced, troubled

from rlhfless.engine.protocol import Request
from rlhfless.engine.torch_factory import TorchEngineFactory
from rlhfless.executor import Faults, RayPool, StepRecord, run_step
from rlhfless.trace.checks import validate
from solver import Cluster, LatencyModel

pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
from ray_samples import (
    CLUSTER,
    AtFirst,
    a_process_of,
    descendants,
    details,
    free_gpus,
    note_records,
    running,
    spread,
    two_nodes,
    until,
)  # fmt: skip

pytestmark = pytest.mark.full
HERE = Path(__file__).parent
GPUS = CLUSTER.gpus
LATENCY = LatencyModel("tiny", 1, 2e-3, 0.0, max_batch=16, kv_capacity_tokens=1 << 20)
REQUESTS = [Request(i, 3, 900, prompt_ids=np.arange(3), seed=i, target_tokens=500 if i else 20) for i in range(24)]
PATIENT = Faults(silence_floor_s=60.0)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    with two_nodes() as both:
        yield both


@pytest.fixture(scope="module")
def undisturbed(nodes: Any) -> dict[int, bytes]:
    """The tokens of every response."""
    with RayPool(nodes.address, runtime_env={}, faults=PATIENT) as pool:
        return chaos_counts.token_bytes(step(pool))


@pytest.fixture
def pool(nodes: Any, undisturbed: dict[int, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[RayPool]:
    """It says what it records while it does; afterwards no GPU is held."""
    with RayPool(nodes.address, runtime_env={}, faults=PATIENT) as joined:
        note_records(joined, monkeypatch)
        yield joined
        until(lambda: free_gpus() == GPUS, "no GPU is held")


def step(pool: RayPool, rule: Any = None) -> StepRecord:
    """On an actor of each node. Every response is entered once."""
    plan = spread(2, rule, per_node=1)
    with chaos_counts.counted() as entered:
        record = pool.run_step(plan, REQUESTS, counting_engine.CountingEngines(), LATENCY, Cluster(2, 1, 1))
    assert dict(entered) == dict.fromkeys(range(len(REQUESTS)), 1)
    return record


def decode_actors() -> set[int]:
    """Processes of this program's cluster that are decode actors, also while they start."""
    named = {pid: Path(f"/proc/{pid}/cmdline") for pid in descendants(os.getpid())}
    found = set()
    for pid, line in named.items():
        with contextlib.suppress(OSError):  # it has ended
            if b"DecodeActor" in line.read_bytes():
                found.add(pid)
    return found


def test_an_actor_that_is_killed_while_it_starts(pool: RayPool, undisturbed: dict[int, bytes]) -> None:
    """It never was ready; what was meant for it is decoded by others, and another one may start in its place."""
    until(lambda: not decode_actors(), "nobody is there")
    killed: list[int] = []

    def kill() -> None:
        while not (found := decode_actors()):
            time.sleep(0.001)  # not `until`, which looks too rarely: it would be ready
        killed.append(min(found))
        os.kill(killed[0], signal.SIGKILL)

    striker = threading.Thread(target=kill, daemon=True)
    striker.start()
    record = step(pool)
    striker.join()
    assert chaos_counts.token_bytes(record) == undisturbed
    ((holder, lost),) = details(record, "lost").items()
    assert "died: " in lost["why"]
    assert holder not in details(record, "ready")
    assert [s["call"] for s in record.spans if s["holder"] == holder] == ["lost"]
    assert killed[0] not in {one["pid"] for one in details(record, "ready").values()}


def test_an_actor_that_hangs_is_given_up_and_ended(pool: RayPool, undisturbed: dict[int, bytes]) -> None:
    """Stopped, it says nothing and obeys nothing, not even its end."""
    stopped: list[int] = []

    def stop() -> None:
        stopped.append(a_process_of(pool.record))  # type: ignore[attr-defined]
        os.kill(stopped[0], signal.SIGSTOP)

    pool.faults = replace(PATIENT, silence_floor_s=2.0, silence_factor=1.0)
    record = step(pool, AtFirst(stop))
    assert chaos_counts.token_bytes(record) == undisturbed
    ((holder, lost),) = details(record, "lost").items()
    assert lost["why"].startswith("has not been heard of since")
    assert_noticed_in_time(record, holder, pool.faults)
    assert details(record, "ready")[holder]["pid"] == stopped[0]
    until(lambda: not running(set(stopped)), "its process has ended")


@pytest.fixture(scope="module")
def factory() -> TorchEngineFactory:
    return factory_of(longest=140)


@pytest.fixture(scope="module")
def decoded(factory: TorchEngineFactory) -> dict[int, bytes]:
    """The tokens that the model decodes where nothing goes wrong."""
    record = run_step(plan_of([range(24)]), forced(), factory, TORCH_LATENCY, CLUSTER)
    return chaos_counts.token_bytes(record)


def test_where_memory_runs_out_fewer_responses_decode_together(
    pool: RayPool, factory: TorchEngineFactory, decoded: dict[int, bytes]
) -> None:
    pool.faults = replace(PATIENT, slow_factor=math.inf)
    plan = plan_of([range(24)], slots=12)
    record = pool.run_step(plan, forced(), troubled(factory, most=6), TORCH_LATENCY, Cluster(1, 1, 1), migration="move")
    assert chaos_counts.token_bytes(record) == decoded
    ((holder, lost),) = details(record, "lost").items()
    assert holder == "actor-0"
    assert "MemoryError: no more pages" in lost["why"]
    assert [s["slots"] for s in record.spans if s["phase"] == "decode"][-1] == 6


def test_a_slow_actor_is_relieved(pool: RayPool, factory: TorchEngineFactory, decoded: dict[int, bytes]) -> None:
    """Its iterations take many times as long as the other's: what it has goes on elsewhere, with its tokens."""
    pool.faults = replace(PATIENT, slow_factor=3.0)
    plan = plan_of([range(6), range(6, 24)], slots=24)
    plan = replace(plan, actors=(replace(plan.actors[0], max_batch=7), plan.actors[1]))
    slow_one = troubled(factory, slow_slots=7, slow_s=0.5)
    record = pool.run_step(plan, forced(), slow_one, TORCH_LATENCY, Cluster(1, 2, 1), migration="move")
    assert chaos_counts.token_bytes(record) == decoded
    ((holder, slow),) = details(record, "slow").items()
    assert holder == "actor-0"
    assert slow["times_planned"] > 3
    assert not details(record, "lost")
    assert record.moves == slow["responses"] == 6
    assert "actor-0" not in record.actor_of.values()


def test_an_interrupted_step_gives_all_gpus_back_and_the_next_one_runs(pool: RayPool, undisturbed: dict[int, bytes]) -> None:
    """A real signal in the middle of generation: what was done is recorded, and no actor of that step is left."""
    with pytest.raises(KeyboardInterrupt) as error:
        step(pool, AtFirst(lambda: signal.raise_signal(signal.SIGINT)))
    record: StepRecord = error.value.record  # type: ignore[attr-defined]
    until(lambda: free_gpus() == GPUS, "no GPU is held")
    ready = details(record, "ready")
    until(lambda: not running({one["pid"] for one in ready.values()}), "its processes have ended")
    assert 0 < len(record.completions) < len(REQUESTS)
    assert chaos_counts.token_bytes(record).items() <= undisturbed.items()
    for table in ("allocations", "spans", "events"):
        validate(table, getattr(record, table))
    assert {a["holder"] for a in record.allocations} == {"actor-0", "actor-1"}
    assert all(a["start_s"] < a["end_s"] <= record.end_s for a in record.allocations)
    assert chaos_counts.token_bytes(step(pool)) == undisturbed


SCRIPT = """
import sys
sys.path[:0] = {paths!r}
import time
from ray_samples import AtFirst
from test_ray_faults import step
from rlhfless.executor import Lifecycle, RayPool

def say():
    print("running", *pool.working, flush=True)
    time.sleep(600)

with RayPool({address!r}, runtime_env={{}}, lifecycle=Lifecycle.serverful()) as pool:
    step(pool)  # both are up
    step(pool, AtFirst(say))
"""


def test_a_driver_that_is_killed_leaves_nothing_on_a_cluster_that_goes_on(
    pool: RayPool, undisturbed: dict[int, bytes], nodes: Any, tmp_path: Path
) -> None:
    """No actor, no GPU, no temporary file; the cluster serves others as before."""
    script, folder = tmp_path / "script.py", tmp_path / "temporary"
    folder.mkdir()
    paths = [str(HERE), str(HERE.parent / "benchmarks"), str(HERE.parents[1])]
    script.write_text(SCRIPT.format(paths=paths, address=nodes.address))
    driver = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "TMPDIR": str(folder), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"},  # it uses the loopback as well
    )  # fmt: skip
    try:
        assert driver.stdout is not None
        said, *pids = driver.stdout.readline().split() or ["nothing"]
        assert said == "running", driver.communicate()[1]
        actors = set(map(int, pids))
        assert len(running(actors)) == 2
        until(lambda: free_gpus() == GPUS - 2, "it holds two GPUs")
        driver.kill()
        driver.communicate(timeout=60)
        until(lambda: not running(actors), "its actors have ended")
        until(lambda: free_gpus() == GPUS, "no GPU is held")
        assert not [*folder.iterdir()]
    finally:
        driver.kill()
        driver.wait()
    assert chaos_counts.token_bytes(step(pool)) == undisturbed
