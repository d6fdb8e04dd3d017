"""A Ray cluster of two nodes on this machine with logical GPUs, on the loopback, in a folder that is gone afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from rlhfless.executor import RayPool, StepRecord, ray_sweeper
from solver.rules import ActorView, Decision, StepState, Trigger

pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
import ray
from ray._private import ray_constants
from ray.cluster_utils import Cluster as RayNodes

HERE = Path(__file__).parent
GPUS_PER_NODE = 4
SOON = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}


@contextlib.contextmanager
def two_nodes() -> Iterator[RayNodes]:
    """Two nodes; whatever was joined is left, and every process has ended afterwards."""
    code = f"{HERE}:{HERE.parents[1]}"
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:  # sockets: a short path
        (Path(folder) / "ray").mkdir()
        here = {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": code}
        with mock.patch.dict("os.environ", here), mock.patch.object(ray_constants, "ENABLE_RAY_CLUSTER", False):
            nodes = None
            try:
                nodes = _started()
                yield nodes
            finally:
                ray.shutdown()
                if nodes is not None:
                    nodes.shutdown()
                ray_sweeper.sweep(folder, os.getpid(), os.getsid(0))


def _started(tries: int = 3) -> RayNodes:
    """Ray gives a node 30 s to come up, which a busy machine may not keep."""
    nodes = RayNodes()
    try:
        for number in range(2):
            nodes.add_node(
                num_cpus=1, num_gpus=GPUS_PER_NODE, object_store_memory=128 * 2**20, include_dashboard=False,
                include_log_monitor=False, no_monitor=True, wait=False, **({} if number else {"_system_config": SOON}),
            )  # fmt: skip
        nodes.wait_for_nodes(timeout=60)
    except Exception:
        nodes.shutdown()
        if tries == 1:
            raise
        return _started(tries - 1)
    return nodes


def free_gpus() -> float:
    """As Ray says; it says so a moment late."""
    return float(ray.available_resources().get("GPU", 0))


def until(true: Any, what: str, patience_s: float = 40.0) -> None:
    ends = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < ends, f"{what}: not after {patience_s:g} s"
        time.sleep(0.05)


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
        put = pool._put

        def noted(name: str, thing: Any) -> Any:
            block, stored = put(name, thing)
            self.objects.append(stored)
            self.then()
            return block, stored

        pool._put = noted  # type: ignore[method-assign]

    def places(self) -> list[list[str]]:
        """Of each object: the nodes that have it."""
        return [ray.experimental.get_object_locations([ref])[ref]["node_ids"] for ref in self.objects]
