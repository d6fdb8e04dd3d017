"""A Ray cluster of two nodes in a scripted world: objects, handles and nodes that behave as Ray's do, on the world's clock.

Real are the pool, the crew, its members and the workers. Node 1 is another machine: its clock is ahead of this one's.
"""

from __future__ import annotations

import contextlib
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from scripted_pools import watch
from scripted_world import Actor, Copying, Inbox, World

pytest.importorskip("ray", reason="Ray is not installed: pip install 'rlhfless[ray]'")
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    ObjectLostError,
    ObjectStoreFullError,
    RayError,
)

from rlhfless.executor import RayPool
from rlhfless.executor.distributed.ray import actor as real
from rlhfless.executor.distributed.ray import handle as ray_handle
from rlhfless.executor.distributed.ray import pool as ray_pool
from rlhfless.executor.distributed.ray.clock_sync import boot_id
from rlhfless.executor.distributed.worker import worker
from rlhfless.system.child import Ready

NODES = ("a" * 56, "b" * 56)
AHEAD_S = (0.0, 5000.0)  # of the clocks of the two nodes
NOTICE_S = 0.05  # after which Ray knows of a death


class Ref:
    """A Ray object: there once ``ready``, and then it is what ``value`` returns or raises."""

    def __init__(self, ready: Callable[[], bool], value: Callable[[], Any]) -> None:
        self.ready, self.value = ready, value


class Worker(Copying, real.RayWorker):
    """A worker in a Ray actor."""


class RayActor(Actor):
    """The process of a Ray actor; it is told orders in pickles and says its words in others."""

    def __init__(self, world: World, ray: Ray, node: int, backend_module: str, prewarm: tuple[bytes, Ref] | None) -> None:
        self.ray, self.node = ray, node
        self.objects: dict[str, Any] = {}
        self.exports: dict[str, list[pickle.PickleBuffer]] = {}
        self.known_dead_s: float | None = None
        self.doubt = False  # Ray cannot say for a moment whether it lives
        given = None
        if prewarm is not None:
            told = pickle.loads(prewarm[0])
            given = pickle.loads(*prewarm[1].value()), told.latency

        def make(actor: Actor) -> worker.Worker:
            return Worker(actor, Inbox(), "cpu", backend_module, self.objects, self.exports, actor.clock)  # type: ignore[arg-type]

        super().__init__(world, make, given, AHEAD_S[node])

    def send(self, message: Any) -> None:
        """As its outbox: its first word says where it is."""
        if isinstance(message, Ready):
            boot = boot_id() if self.node == 0 else "another boot"
            message = real.RayActorReady(self.pid, NODES[self.node], f"10.0.0.{self.node}", "cpu", boot, message.value)
        super().send(message)

    def obeyed(self, order: Any) -> Any:
        """Its objects come with it."""
        told, objects = order
        self.objects.update(objects)
        return pickle.loads(told)

    def say_the_end(self) -> None:
        """Ray finds out. What it said and nobody asked for is gone, but for the words of one that failed."""
        self.known_dead_s = max([self.world.now_s + NOTICE_S, *(at_s for at_s, _ in self.said)])

    @property
    def known_dead(self) -> bool:
        """Whether Ray knows that it is."""
        return self.known_dead_s is not None and self.known_dead_s <= self.world.now_s

    @property
    def next_s(self) -> float:
        """Ray's finding out is something that happens."""
        if self.known_dead_s is not None:
            return self.known_dead_s if self.known_dead_s > self.world.now_s else float("inf")
        return super().next_s

    def turn(self) -> None:
        """None for one that is dead."""
        if self.state != "dead":
            super().turn()

    def error(self) -> RayError:
        """What Ray says of it."""
        error = ActorDiedError()
        error.error_msg = f"The actor is dead because its worker process {self.why}."
        return error


class Handle:
    """What a driver holds of a Ray actor."""

    def __init__(self, actor: RayActor) -> None:
        self.actor, self._asked = actor, 0
        call = lambda method: SimpleNamespace(remote=method)  # noqa: E731
        self.listen, self.clock_s, self.export, self.send = map(call, (self._listen, self._clock, self._export, self._tell))

    def _listen(self) -> Ref:
        actor = self.actor

        def value() -> list[bytes]:
            if actor.doubt and not actor.known_dead:
                actor.world.now_s += 1e-3
                raise ActorUnavailableError("Socket closed", None)
            if not actor.heard:
                raise actor.error()
            said = []
            while actor.heard:
                said.append(pickle.dumps(actor.take(), pickle.HIGHEST_PROTOCOL))
            return said

        return Ref(lambda: actor.doubt or actor.heard or actor.known_dead, value)

    def _clock(self) -> Ref:
        actor = self.actor

        def value() -> float:
            actor.doubt = False
            if actor.known_dead:
                raise actor.error()
            return actor.world.now_s + actor.ahead_s

        return Ref(lambda: actor.known_dead or actor.state in ("starts", "up"), value)

    def _export(self, name: str) -> Ref:
        actor, there = self.actor, []

        def ready() -> bool:
            if not there and actor.state == "up" and name in actor.exports:
                there.append(actor.exports.pop(name))
            return bool(there) or actor.known_dead

        def value() -> list[pickle.PickleBuffer]:
            if not ready():
                raise GetTimeoutError("no answer")
            if not there:
                raise actor.error()
            if actor.node in actor.ray.lost:
                raise ObjectLostError("00", None, "")
            return there[0]

        return Ref(ready, value)

    def _tell(self, number: int, told: bytes, objects: dict[str, Ref]) -> None:
        assert number == self._asked, "orders are counted"
        self._asked += 1
        if self.actor.state != "dead":
            self.actor.order((told, objects))


class Ray:
    """The module, as far as it is used. ``full``: nothing more has room in its store. ``lost``: nodes that are gone,
    and when Ray knows that."""

    def __init__(self, world: World) -> None:
        self.world, self.full, self.started = world, False, True
        self.lost: dict[int, float] = {}

    def is_initialized(self) -> bool:
        """Whether the pool has joined."""
        return self.started

    def nodes(self) -> list[dict[str, Any]]:
        """Two with four GPUs each."""
        return [
            {"NodeID": node_id, "NodeManagerAddress": f"10.0.0.{i}", "Alive": self.world.now_s < self.lost.get(i, math.inf),
             "Resources": {"CPU": 8.0, "GPU": 4.0}}
            for i, node_id in enumerate(NODES)
        ]  # fmt: skip

    def get_runtime_context(self) -> SimpleNamespace:
        """Of this program, which runs on the first node."""
        return SimpleNamespace(get_node_id=lambda: NODES[0])

    def lose(self, node: int, known_after_s: float = 0.0) -> None:
        """With all that is on it."""
        self.lost[node] = self.world.now_s + known_after_s
        for actor in self.world.actors:
            if isinstance(actor, RayActor) and actor.node == node:
                actor.end("was lost with its node", len(actor.said))

    def put(self, value: Any) -> Ref:
        """Lay something out."""
        if self.full:
            raise ObjectStoreFullError("full")
        return Ref(lambda: True, lambda: value)

    def wait(
        self, refs: Sequence[Ref], num_returns: int = 1, timeout: float | None = None, fetch_local: bool = True
    ) -> tuple[list[Ref], list[Ref]]:
        """At most ``num_returns`` that are there, and the others."""
        assert refs
        ends_s = None if timeout is None else self.world.now_s + timeout
        self.world.until(lambda: sum(r.ready() for r in refs) >= num_returns, ends_s)
        there = [r for r in refs if r.ready()][:num_returns]
        return there, [r for r in refs if r not in there]

    def get(self, ref: Ref, timeout: float | None = None) -> Any:
        """What it is."""
        from scripted_engine import HERE

        if HERE:  # an actor asks: the world does not go on meanwhile
            if not ref.ready():
                HERE[-1].sleep(timeout or 0.0)
                raise GetTimeoutError("not in time")
            return ref.value()
        ends_s = None if timeout is None else self.world.now_s + timeout
        if not self.world.until(ref.ready, ends_s):
            raise GetTimeoutError("not in time")
        return ref.value()

    def kill(self, handle: Handle, *, no_restart: bool) -> None:
        """At once, whatever it does."""
        handle.actor.kill()


class ActorClass:
    """The class of the actors."""

    def __init__(self, ray: Ray) -> None:
        self.ray, self._node = ray, 0

    def options(self, *, scheduling_strategy: Any, **_: Any) -> ActorClass:
        """Where."""
        self._node = NODES.index(scheduling_strategy.node_id)
        return self

    def remote(self, backend_module: str, *prewarm: Any) -> Handle:
        """Start one."""
        return Handle(RayActor(self.ray.world, self.ray, self._node, backend_module, prewarm or None))  # type: ignore[arg-type]


@contextlib.contextmanager
def ray_pool_in(world: World, **options: Any) -> Iterator[RayPool]:
    """A pool of Ray actors in a world; ``pool.cluster.ray`` is its Ray."""
    ray = Ray(world)

    def close() -> None:
        ray.started = False

    cluster = SimpleNamespace(ray=ray, close=close)
    with (
        mock.patch.object(ray_pool, "RayCluster", return_value=cluster),
        mock.patch.object(real, "remote_class", return_value=ActorClass(ray)),
        mock.patch.object(real, "ray", ray),
        mock.patch.object(ray_handle, "ray", ray),
        RayPool(clock=world.clock, **options) as pool,
    ):
        watch(pool, world)
        yield pool
