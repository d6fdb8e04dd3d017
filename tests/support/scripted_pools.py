"""The pools of a scripted world: processes of this machine, and Ray actors on a cluster of two nodes.

``LocalPool`` is ``ProcessPool`` without processes. ``scripted_ray`` gives a ``RayPool`` whose Ray is ``Ray``: objects, handles
and nodes that behave as Ray's do, on the world's clock.
"""

from __future__ import annotations

import math
import queue
from typing import Any

from scripted_world import Actor, Copying, Inbox, World

from rlhfless.executor import ProcessPool
from rlhfless.executor.distributed.local.pool import Process
from rlhfless.executor.distributed.messages import Prewarm
from rlhfless.executor.distributed.transport import ActorPlacement
from rlhfless.executor.distributed.worker import worker
from rlhfless.system.child import Ready


class LocalWorker(Copying, worker.Worker):
    """A worker of this machine."""


class LocalProcess(Actor):
    """See ``spawn.Process``, whose interface this is."""

    def __init__(self, world: World, device: str, backend_module: str, prewarm: Prewarm | None) -> None:
        def make(actor: Actor) -> worker.Worker:
            return LocalWorker(actor, Inbox(), device, backend_module, actor.clock)  # type: ignore[arg-type]

        super().__init__(world, make, None if prewarm is None else (prewarm.engines, prewarm.latency))
        self.device, self._up_s = device, None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.state != "dead"

    @property
    def up_s(self) -> float | None:
        """When it could take orders, once that was heard."""
        while self.heard and isinstance(self.said[0][1], Ready):
            self._up_s = self.said.popleft()[1].value
        return self._up_s


def watch(pool: Any, world: World) -> None:
    """The world does what a pool's thread does, whenever nobody has its lock."""
    pool.watched = False

    def act() -> float:
        if pool.lock._is_owned() or math.isnan(pool._origin_s):
            return math.inf
        with pool.lock:
            return float(pool.act() + pool._origin_s) + 1e-9  # not a rounding too early

    world.acts.append(act)


class LocalPool(ProcessPool):
    """``ProcessPool`` in a world."""

    def __init__(self, world: World, gpus: int = 4, **options: Any) -> None:
        super().__init__(["cpu"] * gpus, clock=world.clock, **options)
        self.world = world
        self.inbox = _Heard(world)  # type: ignore[assignment]
        watch(self, world)

    def spawn(self, place: ActorPlacement, prewarm: Prewarm | None = None) -> Process:
        """See ``Transport``."""
        process = _Handle(LocalProcess(self.world, self.device_of(place.gpu_ids), self.side_name, prewarm))
        self._all.append(process)  # type: ignore[arg-type]
        return process  # type: ignore[return-value]

    @property
    def waiting(self) -> list[Actor]:
        """Actors that live without work."""
        return [handle.actor for handle in self.idle.values()]  # type: ignore[attr-defined]

    @property
    def memory(self) -> list[str]:
        """Shared memory that the pool may have left."""
        return list(self._blocks)


class _Handle:
    """What a pool holds of a process."""

    def __init__(self, actor: LocalProcess) -> None:
        self.actor = actor
        actor.handle = self  # type: ignore[attr-defined]
        self.pid, self.device = actor.pid, actor.device
        self.send, self.kill = actor.order, actor.kill

    @property
    def alive(self) -> bool:
        return self.actor.alive

    @property
    def up_s(self) -> float | None:
        return self.actor.up_s

    cpu_s = None

    def how_it_ended(self) -> str:
        return self.actor.why

    def join(self) -> None:
        assert self.actor.state == "dead" or not self.actor.ends_when_killed, "nobody waits for one that was not killed"


class _Heard:
    """The pool's inbox."""

    def __init__(self, world: World) -> None:
        self.world = world

    def _speaking(self) -> list[LocalProcess]:
        return [one for one in self.world.actors if isinstance(one, LocalProcess) and (one.up_s, one.heard)[1]]

    def get(self, timeout: float | None = None) -> tuple[_Handle, Any]:
        ends_s = None if timeout is None else self.world.now_s + timeout
        if not self.world.until(lambda: bool(self._speaking()), ends_s):
            raise queue.Empty
        return self.get_nowait()

    def get_nowait(self) -> tuple[_Handle, Any]:
        if not (speaking := self._speaking()):
            raise queue.Empty
        actor = speaking[self.world.dice.below(len(speaking))]
        return actor.handle, actor.take()  # type: ignore[attr-defined]
