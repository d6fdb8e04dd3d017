"""A crew without processes: actors that obey and decode one event at a time, in an order drawn at random, and die at random."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlhfless.engine.protocol import Completion, Request
from rlhfless.executor.distributed.messages import ActorLost, ActorReport, Add, Order, RemoteActor, StartActor, TakeOff


class ScriptedActor:
    """Counts tokens; reports in a queue of its own, as a pipe would carry them."""

    def __init__(self, order: StartActor, crew: ScriptedCrew) -> None:
        self.slots, self.crew = order.admission.max_batch, crew
        self.orders: deque[Order] = deque()
        ready = ActorReport(crew.now_s(), ready_s=(crew.now_s(), crew.now_s()), weights_version=order.weights_version)
        self.wire: deque[ActorReport | ActorLost] = deque([ready])
        self.responses: list[Request] = []
        self.closed = self.dead = self.hangs = False

    cpu_s = None

    def send(self, order: Order) -> None:
        self.orders.append(order)

    def obey(self) -> None:
        order = self.orders.popleft()
        assert not self.closed, "an order after close"
        if isinstance(order, Add):
            here = {r.response for r in self.responses}
            assert not here.intersection(r.response for r in order.requests), "a response is with the actor twice"
            self.responses += order.requests
            self.report()
        elif isinstance(order, TakeOff):
            assert set(order.kv_names) <= set(order.responses)
            taken = [r for r in self.responses if r.response in order.responses]
            self.responses = [r for r in self.responses if r.response not in order.responses]
            self.report(taken=taken)
        else:
            assert not self.responses, "closed with responses"
            self.closed = True
            self.wire.append(ActorReport(self.crew.now_s(), closed=True))

    def iterate(self) -> None:
        for i, r in enumerate(self.responses[: self.slots]):
            self.responses[i] = replace(r, generated_tokens=r.generated_tokens + 1)
        done = [r for r in self.responses if r.generated_tokens == r.target_tokens]
        self.responses = [r for r in self.responses if r.generated_tokens < r.target_tokens]
        now_s = self.crew.now_s()
        completions = [Completion(r.response, now_s, r.generated_tokens, "stop", now_s, now_s, 0) for r in done]
        if completions or self.crew.rng.random() < 0.3:
            self.report(completions=completions)

    def report(self, **what: object) -> None:
        ids = [r.response for r in self.responses]
        tokens = ids, [r.generated_tokens for r in self.responses]
        batch, queue = tuple(ids[: self.slots]), tuple(ids[self.slots :])
        self.wire.append(ActorReport(self.crew.now_s(), batch, queue, tokens, **what))  # type: ignore[arg-type]


class ScriptedCrew:
    """Between two looks of the loop anything may happen: orders and reports are on their way for as long as they like.
    Nobody waits for more work.

    Args:
        dies: chance, at every event of an actor, that it dies instead; hangs: that it stops, to go on once it was given up, as
            if nobody could end it. Of at most ``faults`` actors.
    """

    def __init__(self, seed: int, obeys: float = 0.5, dies: float = 0.0, hangs: float = 0.0, faults: int = 0) -> None:
        self.rng, self.obeys, self.dies, self.hangs, self.faults = np.random.default_rng(seed), obeys, dies, hangs, faults
        self.actors: dict[int, ScriptedActor] = {}
        self.abandoned: set[int] = set()
        self.clock = 0

    warm: frozenset[tuple[int, ...]] = frozenset()

    def now_s(self) -> float:
        self.clock += 1
        return self.clock * 1e-3

    def new_name(self) -> str:
        return "kv"

    def start(self, orders: Sequence[StartActor]) -> list[RemoteActor]:
        assert not self.actors.keys() & {order.index for order in orders}, "an index is used twice"
        started = {order.index: ScriptedActor(order, self) for order in orders}
        self.actors.update(started)
        return list(started.values())

    def abandon(self, index: int) -> None:
        self.abandoned.add(index)
        self.actors[index].hangs = False

    def happens(self, actor: ScriptedActor) -> None:
        """One event."""
        if self.faults and self.rng.random() < self.dies + self.hangs:
            self.faults -= 1
            if self.rng.random() < self.dies / (self.dies + self.hangs):
                actor.dead = True
                for _ in range(self.rng.integers(0, len(actor.wire) + 1)):  # what it said last never arrives
                    actor.wire.pop()
                actor.wire.append(ActorLost("died"))
            else:
                actor.hangs = True
        elif actor.orders and (not actor.responses or self.rng.random() < self.obeys):
            actor.obey()
        elif actor.responses:
            actor.iterate()

    def reports(self, timeout_s: float | None) -> list[tuple[int, ActorReport | ActorLost]]:
        found: list[tuple[int, ActorReport | ActorLost]] = []
        while not found:
            able = [a for a in self.actors.values() if (a.orders or a.responses or a.wire) and not a.dead and not a.hangs]
            if not able and timeout_s is not None and any(a.hangs or a.wire for a in self.actors.values()):
                self.clock += 50
            else:
                assert able or any(a.wire for a in self.actors.values()), (
                    "the loop waits although nothing will be said any more"
                )
            for _ in range(self.rng.integers(1, 12) if able else 0):
                actor = able[self.rng.integers(len(able))]
                if not actor.dead and not actor.hangs:
                    self.happens(actor)
            if timeout_s is not None and self.rng.random() < 0.2:
                return found
            for index in self.rng.permutation(list(self.actors)):
                wire = self.actors[index].wire
                found += [(int(index), wire.popleft()) for _ in range(self.rng.integers(0, len(wire) + 1))]
        return found
