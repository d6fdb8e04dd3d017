"""Where an actor is, and what a pool does to actors between steps, whatever carries them.

Knows places and the interface; nothing of processes, of Ray, or of when an actor is started or ended (``warm_pool.py``).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeVar

from solver.model.plan import ActorPlan


class ActorPlacement(NamedTuple):
    """GPUs that an actor holds, and how they are paid for."""

    kind: str
    node: int
    gpu_ids: tuple[int, ...]
    market: str = "on-demand"
    usd_per_gpu_s: float = 0.0

    @classmethod
    def of(cls, actor: ActorPlan) -> ActorPlacement:
        """Where a plan wants an actor."""
        return cls(actor.kind, actor.node, actor.gpu_ids, actor.market, actor.usd_per_gpu_s)

    def alike(self, other: ActorPlacement) -> bool:
        """Whether these are as many GPUs of one kind on one node."""
        return (self.kind, self.node, len(self.gpu_ids)) == (other.kind, other.node, len(other.gpu_ids))


ActorHandle = TypeVar("ActorHandle")


class ActorLauncher(Protocol[ActorHandle]):
    """Starts and ends actors. Called with the pool's lock held, by whichever thread."""

    def now_s(self) -> float:
        """Seconds since the run's start."""
        ...

    def start(self, place: ActorPlacement, ahead: bool = False) -> ActorHandle:
        """Start an actor; returns at once. One that starts ahead of its step is up when it needs that step's weights only."""
        ...

    def serves(self, here: ActorPlacement, wanted: ActorPlacement) -> bool:
        """Whether an actor that is here can be one there."""
        ...

    def up_s(self, actor: ActorHandle) -> float | None:
        """When the actor was ready for its weights; None while it starts."""
        ...

    def alive(self, actor: ActorHandle) -> bool:
        """False where it is known that it ended by itself."""
        ...

    def end(self, actor: ActorHandle) -> None:
        """End an actor without work; its GPUs are free when this returns."""
        ...
