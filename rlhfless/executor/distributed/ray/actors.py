"""``StepActors`` of one step as Ray actors: sends orders, collects reports and passes Ray objects between actors.

A KV state that an actor hands over is a Ray object of this process that stays on the sender's node. The receiver fetches it
from there.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from rlhfless.engine.protocol import Completion, Request
from rlhfless.executor.distributed.messages import (
    ActorLost,
    ActorReport,
    NoRoom,
    RemoteActor,
    StartActor,
    Started,
    StartServer,
)
from rlhfless.executor.distributed.ray.actor import VersionedOrder
from rlhfless.executor.distributed.ray.handle import RayActorHandle, end_all
from rlhfless.executor.distributed.wall_clock import MACHINE, Clock
from rlhfless.executor.distributed.worker import work, worker
from rlhfless.executor.step.record import StepRecord
from rlhfless.system.child import Failed
from solver.model.plan import ActorPlan


class RayStepActors:
    """The actors of one step as Ray actors (see ``StepActors``).

    Args:
        take: returns the actor for an order, a waiting or a new one. keeps: whether an actor without work stays alive.
        put: stores something, as a block with this name and its Ray object.
        engines: a factory with the step's weights.
        record: for events. origin_s: the run's start on ``clock``.
        within_s: how long an actor waits for objects of another actor before it computes them itself.
        clock: the run's clock.

    Attributes:
        used: all actors that it ever had. members: those that it still has. finished: see ``PoolStepActors``.
    """

    def __init__(
        self,
        take: Callable[[Started], RayActorHandle],
        keeps: Callable[[ActorPlan], bool],
        put: Callable[[str, Any], tuple[worker.Block, Any]],
        engines: Any,
        record: StepRecord,
        origin_s: float,
        within_s: float,
        clock: Clock = MACHINE,
    ) -> None:
        self._take, self._keeps, self._put, self._engines = take, keeps, put, engines
        self._record, self._origin_s, self._within_s, self._clock = record, origin_s, within_s, clock
        self.used: list[RayActorHandle] = []
        self.members: dict[RayActorHandle, Started] = {}
        self.finished: list[tuple[Started, RayActorHandle, float]] = []
        self._weights: tuple[worker.Block, Any] | None = None
        self._ended: dict[RayActorHandle, ActorReport] = {}  # killed: what to report once Ray knows that it is dead
        self._objects: dict[str, Any] = {}  # laid out and not passed on yet
        self._names = (f"kv-{i}" for i in itertools.count())

    @property
    def engines_to_prewarm(self) -> tuple[worker.Block, Any]:
        """See ``PoolStepActors``: includes the weights, which stay in the object store while this is referred to."""
        assert self._weights is not None, "nobody was started"
        return self._weights

    @property
    def working(self) -> list[int]:
        """Return the process ids of the actors that are up; see ``PoolStepActors``."""
        return [member.up.pid for member in list(self.members) if member.up is not None and member not in self._ended]

    @property
    def warm(self) -> set[tuple[int, ...]]:
        """See ``StepActors``."""
        return {order.plan.gpu_ids for order, _, _ in self.finished}

    def now_s(self) -> float:
        """See ``StepActors``."""
        return self._clock.now_s() - self._origin_s

    def start(self, orders: Sequence[StartActor]) -> list[RemoteActor]:
        """Start all actors; the weights are written to the object store meanwhile, once for the whole step."""
        members = []
        for order in orders:
            members.append(self._take(order))
            self.used.append(members[-1])
        self.members.update(zip(members, orders, strict=True))
        if self._weights is None:
            self._weights = self._put("weights", self._engines.to_remote())
        block, weights = self._weights
        for member, order in zip(members, orders, strict=True):
            version = order.weights_version
            begin = worker.StartStep(self._origin_s, block, order.latency, order.admission, version)
            member.send(VersionedOrder(version, begin), {block.name: weights})
        return [_RayRemote(member, order.weights_version, self) for member, order in zip(members, orders, strict=True)]

    def start_server(self, order: StartServer) -> RemoteActor:
        """See ``StepActors``."""
        member = self._take(order)
        self.used.append(member)
        self.members[member] = order
        remote = _RayRemote(member, order.weights_version, self)
        remote._send(work.StartWork(self._origin_s, order.weights_version))
        return remote

    def prefill(
        self, prefixes: Mapping[int, np.ndarray], receivers: Mapping[int, Sequence[int]]
    ) -> tuple[Mapping[int, Any], float]:
        """See ``StepActors``."""
        computed = self._engines.compute_prefixes(prefixes)
        done_s, sent = self.now_s(), {}
        for actor, prompts in receivers.items():
            with contextlib.suppress(NoRoom):  # it computes them itself
                block, stored = self._put(next(self._names), {p: computed[p] for p in prompts})
                sent[actor], self._objects[block.name] = block, stored
        return sent, done_s

    def reports(self, timeout_s: float | None) -> list[tuple[int, ActorReport | ActorLost]]:
        """See ``StepActors``."""
        listening = {member.listening: member for member in self.members}
        if not listening:  # the next one starts later
            assert timeout_s is not None, "nobody is there, and nobody will be"
            self._clock.sleep(timeout_s)
            return []
        if not ray.wait(list(listening), timeout=timeout_s)[0]:
            return []
        ready, _ = ray.wait(list(listening), num_returns=len(listening), timeout=0)
        reports: list[tuple[int, ActorReport | ActorLost]] = []
        for ref in ready:
            index = self.members[listening[ref]].index
            reports += [(index, report) for report in self._heard(listening[ref])]
        return reports

    def abandon(self, index: int) -> None:
        """See ``StepActors``. Ray kills it."""
        for member in [m for m, order in self.members.items() if order.index == index]:
            del self.members[member]
            self._ended.pop(member, None)
            member.kill(at_once=True)

    def remove_dead(self) -> None:
        """After the step, drop exported objects, and wait until Ray has the GPUs of lost actors back."""
        living = {member for _, member, _ in self.finished}
        for member in living:
            member.step_over()
        end_all([member for member in self.used if member not in living and member not in self.members])

    def _heard(self, member: RayActorHandle) -> list[ActorReport | ActorLost]:
        try:
            messages = member.hear()
        except RayError:
            if member in self._ended:
                del self.members[member]
                return [replace(self._ended.pop(member), time_s=self.now_s())]
            return [ActorLost(f"({member.location}) {member.lost}", member.out_of_memory, gpus_gone=member.node_lost)]
        reports: list[ActorReport | ActorLost] = []
        for what in messages:
            if isinstance(what, Failed):
                reason = f"({member.location}) failed with {what.error}"
                reports.append(ActorLost(reason, what.out_of_memory, what.unrecoverable, trace=what.trace))
                continue
            assert isinstance(what, ActorReport)
            self._note(member, what)
            if not what.closed:
                reports.append(what)
            elif not self.members[member].short_of_memory and self._keeps(self.members[member].plan):
                self.finished.append((self.members.pop(member), member, what.time_s))
                reports.append(what)
            else:
                self._ended[member] = what
                member.kill()
        return reports

    def _note(self, member: RayActorHandle, report: ActorReport) -> None:
        """Note the actor's node when it is ready, and the blocks that it stored for other actors."""
        if report.ready_s is not None and member.up is not None:
            self._record.event(
                self.now_s(), "ready", self.members[member].holder, weights_version=report.weights_version,
                address=member.node.address, ray_node=member.up.node_id, pid=member.up.pid, device=member.up.device,
                clock_error_s=member.clock.error_s,
            )  # fmt: skip
        for block in (*blocks(report.taken or ()), *(report.prefixes or {}).values()):
            self._objects[block.name] = member.export(block.name)


class _RayRemote:
    """One actor of a step as a Ray actor (see ``RemoteActor``)."""

    def __init__(self, member: RayActorHandle, version: int, step_actors: RayStepActors) -> None:
        self._member, self._version, self._step_actors = member, version, step_actors

    cpu_s = None  # its machine would have to be asked

    def _send(self, order: Any, objects: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._member.send(VersionedOrder(self._version, order, self._step_actors._within_s), objects)

    def _send_with(self, order: Any, received: Sequence[worker.Block]) -> None:
        self._send(order, {block.name: self._step_actors._objects.pop(block.name) for block in received})

    def add(self, requests: Sequence[Request], prefixes: Any = None) -> None:
        received = [*blocks(requests), *([] if prefixes is None else [prefixes])]
        self._send_with(worker.Add(requests, prefixes), received)

    def take_off(self, responses: Sequence[int], with_kv: Collection[int]) -> None:
        names = {r: next(self._step_actors._names) for r in sorted(with_kv)}
        self._send(worker.TakeOff(responses, names))

    def prefill(self, prefixes: Mapping[int, np.ndarray], receivers: Mapping[int, Sequence[int]]) -> None:
        names = {actor: next(self._step_actors._names) for actor in receivers}
        self._send(worker.ComputePrefixesOrder(prefixes, receivers, names))

    def run_item(self, index: int, function: Any, completions: Sequence[Completion], results: Sequence[Any]) -> None:
        self._send(work.RunItem.of(index, function, completions, results))

    def close(self) -> None:
        self._send(worker.End())


def blocks(requests: Sequence[Request]) -> list[worker.Block]:
    """Return the blocks of requests' KV states that another actor stored."""
    return [r.kv for r in requests if isinstance(r.kv, worker.Block)]
