"""A Ray cluster of two nodes on this machine with logical GPUs, on the loopback, in a folder that is gone afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from busy_machine import PATIENCE_S
from executor_samples import plan_of
from torch_wall_samples import requests

from rlhfless.executor import RayPool, StepRecord
from rlhfless.executor.distributed.pool import pool as actor_pool
from rlhfless.executor.distributed.ray import cleanup as ray_cleanup
from rlhfless.executor.distributed.ray import cluster as ray_cluster
from solver import Cluster, Plan
from solver.model.runtime_rules import ActorView, Decision, StepState, Trigger

pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
import ray
from ray._private import ray_constants
from ray.cluster_utils import Cluster as RayNodes

HERE = Path(__file__).parent
GPUS_PER_NODE = 4
CLUSTER = Cluster(2, GPUS_PER_NODE, 1)
LOST_SOON = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}


@contextlib.contextmanager
def two_nodes(**config: object) -> Iterator[RayNodes]:
    """Two nodes with this configuration of Ray; whatever was joined is left, and every process has ended afterwards."""
    code = f"{HERE}:{HERE.parent / 'benchmarks'}:{HERE.parents[1]}"
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:  # sockets: a short path
        (Path(folder) / "ray").mkdir()
        patience = {name: f"{PATIENCE_S * (1000 if name.endswith('_ms') else 1):.0f}" for name in ray_cluster.PATIENCE}
        here = {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": code, **patience}
        with mock.patch.dict("os.environ", here), mock.patch.object(ray_constants, "ENABLE_RAY_CLUSTER", False):
            nodes = None
            try:
                nodes = _started(config)
                yield nodes
            finally:
                ray.shutdown()
                if nodes is not None:
                    nodes.shutdown()
                ray_cleanup.sweep(folder, os.getpid(), os.getsid(0))


def _started(config: dict[str, object]) -> RayNodes:
    """Nodes that may take as long as a cluster that is started here, many times over."""
    nodes = RayNodes()
    try:
        with ray_cluster._ports(), ray_cluster._patient(PATIENCE_S):
            for of_all in ({"_system_config": config} if config else {}, {}):  # the first one's
                nodes.add_node(
                    num_cpus=1, num_gpus=GPUS_PER_NODE, object_store_memory=128 * 2**20, include_dashboard=False,
                    include_log_monitor=False, no_monitor=True, wait=False, **of_all,
                )  # fmt: skip
            nodes.wait_for_nodes(timeout=PATIENCE_S)
    except Exception:
        nodes.shutdown()
        raise
    return nodes


def free_gpus() -> float:
    """As Ray says; it says so a moment late."""
    return float(ray.available_resources().get("GPU", 0))


def details(record: StepRecord, name: str) -> dict[str, dict[str, Any]]:
    """What events of that name say, by holder."""
    return {e["holder"]: json.loads(e["detail"]) for e in record.events if e["name"] == name}


def descendants(pid: int) -> set[int]:
    """Processes that a process started, and theirs."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, set[int]] = {}
    for line in listed.splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, set()).add(child)
    found, new = set[int](), {pid}
    while new:
        new = {c for p in new for c in children.get(p, ())} - found
        found |= new
    return found


def running(pids: set[int]) -> set[int]:
    """Those that have not ended: a zombie has."""
    found = set()
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                found.add(pid)
    return found


def spread(actors: int, rule: Any = None, per_node: int = GPUS_PER_NODE) -> Plan:
    """The responses dealt out to that many actors, one per GPU through the nodes."""
    plan = plan_of([range(i, len(requests()), actors) for i in range(actors)], rule)
    return replace(plan, actors=tuple(replace(a, node=a.gpu_ids[0] // per_node) for a in plan.actors))


def long_requests(tokens: int = 4000) -> list[Any]:
    """One that is complete at once, and others that go on for so long that what is done meanwhile happens meanwhile."""
    return [replace(r, target_tokens=tokens if r.response else 1, max_tokens=tokens) for r in requests()]


@dataclass
class AtFirst:
    """Calls ``what`` once, at the first completion anywhere."""

    what: Any
    name: str = "at first"
    said: list[Any] = field(default_factory=list)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return None if self.said else Trigger(completions=1)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        if not self.said:
            self.said.append(self.what())
        return []


class Puts:
    """The Ray objects that a pool made of weights; ``then`` is called after each."""

    def __init__(self, pool: RayPool) -> None:
        self.objects: list[Any] = []
        self.then: Callable[[], object] = lambda: None
        put = pool.put

        def noted(name: str, thing: Any) -> Any:
            block = put(name, thing)
            self.objects.append(pool._objects[name])
            self.then()
            return block

        pool.put = noted  # type: ignore[method-assign]

    def places(self) -> list[list[str]]:
        """Of each object: the nodes that have it."""
        return [ray.experimental.get_object_locations([ref])[ref]["node_ids"] for ref in self.objects]


def a_process_of(record: StepRecord) -> int:
    """Of an actor that the record says is ready."""
    return int(next(iter(details(record, "ready").values()))["pid"])


@dataclass
class Kill:
    """Kills the first actor that is ready, once something is complete; another crew's record says which that is."""

    pool: Any
    killed: int = 0

    def __deepcopy__(self, memo: object) -> Kill:
        """It looks on from outside: the step's copy of the rule that calls it has this same one."""
        return self

    def __call__(self) -> None:
        self.killed = a_process_of(self.pool.record)
        os.kill(self.killed, signal.SIGKILL)


def note_records(pool: RayPool, patch: pytest.MonkeyPatch) -> None:
    made = actor_pool.StepActors

    def crew(*given: Any) -> Any:
        pool.record = given[2]  # type: ignore[attr-defined]
        return made(*given)

    patch.setattr(actor_pool, "StepActors", crew)
