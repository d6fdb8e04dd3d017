"""Driver-side handle of one Ray actor: creates it on a node, sends orders, collects reports, kills it.

Its GPUs count as allocated from when Ray is asked for the actor until Ray reports that it is dead.
"""

from __future__ import annotations

import contextlib
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    RayError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlhfless.errors import reason
from rlhfless.executor.distributed.messages import ActorLost, ActorReport, NoRoom, Prewarm, StartStep, StartWork
from rlhfless.executor.distributed.ray.actor import RayActorReady, VersionedOrder
from rlhfless.executor.distributed.ray.clock_sync import SAME, Offset, boot_id, offset_of
from rlhfless.executor.distributed.ray.placement import RayNode
from rlhfless.executor.distributed.transport import ActorPlacement
from rlhfless.executor.distributed.wall_clock import MACHINE, Clock
from rlhfless.system.child import Failed

END_S = 15.0  # that Ray may take to report that an actor is dead
CLOCK_S = 5.0  # that an actor may take to answer with its clock's time
HEARD_S = 30.0  # that a message may take from an actor's node to here
FULL = ObjectStoreFullError, OutOfDiskError


class RayActorHandle:
    """A Ray actor with the GPUs of ``place`` on ``node``, which imports ``backend_module``.

    Args:
        prewarm: what it starts before it is up, with its engines as a block and the Ray object of that; None: nothing.
        machine: this machine's clock.

    Attributes:
        listening: the Ray object that becomes ready when the actor has sent messages, or is lost.
        requested_s, up_s: when Ray was asked for it, and when it was up (None before), on this machine's monotonic clock.
        up: its ready message. clock: its clock's offset, estimated anew for every step.
        lost: why it is dead, as far as known. node_lost: with its node. out_of_memory: Ray's memory monitor killed it.
    """

    def __init__(
        self,
        actor_class: Any,
        backend_module: str,
        place: ActorPlacement,
        node: RayNode,
        cpus: float,
        prewarm: Prewarm | None = None,
        machine: Clock = MACHINE,
    ) -> None:
        self.place, self.node, self._machine = place, node, machine
        self.requested_s = machine.now_s()
        args = []
        if prewarm is not None:
            block, stored = prewarm.engines
            args = [pickle.dumps(replace(prewarm, engines=block), pickle.HIGHEST_PROTOCOL), stored]
        affinity = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
        options = actor_class.options(num_cpus=cpus, num_gpus=len(place.gpu_ids), scheduling_strategy=affinity)
        self._handle = options.remote(backend_module, *args)
        self.listening = self._handle.listen.remote()
        self.up: RayActorReady | None = None
        self.up_s: float | None = None
        self.clock: Offset = SAME
        self.lost: str | None = None
        self.node_lost = self.out_of_memory = False
        self._unavailable: ActorUnavailableError | None = None
        self._early: list[tuple[VersionedOrder, Mapping[str, Any]]] = []  # orders before it was up
        self._sent = 0
        self._exports: list[Any] = []  # asked for, and perhaps not laid out yet

    @property
    def location(self) -> str:
        """Return where the actor runs, as part of a sentence."""
        process = "" if self.up is None else f"process {self.up.pid} on {self.up.device}, "
        return f"{process}node {self.node.address}"

    def send(self, order: VersionedOrder, objects: Mapping[str, Any]) -> None:
        """Send an order with the Ray objects of its blocks, by name. If the actor is dead, the call does nothing: ``hear``
        reports it.

        Raises:
            NoRoom: the order is too large for the free space of Ray's object store.
        """
        if self.up is None:
            self._early.append((order, objects))
            return
        if isinstance(order.order, StartStep | StartWork):
            self._sync_clock()
            order = replace(order, order=replace(order.order, origin_s=order.order.origin_s + self.clock.offset_s))
        laid_out = pickle.dumps(order, pickle.HIGHEST_PROTOCOL)
        try:
            self._handle.send.remote(self._sent, laid_out, dict(objects))
        except FULL as error:
            raise no_room(len(laid_out), error) from None
        self._sent += 1

    def export(self, name: str) -> Any:
        """Return the Ray object of the block that the actor stored under this name. It belongs to this process and stays on its
        node until read.
        """
        self._release_exports()
        self._exports.append(self._handle.export.remote(name))
        return self._exports[-1]

    def step_over(self) -> None:
        """Drop the actor's exported objects, which no other actor reads after the step."""
        self._exports = []

    def hear(self) -> list[Any]:
        """Return the actor's messages, once ``listening`` is ready; none while Ray does not know whether the actor lives.

        Raises:
            RayError: it is dead, or cannot be reached.
        """
        try:
            heard = ray.get(self.listening, timeout=HEARD_S)
            if self._unavailable is not None:
                self.kill(at_once=True)  # it lives, but messages sent meanwhile may be lost
                raise self._unavailable
        except RayError as error:
            if isinstance(error, ActorUnavailableError) and self._unavailable is not error and self._node_lives:
                self._unavailable = error
                self.listening = self._handle.clock_s.remote()  # ready once Ray knows whether it lives
                return []
            self.lost = self._reason(error)
            raise
        messages = [pickle.loads(message) for message in heard]
        self._release_exports()
        self.listening = self._handle.listen.remote()
        if messages and isinstance(messages[0], RayActorReady):
            self._rise(messages.pop(0))
        return messages

    def messages(self) -> list[ActorReport | ActorLost]:
        """Return its messages since the last call, once ``listening`` is ready; the last one is why it is lost."""
        try:
            heard = self.hear()
        except RayError:
            return [ActorLost(f"({self.location}) {self.lost}", self.out_of_memory, gpus_gone=self.node_lost)]
        return [ActorLost.failed(self.location, m) if isinstance(m, Failed) else m for m in heard]

    def check_alive(self) -> bool:
        """Note whether an actor without work is up by now; returns whether it certainly lives."""
        with contextlib.suppress(RayError):
            while self.lost is None and ray.wait([self.listening], timeout=0)[0]:
                for message in self.hear():
                    assert isinstance(message, Failed), "an actor without work sends nothing else"
                    self.lost = message.error
        return self.lost is None and self._unavailable is None

    def kill(self, *, at_once: bool = False) -> None:
        """Kill the actor. Its exported objects stay, unless ``at_once``; ``listening`` ends when Ray knows that the actor is
        dead.
        """
        if self._exports and not at_once:
            ray.wait(self._exports, num_returns=len(self._exports), timeout=END_S, fetch_local=False)
            self._exports = []
        ray.kill(self._handle, no_restart=True)

    def wait_for_end(self) -> None:
        """After ``kill``: wait until Ray has its GPUs back, with a time limit."""
        ends_s = self._machine.now_s() + END_S
        with contextlib.suppress(RayError):
            while self._machine.now_s() < ends_s and ray.wait([self.listening], timeout=END_S)[0]:
                with contextlib.suppress(ActorUnavailableError):  # Ray has not found out yet
                    ray.get(self.listening, timeout=END_S)
                self.listening = self._handle.listen.remote()

    def _release_exports(self) -> None:
        """Drop references to exported objects that no longer need the actor's process; their readers hold references of their
        own.
        """
        if self._exports:
            _, self._exports = ray.wait(self._exports, num_returns=len(self._exports), timeout=0, fetch_local=False)

    def _rise(self, up: RayActorReady) -> None:
        self.up, now_s = up, self._machine.now_s()
        if not self._same_clock:  # its ready message left between then and now
            self.clock = Offset(up.up_s - (self.requested_s + now_s) / 2, (now_s - self.requested_s) / 2)
        self._sync_clock()
        self.up_s = max(self.requested_s, up.up_s - self.clock.offset_s)
        early, self._early = self._early, []
        for order, objects in early:
            self.send(order, objects)

    @property
    def _same_clock(self) -> bool:
        assert self.up is not None
        return self.up.boot_id is not None and self.up.boot_id == boot_id()

    def _sync_clock(self) -> None:
        """Estimate the clock offset; keep the last estimate where the actor does not answer, because it hangs or is dead."""
        if not self._same_clock:
            with contextlib.suppress(RayError):  # the timeout's too
                read_clock_s = lambda: ray.get(self._handle.clock_s.remote(), timeout=CLOCK_S)  # noqa: E731
                self.clock = offset_of(read_clock_s, self._machine.now_s)

    @property
    def _node_lives(self) -> bool:
        """Return whether the node lives, as far as Ray knows."""
        return any(node["NodeID"] == self.node.node_id for node in ray.nodes() if node["Alive"])

    def _reason(self, error: RayError) -> str:
        """Return why the actor is dead, as part of a sentence."""
        if not self._node_lives:
            self.node_lost = True
            return f"was lost with its node {self.node.address}"
        if isinstance(error, GetTimeoutError):
            return f"cannot be reached: its reports did not arrive within {HEARD_S:g} s"
        self.out_of_memory = isinstance(error, OutOfMemoryError)
        lines = [line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()]
        cause = next((line for line in lines if re.search(r"dead because|Worker|exit|killed", line)), reason(error))
        if "all references to the actor were removed" in cause:
            cause += " (this program has one; Ray says so, too, if only one of cluster and program has RAY_AUTH_MODE=token)"
        return f"died: {cause}"


def no_room(nbytes: int, error: Exception) -> NoRoom:
    """Return the error for ``nbytes`` that cannot be stored because of ``error``, one of ``FULL``."""
    return NoRoom(
        f"Ray's object store has no room for {nbytes:,} bytes ({reason(error)}); give it more "
        "(`ray start --object-store-memory`)"
    )


def end_all(members: Sequence[RayActorHandle]) -> None:
    """Kill actors, all at once, and wait until Ray has their GPUs back."""
    for member in members:
        member.kill(at_once=True)
    for member in members:
        member.wait_for_end()
