"""The actors of one step on a pool's transport: starts them, sends them orders, collects their reports."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np

from rlhfless.executor.distributed.messages import (
    ActorLost,
    ActorReport,
    Block,
    NoRoom,
    Order,
    StartActor,
    Started,
    StartServer,
    StartStep,
    StartWork,
)
from rlhfless.executor.distributed.transport import ActorHandle, ActorPlacement, Transport
from rlhfless.executor.step.record import StepRecord


class StepActors(Generic[ActorHandle]):
    """The actors of one step, and the clock that they share.

    Args:
        engines: a factory with the step's weights. origin_s: the run's start on this machine's monotonic clock.

    Attributes:
        used: all actors that the step ever had.
        weights: the block of its engine factory; None before an actor was started.
    """

    def __init__(self, transport: Transport[ActorHandle], engines: Any, record: StepRecord, origin_s: float) -> None:
        self._transport, self._engines, self._record, self._origin_s = transport, engines, record, origin_s
        self.used: list[ActorHandle] = []
        self.weights: Block | None = None
        self._members: dict[ActorHandle, Started] = {}
        self._closed: dict[ActorHandle, ActorReport] = {}  # killed: what to report once it is gone
        self.now_s, self.new_name = transport.now_s, transport.new_name

    @property
    def working(self) -> list[int]:
        """Return the process ids of its actors, as far as they are known. Any thread may ask."""
        pids = [self._transport.pid(actor) for actor in list(self._members) if actor not in self._closed]
        return [pid for pid in pids if pid is not None]

    @property
    def warm(self) -> set[tuple[int, ...]]:
        """Return the GPUs of actors without work: another actor there starts at once."""
        return {place.gpu_ids for place in self._transport.idle}

    def start(self, orders: Sequence[StartActor]) -> list[SentActor[ActorHandle]]:
        """Start actors, all at once; called again for those that start later, each with an index that was never used. The
        weights are stored meanwhile, once for the whole step.
        """
        actors = [self._join(order) for order in orders]
        if self.weights is None:
            self.weights = self._transport.put(self.new_name(), self._transport.remote_form(self._engines))
        for actor, order in zip(actors, orders, strict=True):
            actor.send(StartStep(self._origin_s, self.weights, order.latency, order.admission, order.weights_version))
        return actors

    def start_server(self, order: StartServer) -> SentActor[ActorHandle]:
        """Start a server of work; its first report says when it was ready."""
        actor = self._join(order)
        actor.send(StartWork(self._origin_s, order.weights_version))
        return actor

    def _join(self, order: Started) -> SentActor[ActorHandle]:
        actor = self._transport.get(ActorPlacement.of(order.plan))
        self.used.append(actor)
        self._members[actor] = order
        return SentActor(self._transport, actor, order.weights_version)

    def prefill(
        self, prefixes: Mapping[int, np.ndarray], receivers: Mapping[int, Sequence[int]]
    ) -> tuple[Mapping[int, Block], float]:
        """Compute the KV state of prefixes in this process, on the learner's GPU. Like ``ComputePrefixes``, but blocking.

        Returns:
            By receiver, the block for ``Add`` there, and when it was computed.
        """
        computed = self._engines.compute_prefixes(prefixes)
        done_s, sent = self.now_s(), {}
        for actor, prompts in receivers.items():
            with contextlib.suppress(NoRoom):  # it computes them itself
                sent[actor] = self._transport.put(self.new_name(), {p: computed[p] for p in prompts})
        return sent, done_s

    def reports(self, timeout_s: float | None) -> list[tuple[int, ActorReport | ActorLost]]:
        """Return reports with the index of their actor, in order; see ``Transport.listen``."""
        self._transport.release_unneeded()
        reports: list[tuple[int, ActorReport | ActorLost]] = []
        for actor, message in self._transport.listen(self._members.keys(), timeout_s):
            if actor not in self._members:  # it was killed
                continue
            order = self._members[actor]
            if isinstance(message, ActorLost):
                if actor in self._closed:
                    del self._members[actor]
                    message = replace(self._closed.pop(actor), time_s=self.now_s())
            elif message.ready_s is not None:
                if (event := self._transport.ready_event(actor)) is not None:
                    self._record.event(self.now_s(), "ready", order.holder, weights_version=message.weights_version, **event)
            elif message.closed:
                if order.short_of_memory or not self._transport.keep(order, actor, message.time_s):
                    self._closed[actor] = message
                    self._transport.kill(actor)
                    continue
                del self._members[actor]
            reports.append((order.index, message))
        return reports

    def abandon(self, index: int) -> None:
        """End an actor that was declared lost, as far as possible from here, without waiting for it."""
        for actor in [actor for actor, order in self._members.items() if order.index == index]:
            del self._members[actor]
            self._closed.pop(actor, None)
            self._transport.kill(actor, at_once=True)

    def remove_dead(self) -> None:
        """Wait until abandoned actors have ended, once the step is over."""
        living = {*self._members, *self._transport.idle.values()}
        self._transport.end_all([actor for actor in self.used if actor not in living])


@dataclass(frozen=True)
class SentActor(Generic[ActorHandle]):
    """One actor of a step; see ``RemoteActor``."""

    transport: Transport[ActorHandle]
    actor: ActorHandle
    version: int

    @property
    def cpu_s(self) -> float | None:
        """See ``RemoteActor``."""
        return self.transport.cpu_s(self.actor)

    def send(self, order: Order) -> None:
        """See ``RemoteActor``."""
        self.transport.send(self.actor, order, self.version)
