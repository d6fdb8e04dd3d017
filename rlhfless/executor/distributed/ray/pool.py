"""``RayPool``: runs actors as Ray actors, on one machine or many, on the wall clock.

Any exception that ends a step early ends every actor; the cluster stays until ``close``.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rlhfless.engine.common.pool_engines import PoolEngines
from rlhfless.executor.distributed.failure_limits import Faults
from rlhfless.executor.distributed.messages import ActorLost, ActorReport, Block, Order, Prewarm, StartStep, blocks, received
from rlhfless.executor.distributed.pool.lifecycle import Lifecycle
from rlhfless.executor.distributed.pool.pool import ActorPool
from rlhfless.executor.distributed.ray.cluster import RayCluster
from rlhfless.executor.distributed.ray.object_store import SMALLEST_BYTES, store_refusal
from rlhfless.executor.distributed.ray.placement import RayNode, place_beside, place_nodes
from rlhfless.executor.distributed.transport import ActorPlacement
from rlhfless.executor.distributed.wall_clock import MACHINE, Clock
from rlhfless.executor.distributed.worker.shared_memory import packed
from rlhfless.executor.step.record import StepRecord
from rlhfless.executor.step.work_items import WorkServer, bought_as
from rlhfless.executor.step.work_rows import allocated
from solver.model.cluster import Cluster, MixedCluster
from solver.model.plan import Plan
from solver.model.plurals import counted


class RayPool(ActorPool[Any]):
    """A pool of Ray actors (see ``ActorPool``).

    A step's weights are put into Ray's object store once, and every node fetches them once.

    Args:
        address: of a Ray cluster, as for ``ray.init``; None uses the one that this program has joined, or starts a local one.
        gpus: logical GPUs of a cluster that is started here; None uses the CUDA devices.
        lifecycle: how long actors live; by default an actor stops with its work.
        cpus_per_actor: CPUs that Ray reserves for each actor.
        faults: limits for actors that die, hang or are slow; actors that wait for GPUs of other programs count as silent.
        runtime_env, object_store_bytes: see ``RayCluster``.
        clock: the run's clock.

    Raises:
        MissingExtra, InputError: see ``RayCluster``.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        gpus: int | None = None,
        lifecycle: Lifecycle = Lifecycle.cold(),  # noqa: B008 (frozen)
        cpus_per_actor: float = 0.0,
        faults: Faults = Faults(),  # noqa: B008 (frozen)
        runtime_env: Mapping[str, Any] | None = None,
        object_store_bytes: int = SMALLEST_BYTES,
        clock: Clock = MACHINE,
    ) -> None:
        super().__init__(lifecycle, faults, clock)
        self._cpus = cpus_per_actor
        self.cluster = RayCluster(address, gpus=gpus, runtime_env=runtime_env, object_store_bytes=object_store_bytes)
        from rlhfless.executor.distributed.ray import actor as ray_actor  # Ray is there now
        from rlhfless.executor.distributed.ray import handle as ray_handle

        self._ray_actor, self._ray_handle = ray_actor, ray_handle
        self._class = ray_actor.remote_class()
        self._objects: dict[str, Any] = {}  # Ray objects of the step's blocks by name
        self._count = itertools.count()
        self._nodes: dict[int, RayNode] = {}

    def __repr__(self) -> str:
        nodes = RayNode.listed(self.cluster.ray.nodes()) if self.cluster.ray.is_initialized() else []
        gpus = sum(node.gpus for node in nodes)
        available = f"{counted(len(nodes), 'node')} with {gpus:g} GPU{'s' * (gpus != 1)}"
        return f"RayPool: {counted(len(self.idle), 'actor')} idle; {available}"

    @property
    def meta(self) -> dict[str, str]:
        """See ``ActorPool``."""
        nodes = RayNode.listed(self.cluster.ray.nodes())
        location = ", ".join(f"{node.gpus:g} x {'/'.join(sorted(node.kinds)) or 'GPU'}" for node in nodes)
        return {
            "clock": "wall",
            "charging": "measured",
            "device": f"a Ray actor per actor on {counted(len(nodes), 'node')}: {location}",
        }

    def check(self, cluster: Cluster | MixedCluster) -> None:
        """Map the nodes of ``cluster`` to Ray nodes.

        Raises:
            PlanningError: Ray has fewer or smaller nodes.
        """
        self._nodes = place_nodes(cluster, RayNode.listed(self.cluster.ray.nodes()), self._nodes)

    def close(self, record: StepRecord | None = None) -> None:
        """End every actor and leave the cluster; allocations up to then are written to ``record``. Idempotent.

        A cluster that was started here ends.
        """
        if self.cluster.ray.is_initialized():
            self.release()
            if record is not None:
                self.finalise_allocations(record)
        self.cluster.close()

    # --- see ``Transport`` --------------------------------------------------------------------------------------------

    def spawn(self, place: ActorPlacement, prewarm: Prewarm | None = None) -> Any:
        """Start an actor on the Ray node of the plan's node."""
        node = self._nodes[place.node]
        return self._ray_handle.RayActorHandle(self._class, self.side_name, place, node, self._cpus, prewarm, self.clock)

    def serves(self, here: ActorPlacement, wanted: ActorPlacement) -> bool:
        """Return whether both places are on one node with as many GPUs; within a node Ray picks the devices."""
        return here.alike(wanted)

    def up_s(self, actor: Any) -> float | None:
        """Return when the actor was up."""
        actor.check_alive()
        return None if actor.up_s is None else actor.up_s - self._origin_s

    def alive(self, actor: Any) -> bool:
        """Return whether the actor and its node live, as far as Ray knows."""
        return bool(actor.check_alive()) and self._nodes.get(actor.place.node) == actor.node

    def kill(self, actor: Any, *, at_once: bool = False) -> None:
        """See ``Transport``."""
        actor.kill(at_once=at_once)

    def end_all(self, actors: Sequence[Any]) -> None:
        """See ``Transport``."""
        self._ray_handle.end_all(actors)

    def new_name(self) -> str:
        """See ``Transport``."""
        return f"kv-{next(self._count)}"

    def put(self, name: str, obj: Any) -> Block:
        """See ``Transport``."""
        block, buffers = packed(self.worker_backend, name, obj)
        try:
            self._objects[name] = self.cluster.ray.put(buffers)
        except self._ray_handle.FULL as error:
            raise self._ray_handle.no_room(block.nbytes, error) from None
        return block

    def remote_form(self, engines: Any) -> Any:
        """See ``Transport``."""
        return engines.to_remote()

    def _to_prewarm(self, engines: Any, weights: Block | None) -> tuple[Block, Any]:
        """See ``ActorPool``: the weights stay in the object store while this is referred to."""
        assert weights is not None, "no actor was started"
        return weights, self._objects[weights.name]

    def send(self, actor: Any, order: Order, version: int) -> None:
        """See ``Transport``: with the Ray objects of blocks. Another actor's KV state, which stays on the sender's node, is
        fetched from there, and passed on once.

        Raises:
            NoRoom: the order is too large for the object store.
        """
        objects = {block.name: self._objects.pop(block.name) for block in received(order)}
        if isinstance(order, StartStep):
            objects = {order.engines.name: self._objects[order.engines.name]}
        within_s = max(1.0, self.faults.silence_floor_s / 2)  # waiting for another's KV state is not silence
        actor.send(self._ray_actor.VersionedOrder(version, order, within_s), objects)

    def listen(self, actors: Collection[Any], timeout_s: float | None) -> list[tuple[Any, ActorReport | ActorLost]]:
        """See ``Transport``."""
        ray, listening = self.cluster.ray, {actor.listening: actor for actor in actors}
        if not listening:  # the next one starts later
            assert timeout_s is not None, "there is no actor, and none will start"
            self.clock.sleep(timeout_s)
            return []
        if not ray.wait(list(listening), timeout=timeout_s)[0]:
            return []
        ready, _ = ray.wait(list(listening), num_returns=len(listening), timeout=0)
        return [(listening[ref], message) for ref in ready for message in self._heard(listening[ref])]

    def _heard(self, actor: Any) -> list[ActorReport | ActorLost]:
        messages: list[ActorReport | ActorLost] = actor.messages()
        for report in messages:
            if isinstance(report, ActorReport):
                for block in (*blocks(report.taken or ()), *(report.prefixes or {}).values()):
                    self._objects[block.name] = actor.export(block.name)
        return messages

    def pid(self, actor: Any) -> int | None:
        """See ``Transport``."""
        return None if actor.up is None else int(actor.up.pid)

    def ready_event(self, actor: Any) -> Mapping[str, Any] | None:
        """See ``Transport``."""
        return {
            "address": actor.node.address, "ray_node": actor.up.node_id, "pid": actor.up.pid, "device": actor.up.device,
            "clock_error_s": actor.clock.error_s,
        }  # fmt: skip

    def _step_over(self) -> None:
        """Drop what actors stored for each other."""
        self._objects.clear()
        for actor in self.idle.values():
            actor.step_over()

    def _refusal(self, plan: Plan, engines: PoolEngines, cluster: Cluster | MixedCluster) -> str | None:
        """Like ``ActorPool._refusal``; also maps the plan's nodes to Ray nodes.

        Raises:
            PlanningError: Ray has other GPUs.
        """
        self.check(cluster)
        for i, actor in enumerate(plan.actors):
            if actor.node not in self._nodes:
                return (
                    f"actor {i} of the plan is on node {actor.node}, but its cluster has {counted(len(self._nodes), 'node')}; "
                    "use the cluster that it was planned for"
                )
        ray = self.cluster.ray
        passed = {self._nodes[actor.node].node_id for actor in plan.actors} | {ray.get_runtime_context().get_node_id()}
        return store_refusal(engines.weight_bytes, ray.nodes(), passed)

    def devices_of(self, plan: Plan) -> list[str]:
        """See ``ActorPool``; which CUDA devices they are, Ray chooses."""
        return ["cuda" if self._nodes[actor.node].kinds else "cpu" for actor in plan.actors]

    def _work_refusal(self, servers: Sequence[WorkServer], cluster: Cluster | MixedCluster) -> str | None:
        """Like ``ActorPool._work_refusal``; also maps nodes beside the cluster to Ray nodes with GPUs that are left."""
        wanted: dict[int, int] = {}
        for server in servers:
            if len(nodes := [gpus.node for gpus in allocated(server, cluster)]) > 1:
                return (
                    f"server {server.holder!r} of the work has GPUs of nodes {', '.join(map(str, nodes))}, but a Ray actor is "
                    "on one node; give it GPUs of one node"
                )
            node = bought_as(server.gpu_ids[0], cluster)[0] if server.node is None and server.gpu_ids else server.node
            if node is not None and node not in self._nodes:
                wanted[node] = wanted.get(node, 0) + len(server.gpu_ids)
        placed = place_beside(wanted, cluster, RayNode.listed(self.cluster.ray.nodes()), self._nodes)
        if missing := sorted(set(wanted) - set(placed)):
            return (
                f"the work needs {counted(wanted[missing[0]], 'GPU')} beside the cluster on one node, but no Ray node has as "
                "many left; plan for a smaller cluster, or add nodes"
            )
        self._nodes.update(placed)
        return None
