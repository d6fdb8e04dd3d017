"""``Transport``: starts actors, carries orders to them and reports from them. Processes of this machine, or Ray."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

from rlhfless.executor.distributed.messages import ActorLost, ActorReport, Block, Order, Prewarm, Started
from rlhfless.executor.step.record import HeldGpus
from solver.model.plan import ActorPlan

ActorHandle = TypeVar("ActorHandle")


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


class Transport(ABC, Generic[ActorHandle]):
    """What a step needs to know of its pool: which actors it gets, and how they are reached.

    An actor is whatever ``spawn`` returns. ``ActorPool`` has the methods of the first part, a pool of one kind the others.
    """

    # --- which actors a step gets -------------------------------------------------------------------------------------

    @abstractmethod
    def now_s(self) -> float:
        """Return the seconds since the run's start; NaN before the first step."""

    @abstractmethod
    def get(self, place: ActorPlacement) -> ActorHandle:
        """Return the actor without work at this place, or a new one; actors without work on the same GPUs end."""

    @abstractmethod
    def keep(self, order: Started, actor: ActorHandle, since_s: float) -> bool:
        """Return whether an actor of the step that has no work left since then stays alive; the pool has it from now on."""

    @abstractmethod
    def release_unneeded(self) -> None:
        """Let actors without work end that the step under way is not going to use any more; it has started what it can."""

    @property
    @abstractmethod
    def idle(self) -> Mapping[ActorPlacement, ActorHandle]:
        """Return the actors without work, by place."""

    # --- how they are reached -----------------------------------------------------------------------------------------

    @abstractmethod
    def spawn(self, place: ActorPlacement, prewarm: Prewarm | None = None) -> ActorHandle:
        """Start an actor; returns at once. ``prewarm``: what it starts before it accepts orders; None: nothing.

        Called by any thread, with the pool's lock acquired, as are ``serves``, ``up_s`` and ``alive``.
        """

    @abstractmethod
    def serves(self, here: ActorPlacement, wanted: ActorPlacement) -> bool:
        """Return whether an actor started at ``here`` can be used for ``wanted``."""

    @abstractmethod
    def up_s(self, actor: ActorHandle) -> float | None:
        """Return when the actor was ready for its weights, in seconds since the run's start; None while it starts."""

    @abstractmethod
    def alive(self, actor: ActorHandle) -> bool:
        """Return False where it is known that the actor ended by itself."""

    @abstractmethod
    def send(self, actor: ActorHandle, order: Order, version: int) -> None:
        """Send an order for this version of the weights. If the actor is dead, the call does nothing: ``listen`` reports it.

        Raises:
            NoRoom: there is no memory for it.
        """

    @abstractmethod
    def listen(
        self, actors: Collection[ActorHandle], timeout_s: float | None
    ) -> list[tuple[ActorHandle, ActorReport | ActorLost]]:
        """Return messages of these actors, in order; waits for one, at most ``timeout_s`` (None: for ever).

        For an actor that died, failed or was killed, ``ActorLost`` follows everything that it reported before.
        """

    @abstractmethod
    def kill(self, actor: ActorHandle, *, at_once: bool = False) -> None:
        """Kill an actor, without waiting for its end. What it stored for others stays, unless ``at_once``."""

    @abstractmethod
    def end_all(self, actors: Sequence[ActorHandle]) -> None:
        """Kill actors, all at once; their GPUs are free when this returns. Actors that have ended already are ignored.

        Called by any thread, but never by two at once for one actor: whoever ends an actor without work has acquired the lock.
        """

    @abstractmethod
    def new_name(self) -> str:
        """Return a new name for a block of the step."""

    @abstractmethod
    def put(self, name: str, obj: Any) -> Block:
        """Store an object for actors under this name until the step is over.

        Raises:
            NoRoom: there is no memory for it.
        """

    @abstractmethod
    def pid(self, actor: ActorHandle) -> int | None:
        """Return the id of an actor's process; None where it is unknown, or the process has ended."""

    def cpu_s(self, actor: ActorHandle) -> float | None:
        """Return the processor seconds that an actor's process has used; None where that is not known here."""
        return None

    def ready_event(self, actor: ActorHandle) -> Mapping[str, Any] | None:
        """Return what the trace says of an actor that is ready, beside its weights' version; None: nothing."""
        return None

    def remote_form(self, engines: Any) -> Any:
        """Return the engine factory in the form that actors receive."""
        return engines
