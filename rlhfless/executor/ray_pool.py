"""Decode actors as Ray actors, on one machine or many: the carrier behind the wall clock for a cluster.

Knows which actor is where and lives how long; nothing of rules, of how a token is computed, or of what becomes of the
responses of an actor that was lost. Whatever ends a step early (an actor too many that was lost, Ctrl-C) ends every actor; the
cluster stays until ``close``.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlhfless.engine.protocol import Request
from rlhfless.executor.actors import holder_of
from rlhfless.executor.faults import Faults
from rlhfless.executor.holdings import Holdings, Place
from rlhfless.executor.lifecycle import Lifecycle
from rlhfless.executor.ray_cluster import RayCluster
from rlhfless.executor.ray_placement import RayNode, place_nodes
from rlhfless.executor.record import StepRecord
from rlhfless.executor.sides import RemoteEngines, prefix_refusal, remote_engines
from rlhfless.executor.step import Watch
from rlhfless.executor.wall import WallStep
from rlhfless.executor.worker import Block
from solver.cluster import Cluster, MixedCluster
from solver.errors import PlanningError
from solver.objective import StepRest
from solver.offers import Latencies
from solver.plan import Plan
from solver.remaining import RemainingLengths


class RayPool:
    """Ray actors for a run's steps; use it in a ``with`` statement, or ``close`` it.

    Seconds are those of the run since its start, also between steps: a step starts when ``run_step`` is called, so what was
    held meanwhile is charged. Call ``settle`` when the rest of a step is over and before its record is kept.

    Args:
        address: of a Ray cluster, as for ``ray.init``; None uses the one that this program has joined, or starts one here.
        gpus: logical GPUs of a cluster that is started here; None takes the CUDA devices.
        lifecycle: how long actors live; by default an actor ends with its work and none waits.
        cpus_per_actor: CPUs that Ray reserves for each.
        faults: what is done about actors that die, hang or are slow; those that wait for GPUs that others hold count as silent.
        runtime_env: see ``RayCluster``.

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
    ) -> None:
        self._cpus, self.faults = cpus_per_actor, faults
        self.cluster = RayCluster(address, gpus=gpus, runtime_env=runtime_env)
        from rlhfless.executor import ray_actor, ray_crew, ray_member  # Ray is there now

        self._actor, self._crew, self._member = ray_actor, ray_crew, ray_member
        self._class = ray_actor.remote_class()
        self._origin_s = math.nan
        self._nodes: dict[int, RayNode] = {}
        self._side: Any = None
        self._bound: Any = None  # to what the actors that wait are bound: the side of their engines, and its own bindings
        self._idle: Holdings[Any] = Holdings(self, lifecycle)

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        nodes = RayNode.listed(self.cluster.ray.nodes()) if self.cluster.ray.is_initialized() else []
        gpus = sum(node.gpus for node in nodes)
        return f"RayPool: {len(self._idle)} actors wait; {len(nodes)} nodes with {gpus:g} GPUs"

    @property
    def meta(self) -> dict[str, str]:
        """What ``meta.json`` says of a run whose steps are executed here."""
        nodes = RayNode.listed(self.cluster.ray.nodes())
        where = ", ".join(f"{node.gpus:g} x {'/'.join(sorted(node.kinds)) or 'GPU'}" for node in nodes)
        return {"clock": "wall", "charging": "measured", "device": f"a Ray actor per actor on {len(nodes)} nodes: {where}"}

    def run_step(
        self,
        plan: Plan,
        requests: Sequence[Request],
        engines: Any,
        latency: Latencies,
        cluster: Cluster | MixedCluster,
        *,
        run: str = "run",
        step: int = 0,
        start_s: float = 0.0,
        rest: StepRest = StepRest(),  # noqa: B008 (frozen)
        admission: str = "reserve",
        migration: str = "cheaper",
        forecast: RemainingLengths | None = None,
        watch: Watch | None = None,
    ) -> StepRecord:
        """Run ``plan`` on the cluster in real time and record everything; arguments as for ``rlhfless.executor.run_step``.

        Args:
            engines: a ``TorchEngineFactory`` or a ``VllmEngineFactory``, whose weights, as they are now, are put into Ray's
                object store once and fetched once by every node.
            cluster: its nodes and GPUs, which Ray has to have.
            forecast: see ``ProcessPool.run_step``.
            start_s: the step starts now, which the run's clock shows as this, or as more where more time has passed.

        Raises:
            PlanningError: the plan asks for GPUs that Ray does not have; nothing was started.
            TypeError: engines of another kind.
            ActorError: too many actors or their nodes were lost (see ``Faults``). All actors have ended; the pool can be used
                again. The error, as whatever else ends a step early, has the ``record`` of what was done until then.
        """
        engines = remote_engines(engines)
        self.check(cluster)
        self._refuse(plan, engines)
        engines = engines.in_real_time()
        version = engines.weights_version
        faults = replace(self.faults, start_floor_s=max(self.faults.start_floor_s, engines.start_floor_s))
        self._bind(engines, latency)
        record = StepRecord(run, step, plan, self._start_clock(start_s))
        crew = self._crew.RayCrew(
            lambda order: self._idle.take(order.index, Place.of(order.plan), record.start_s + order.plan.start_s),
            self._idle.keeps, self._put, engines, record, self._origin_s,
        )  # fmt: skip
        under_way = WallStep(
            plan, requests, crew, latency, cluster, record, rest, admission, migration, faults, forecast,
            step if version is None else version,
        )  # fmt: skip
        under_way.watch = watch
        try:
            self._idle.begin(record, plan, rest)
            under_way.run()
            crew.bury()
        except BaseException:
            self._member.end_all([*crew.given, *self._idle.forget()])
            raise
        until_s = {row["holder"]: row["end_s"] for row in record.allocations}
        left = [(member, order.plan, until_s[holder_of(order.index)]) for order, member in crew.left]
        starts_s = [member.up_s - member.asked_s for member in crew.given if member.up_s is not None]
        self._idle.generated(record, left, max(starts_s, default=0.0))
        return record

    def check(self, cluster: Cluster | MixedCluster) -> None:
        """Find the Ray nodes that are those of ``cluster``.

        Raises:
            PlanningError: Ray has not as many, or they are smaller.
        """
        self._nodes = place_nodes(cluster, RayNode.listed(self.cluster.ray.nodes()), self._nodes)

    def release(self) -> None:
        """End the actors that wait; another step would start new ones."""
        self._idle.close()

    def settle(self, record: StepRecord) -> None:
        """Add to the record of the last step what waiting actors have held since, up to now."""
        self._idle.settle(record)

    def close(self, record: StepRecord | None = None) -> None:
        """End every actor and leave the cluster; what was held until then goes to ``record``. Idempotent.

        A cluster that was started here ends.
        """
        if self.cluster.ray.is_initialized():
            self._idle.close()
            if record is not None:
                self._idle.settle(record)
        self.cluster.close()

    # --- starting and ending actors (see ``Carrier``) -------------------------------------------------------------------

    def now_s(self) -> float:
        """Seconds since the run's start."""
        return time.monotonic() - self._origin_s

    def start(self, place: Place) -> Any:
        """An actor on the node that the plan's node is."""
        side, _ = self._bound
        return self._member.Member(self._class, side, place, self._nodes[place.node], self._cpus)

    def up_s(self, actor: Any) -> float | None:
        """When it was up."""
        actor.look()
        return None if actor.up_s is None else actor.up_s - self._origin_s

    def alive(self, actor: Any) -> bool:
        """Whether it and its node are, as far as Ray knows."""
        return bool(actor.look()) and self._nodes.get(actor.place.node) == actor.node

    def end(self, actor: Any) -> None:
        """Kill it, and wait until its GPUs are free."""
        self._member.end_all([actor])

    # --- a step's beginning -----------------------------------------------------------------------------------------------

    def _start_clock(self, start_s: float) -> float:
        """The run's clock goes on where the caller's is, and never back."""
        if math.isnan(self._origin_s) or start_s > self.now_s():
            self._origin_s = time.monotonic() - start_s
            return start_s
        return self.now_s()

    def _bind(self, engines: RemoteEngines, latency: Latencies) -> None:
        """Actors that wait and cannot make these engines end; new ones will be of their kind."""
        models = latency if isinstance(latency, Mapping) else {None: latency}
        bound = engines.side, {key: engines.binding(model) for key, model in models.items()}
        if bound != self._bound:
            self._idle.close()
        self._bound, self._side = bound, importlib.import_module(engines.side)

    def _put(self, name: str, thing: Any) -> tuple[Block, Any]:
        """Lay something out in the object store."""
        packed, laid_out = self._actor.lay_out(self._side, thing)
        return Block(name, packed), self.cluster.ray.put(laid_out)

    def _refuse(self, plan: Plan, engines: RemoteEngines) -> None:
        if (refusal := prefix_refusal(plan, engines)) is not None:
            raise PlanningError(refusal)
        for i, actor in enumerate(plan.actors):
            if actor.node not in self._nodes:
                raise PlanningError(
                    f"actor {i} of the plan is on node {actor.node}, but its cluster has {len(self._nodes)} nodes; give the "
                    "cluster that it was planned for"
                )
            if len(actor.gpu_ids) > 1 and self._nodes[actor.node].kinds and not engines.several_gpus:
                raise PlanningError(
                    f"actor {i} of the plan holds {len(actor.gpu_ids)} GPUs; the torch engine decodes on one, so plan for one"
                )
