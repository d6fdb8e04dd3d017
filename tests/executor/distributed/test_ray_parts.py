"""Parts of the Ray pool that need no cluster: placement, clocks, and an actor's refusals."""

from __future__ import annotations

import pickle
import platform
import queue
import re
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given
from hypothesis import strategies as st
from torch_wall_samples import LATENCY, factory_of, requests

from rlhfless.engine.torch import worker_backend as torch_backend
from rlhfless.errors import InputError, MissingExtra
from rlhfless.executor import RayPool
from rlhfless.executor.distributed import messages
from rlhfless.executor.distributed.ray.clock_sync import boot_id, offset_of
from rlhfless.executor.distributed.ray.cluster import RayCluster
from rlhfless.executor.distributed.ray.placement import RayNode, largest_cluster, place_beside, place_nodes
from rlhfless.executor.distributed.worker.shared_memory import packed
from solver import Cluster, PlanningError
from solver.model.admission import Admission
from solver.model.cluster import GpuPool, MixedCluster


def described(node_id: str, gpus: float = 4.0, kind: str | None = None, alive: bool = True) -> dict[str, object]:
    """A node as ``ray.nodes()`` lists it."""
    resources = {"CPU": 8.0, "GPU": gpus} | ({} if kind is None else {f"accelerator_type:{kind}": 1.0})
    return {"NodeID": node_id, "NodeManagerAddress": f"10.0.0.{node_id}", "Alive": alive, "Resources": resources}


def ids(placed: dict[int, RayNode]) -> list[str]:
    return [node.node_id for node in placed.values()]


def test_nodes_without_gpus_and_dead_ones_are_no_nodes_of_a_plan() -> None:
    nodes = RayNode.listed([described("1", 0.0), described("3"), described("2"), described("4", alive=False)])
    assert [node.node_id for node in nodes] == ["2", "3"]
    assert ids(place_nodes(Cluster(2, 4, 1, "l40s"), nodes)) == ["2", "3"]


def test_a_cluster_that_ray_does_not_have_is_refused() -> None:
    nodes = RayNode.listed([described("1", 4.0, "L40S"), described("2", 2.0)])
    with refused(PlanningError, "2 nodes with 4 l40s, 4 l40s", "10.0.0.1 with 4 (l40s)", "10.0.0.2 with 2"):
        place_nodes(Cluster(2, 4, 1, "l40s"), nodes)
    with refused(PlanningError):
        place_nodes(Cluster(1, 1, 1), [])


def test_an_actor_that_is_larger_than_every_node_is_refused_with_the_size_that_fits() -> None:
    """Also where several nodes together have its GPUs; a cluster of such nodes is refused before it is planned."""
    nodes = RayNode.listed([described("1", 1.0), described("2", 2.0)])
    with refused(PlanningError, "1 node with 3 gpu", "actors of at most 2 GPUs", "one node"):
        place_nodes(Cluster(1, 3, 3), nodes)
    with refused(PlanningError, "2 GPUs", "a node has only 1"):
        Cluster(2, 1, 2)


def test_the_largest_cluster_that_ray_has_is_reported() -> None:
    def largest(cluster: Cluster, *gpus: float, kind: str | None = None) -> tuple[int, int] | None:
        nodes = RayNode.listed([described(str(i), has, kind) for i, has in enumerate(gpus)])
        found = largest_cluster(cluster, nodes)
        if found is not None:
            place_nodes(Cluster(found[0] // found[1], found[1], cluster.gpus_per_actor, cluster.kind), nodes)
        return found

    wanted = Cluster(4, 8, 2, "l40s")
    assert largest(wanted, 8, 8, 8) == (24, 8)
    assert largest(wanted, 8, 4, 4, 4) == (16, 4)
    assert largest(wanted, 8, 7) == (12, 6)
    assert largest(wanted, 16) == (16, 16)
    assert largest(wanted, *[1] * 9) is None
    assert largest(wanted, 8, kind="H100") is None
    assert largest(Cluster(1, 2, 1), 1, 1, 1) == (2, 1)


def test_pools_get_nodes_of_their_kind() -> None:
    nodes = RayNode.listed([described("1", 8.0), described("2", 8.0, "H100"), described("3", 8.0, "L40S")])
    mixed = MixedCluster([GpuPool("l40s", 1, 8), GpuPool("h100_sxm", 1, 8), GpuPool("a100", 1, 4)])
    assert ids(place_nodes(mixed, nodes)) == ["3", "2", "1"]
    with refused(PlanningError):
        place_nodes(MixedCluster([GpuPool("h100_sxm", 3, 8)]), nodes)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=6), st.data())
def test_every_node_of_a_cluster_is_another_one_that_is_big_enough(gpus: list[int], data: st.DataObject) -> None:
    nodes = RayNode.listed([described(str(i), float(g)) for i, g in enumerate(gpus)])
    wanted = data.draw(st.permutations([data.draw(st.integers(1, g)) for g in gpus]))
    cluster = MixedCluster([GpuPool("gpu", 1, g) for g in wanted])
    placed = place_nodes(cluster, nodes)
    assert sorted(ids(placed)) == sorted(node.node_id for node in nodes)
    assert all(placed[i].gpus >= g for i, g in enumerate(wanted))
    lost = data.draw(st.sampled_from(nodes))
    if max(wanted) == 1 and len(nodes) > 1:
        smaller = place_nodes(MixedCluster([GpuPool("gpu", 1, 1)] * (len(nodes) - 1)), [n for n in nodes if n != lost], placed)
        assert all(smaller[i] == placed[i] for i in smaller if placed[i] != lost), "those that are left keep their numbers"


# --- clocks -----------------------------------------------------------------------------------------------------------


@given(
    st.floats(-1e6, 1e6),
    st.lists(st.tuples(st.floats(1e-5, 0.5), st.floats(1e-5, 0.5)), min_size=1, max_size=10),
)
def test_the_true_offset_is_within_the_error_of_the_estimate(ahead_s: float, ways: list[tuple[float, float]]) -> None:
    now, left = [100.0], iter(ways)

    def ask() -> float:
        there, back = next(left)
        now[0] += there
        answer = now[0] + ahead_s
        now[0] += back
        return answer

    found = offset_of(ask, lambda: now[0], len(ways))
    assert abs(found.offset_s - ahead_s) <= found.error_s + 1e-9
    assert found.error_s == pytest.approx(min(there + back for there, back in ways) / 2, abs=1e-9)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such file")
def test_gpus_beside_a_cluster_are_those_that_its_nodes_leave() -> None:
    nodes = RayNode.listed([described("1", 4.0), described("2", 8.0), described("3", 1.0)])
    cluster = Cluster(2, 4, 1)
    placed = place_nodes(cluster, nodes)
    assert ids(placed) == ["1", "2"]
    assert ids(place_beside({2: 4, 3: 1}, cluster, nodes, placed)) == ["2", "3"]
    assert place_beside({2: 5}, cluster, nodes, placed) == {}, "no node has five left"
    assert list(place_beside({2: 4, 3: 2}, cluster, nodes, placed)) == [2], "what is left is given away once"


def test_processes_of_one_boot_know_it() -> None:
    assert boot_id()
    assert boot_id() == boot_id()


# --- without Ray, and what an actor refuses ---------------------------------------------------------------------------


def test_without_ray_there_is_one_sentence() -> None:
    with (
        mock.patch.dict(sys.modules, {"ray": None}),
        refused(MissingExtra),
    ):
        RayPool()


@pytest.mark.full
def test_gpus_are_counted_for_a_cluster_of_ones_own_only() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    with refused(InputError):
        RayCluster("10.0.0.1:6379", gpus=4)


@pytest.fixture
def heard() -> Iterator[str]:
    """An address at which somebody listens, though no cluster."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.full
@pytest.mark.parametrize("form", ["127.0.0.1:{}", "localhost:{}", "ray://127.0.0.1:{}"])
def test_an_address_where_nobody_listens_is_refused_before_ray_tries(form: str) -> None:
    """Ray would go on trying for minutes; what it makes of other addresses is its own business."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = form.format(server.getsockname()[1])
    said = rf"'{address}' \(.*[Cc]onnection refused\)"
    with mock.patch.object(ray, "init") as tried, pytest.raises(InputError, match=said):
        RayCluster(address)
    assert not tried.called


@pytest.mark.full
def test_an_address_that_cannot_be_one_is_refused() -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    for address in ("127.0.0.1:70000", f"{'a' * 64}.example:6379"):
        with mock.patch.object(ray, "init") as tried, refused(InputError, str(address)):
            RayCluster(address)
        assert not tried.called


@pytest.mark.full
@pytest.mark.parametrize("address", ["auto", "local"])
def test_an_address_without_a_port_is_left_to_ray(address: str) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    with mock.patch.object(ray, "init") as tried:
        RayCluster(address)
    assert tried.call_args.kwargs["address"] == address


@pytest.mark.full
def test_no_cluster_at_the_address_is_one_sentence(heard: str) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    failing = mock.patch.object(ray, "init", side_effect=ConnectionError("nobody there\nand more"))
    with failing, refused(InputError, str(heard)):
        RayCluster(heard)


@pytest.mark.full
def test_a_failure_without_a_message_is_reported_by_its_name(heard: str) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    failing = mock.patch.object(ray, "init", side_effect=TimeoutError())
    with failing, refused(InputError, str(heard), "TimeoutError"):
        RayCluster(heard)


@pytest.mark.full
def test_a_cluster_of_other_versions_is_one_sentence(heard: str) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    from ray._private.utils import check_version_info

    def join(**_: object) -> None:
        check_version_info({"ray_version": "1.13.0", "python_version": "3.7.9"}, "this node", raise_on_mismatch=True)

    mine = rf"Ray {re.escape(ray.__version__)} with Python {platform.python_version()}"
    said = rf"'{heard}' .*Ray 1\.13\.0 with Python 3\.7\.9, .*{mine}"
    with mock.patch.object(ray, "init", join), pytest.raises(InputError, match=said):
        RayCluster(heard)


@dataclass
class Outbox:
    said: list[object]

    def send(self, what: object) -> None:
        self.said.append(what)


@pytest.mark.full
def test_an_actor_refuses_orders_of_another_version_than_its_weights() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    from rlhfless.executor.distributed.ray.actor import RayWorker, VersionedOrder

    block, weights = packed(torch_backend.Backend(), "weights", factory_of().measured())
    outbox = Outbox([])
    actor = RayWorker(outbox, queue.SimpleQueue(), "cpu", torch_backend.__name__, {}, {})  # type: ignore[arg-type]
    begin = messages.StartStep(0.0, block, LATENCY, Admission(4, 1 << 20), 7)
    with refused(RuntimeError):
        actor._obey(VersionedOrder(6, messages.Add(requests()[:1])))
    with mock.patch("ray.get", lambda stored, timeout: stored):
        actor.objects["weights"] = weights
        actor._obey(VersionedOrder(7, begin))
    assert not actor.objects, "weights are not held twice"
    actor._obey(VersionedOrder(7, messages.Add(requests()[:1])))
    for version in (6, 8):
        with refused(RuntimeError, str(version)):
            actor._obey(VersionedOrder(version, messages.Add(requests()[1:2])))
    assert actor.engine is not None
    assert list(actor.engine.generated_tokens()) == [0]


@pytest.mark.full
def test_orders_that_overtake_each_other_are_obeyed_in_order() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    from rlhfless.executor.distributed.ray.actor import DecodeActor

    with mock.patch.object(DecodeActor, "_serve"):
        actor = DecodeActor(torch_backend.__name__)
    for number in np.random.default_rng(0).permutation(20).tolist():
        actor.send(number, pickle.dumps(f"order {number}"), {})
    obeyed = [actor._inbox.get_nowait() for _ in range(20)]
    assert obeyed == [f"order {number}" for number in range(20)]
    actor.send(20, b"no pickle", {})
    assert isinstance(actor._inbox.get_nowait(), Exception)


# --- what another actor handed over -----------------------------------------------------------------------------------


def decoding(out: Outbox, exports: dict[str, Any]) -> Any:
    """An actor with weights."""
    from rlhfless.executor.distributed.ray.actor import RayWorker, VersionedOrder

    block, weights = packed(torch_backend.Backend(), "weights", factory_of().measured())
    inbox: Any = queue.SimpleQueue()
    actor = RayWorker(out, inbox, "cpu", torch_backend.__name__, {"weights": weights}, exports)  # type: ignore[arg-type]
    with mock.patch("ray.get", lambda stored, timeout: stored):
        actor._obey(VersionedOrder(0, messages.StartStep(0.0, block, LATENCY, Admission(4, 1 << 20), 0)))
    return actor


def finished(actor: Any, out: Outbox) -> list[list[int]]:
    """What the actor generates."""
    while actor.engine.running() or actor.engine.waiting():
        actor._iterate()
    done = [c for r in out.said for c in r.completions]  # type: ignore[attr-defined]
    return [c.token_ids.tolist() for c in sorted(done, key=lambda c: c.response)]


@pytest.mark.full
def test_a_kv_state_that_cannot_be_read_is_computed_again() -> None:
    """Lost with its actor, with its node, never laid out, or late: no reason for the receiver to end."""
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray import exceptions

    from rlhfless.executor.distributed.ray.actor import VersionedOrder

    two = requests()[:2]
    out = Outbox([])
    alone = decoding(out, {})
    alone._obey(VersionedOrder(0, messages.Add(two)))
    expected = finished(alone, out)
    out, exports = Outbox([]), dict[str, Any]()
    sender = decoding(out, exports)
    sender._obey(VersionedOrder(0, messages.Add(two)))
    for _ in range(3):
        sender._iterate()
    sender._obey(VersionedOrder(0, messages.TakeOff([0, 1], {0: "kv-0", 1: "kv-1"})))
    taken = out.said[-1].taken  # type: ignore[attr-defined]
    assert all(r.generated_tokens for r in taken)
    assert set(exports) == {"kv-0", "kv-1"}
    full = exceptions.RayTaskError("export", "trace", exceptions.OutOfDiskError("full"))
    for error in (exceptions.ActorDiedError(), exceptions.ObjectLostError("00", None, ""), full, exceptions.GetTimeoutError()):
        patience_s: list[float] = []

        def get(stored: Any, timeout: float, error: Any = error, patience_s: list[float] = patience_s) -> Any:
            patience_s.append(timeout)
            if stored is exports["kv-0"]:
                time.sleep(0.05)
                raise error
            return stored

        out = Outbox([])
        receiver = decoding(out, {})
        receiver.objects.update(exports)
        with mock.patch("ray.get", get):
            receiver._obey(VersionedOrder(0, messages.Add(taken), within_s=2.0))
        answer: Any = out.said[-1]
        assert answer.again == [0]
        assert [copy.response for copy in answer.copies] == [1]
        assert patience_s[1] < patience_s[0] <= 2.0, "both have the same time together"
        assert finished(receiver, out) == expected


@pytest.mark.full
def test_prefixes_that_cannot_be_read_are_computed_by_their_receiver() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray import exceptions

    from rlhfless.executor.distributed.ray.actor import VersionedOrder

    out = Outbox([])
    alone = decoding(out, {})
    alone._obey(VersionedOrder(0, messages.Add(requests()[:1])))
    expected = finished(alone, out)
    out = Outbox([])
    receiver = decoding(out, {})
    receiver.objects["kv-0"] = None
    asked = [replace(requests()[0], prompt=0, cached_tokens=3)]
    with mock.patch("ray.get", side_effect=exceptions.ActorDiedError()):
        receiver._obey(VersionedOrder(0, messages.Add(asked, messages.Block("kv-0", b"", ())), within_s=1.0))
    assert finished(receiver, out) == expected
    (done,) = (c for r in out.said for c in r.completions)  # type: ignore[attr-defined]
    assert done.prefill_tokens_computed == requests()[0].prompt_tokens - 1


@pytest.mark.full
def test_weights_that_cannot_be_read_end_the_actor() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray import exceptions

    with mock.patch("ray.get", side_effect=exceptions.ObjectLostError("00", None, "")):
        from rlhfless.executor.distributed.ray.actor import RayWorker, VersionedOrder

        inbox: Any = queue.SimpleQueue()
        actor = RayWorker(Outbox([]), inbox, "cpu", torch_backend.__name__, {"weights": None}, {})  # type: ignore[arg-type]
        begin = messages.StartStep(0.0, messages.Block("weights", b"", ()), LATENCY, Admission(4, 1 << 20), 0)
        with pytest.raises(exceptions.ObjectLostError):
            actor._obey(VersionedOrder(0, begin))
