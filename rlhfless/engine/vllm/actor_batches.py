"""Lets one replica hold the batches of several emulated actors: vLLM's scheduler sees those of one actor at a time.

A response that is not scheduled stays as it is: vLLM keeps its KV blocks and its random stream. So an iteration is a pass over
the batch of one actor alone. What belongs to an actor are three queues of the scheduler. Blocks are allocated from one pool.
"""

from __future__ import annotations

from typing import Any

QUEUES = ("running", "waiting", "kv_holding_waiting")  # of vLLM's scheduler


class ActorBatches:
    """The queues of each actor in vLLM's scheduler; those of actor 0 are there at the beginning."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler, self._actor = scheduler, 0
        self._kept: dict[int, list[Any]] = {}

    @property
    def others_wait(self) -> bool:
        """Return whether an actor that is not selected has responses."""
        return any(len(queue) for queues in self._kept.values() for queue in queues)

    def select(self, actor: int) -> None:
        """Let the scheduler see the responses of this actor only."""
        if actor == self._actor:
            return
        scheduler = self._scheduler
        self._kept[self._actor] = [getattr(scheduler, name) for name in QUEUES]
        queues = self._kept.pop(actor, None) or [type(queue)() for queue in self._kept[self._actor]]
        for name, queue in zip(QUEUES, queues, strict=True):
            setattr(scheduler, name, queue)
        self._actor = actor
        self._kept = {other: kept for other, kept in self._kept.items() if any(len(queue) for queue in kept)}
