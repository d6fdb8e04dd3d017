"""Placement of an actor on GPUs, and the interface by which a pool starts and ends actors, independent of the transport."""

from __future__ import annotations

from typing import Protocol, TypeVar

from rlhfless.executor.step.record import HeldGpus
from solver.model.plan import ActorPlan


class ActorPlacement(HeldGpus):
    """GPUs of an actor, and how they are paid for."""

    __slots__ = ()

    @classmethod
    def of(cls, actor: ActorPlan) -> ActorPlacement:
        """Return the placement that a plan gives to an actor."""
        return cls(actor.kind, actor.node, actor.gpu_ids, actor.market, actor.usd_per_gpu_s)

    def alike(self, other: ActorPlacement) -> bool:
        """Return whether both have the same number of GPUs of one kind on one node."""
        return (self.kind, self.node, len(self.gpu_ids)) == (other.kind, other.node, len(other.gpu_ids))


ActorHandle = TypeVar("ActorHandle")


class ActorLauncher(Protocol[ActorHandle]):
    """Starts and ends actors. Its methods are called by any thread, with the pool's lock acquired."""

    def now_s(self) -> float:
        """Return the seconds since the run's start."""
        ...

    def start(self, place: ActorPlacement, prewarm: bool = False) -> ActorHandle:
        """Start an actor; returns at once. With ``prewarm`` it prepares everything but the weights, before its step begins."""
        ...

    def serves(self, here: ActorPlacement, wanted: ActorPlacement) -> bool:
        """Return whether an actor started at ``here`` can be used for ``wanted``."""
        ...

    def up_s(self, actor: ActorHandle) -> float | None:
        """Return when the actor was ready for its weights; None while it starts."""
        ...

    def alive(self, actor: ActorHandle) -> bool:
        """Return False where it is known that the actor ended by itself."""
        ...

    def end(self, actor: ActorHandle) -> None:
        """End an actor without work; its GPUs are free when this returns."""
        ...
