"""Starting a Ray cluster here: what a failed try leaves, how long one may take, what is said meanwhile. Ray is pretended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from error_messages import refused

from rlhfless.errors import InputError
from rlhfless.executor.distributed.ray import cluster as ray_cluster
from rlhfless.executor.distributed.ray.cluster import START_TRIES, RayCluster


@pytest.mark.full
def test_ray_that_cannot_be_started_is_one_sentence_and_leaves_nothing() -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    failing = mock.patch.object(ray, "init", side_effect=Exception("no port is free\nand more"))
    with failing as tried, refused(InputError, "(no port is free)"):
        RayCluster(gpus=1)
    assert not Path(tried.call_args.kwargs["_temp_dir"]).exists()
    assert tried.call_count == START_TRIES


@pytest.mark.full
def test_what_a_failed_start_leaves_is_ended_before_the_next_one() -> None:
    """Processes that write to Ray's folder, which Ray itself knows no more; the next try finds an empty folder."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    left: list[subprocess.Popen[bytes]] = []
    alive: list[int] = []

    def init(**options: Any) -> None:
        folder = Path(options["_temp_dir"])
        alive.append(sum(one.poll() is None for one in left))
        assert os.listdir(folder) == []
        with (folder / "raylet.out").open("w") as log:
            left.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=log))
        raise Exception("The current node timed out during startup")

    with mock.patch.object(ray, "init", init), refused(InputError):
        RayCluster(gpus=1)
    assert alive == [0] * START_TRIES
    assert [one.wait() for one in left] == [-signal.SIGKILL] * START_TRIES


@pytest.mark.full
def test_a_start_that_took_all_its_time_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setattr(ray_cluster, "START_WITHIN_S", 0.0)
    failing = mock.patch.object(ray, "init", side_effect=Exception("too late"))
    with failing as tried, refused(InputError):
        RayCluster(gpus=1)
    assert tried.call_count == 1


@pytest.mark.full
def test_a_node_that_registers_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray looks for 30 s and gives up; here looking takes as long as it may, and what Ray has is put back."""
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray._private import services

    monkeypatch.setattr(ray_cluster, "POLL_S", 0.0)
    looks = iter([RuntimeError("no node"), RuntimeError("no node"), {"node_id": "1"}, RuntimeError("no node")])

    def get_node(address: str, node_id: str) -> Any:
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(services, "get_node", get_node)
    with ray_cluster._patient(60.0):
        assert services.get_node("address", "1") == {"node_id": "1"}
    with ray_cluster._patient(0.0), refused(RuntimeError):
        services.get_node("address", "1")
    assert services.get_node is get_node


@pytest.mark.full
def test_a_node_need_not_wait_for_its_agents_ports() -> None:
    """Its agents get free ports, each another one, and the node is told all of them."""
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray._private import services
    from ray._private.parameter import RayParams

    make, started = RayParams.__init__, list[list[str]]()
    with mock.patch.object(services, "start_ray_process", lambda command, *_: started.append(command)):
        with ray_cluster._ports():
            params = RayParams()
            services.start_ray_process(["raylet"], "raylet")
            services.start_ray_process(["gcs"], "gcs_server")
        ports = [getattr(params, name) for name in ray_cluster.AGENT_PORTS]
        services.start_ray_process(["raylet"], "raylet")
    assert len({port for port in ports if port > 1023}) == len(ports) == 4
    assert started == [["raylet", f"--dashboard_agent_listen_port={ports[2]}"], ["gcs"], ["raylet"]]
    assert RayParams.__init__ is make


@pytest.mark.full
def test_a_start_that_takes_long_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    said, lines = threading.Event(), list[str]()

    def init(**_: Any) -> None:
        assert said.wait(300)
        assert [os.environ[name] for name in ray_cluster.PATIENCE] == ["120", "120000", "100"]

    def write(text: str) -> None:
        lines.append(text)
        said.set()

    monkeypatch.setattr(ray_cluster, "SILENT_S", 0.01)
    for name in ray_cluster.PATIENCE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "stderr", types.SimpleNamespace(write=write, flush=lambda: None))
    with mock.patch.object(ray, "init", init), mock.patch.object(ray, "shutdown"):
        RayCluster(gpus=1).close()
    assert "".join(lines).count("Ray is still starting after") == 1
    assert not os.environ.keys() & ray_cluster.PATIENCE.keys()
