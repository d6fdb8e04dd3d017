"""What a runtime rule sees of a step on the virtual clock, computed only as far as the rule reads it.

Views of actors, lists of their responses, and tokens are most of the cost of asking a rule. Rules that are asked often read
little of them. Values that the rule keeps must be read, or ``materialise`` called, before the step continues.
"""

from __future__ import annotations

import weakref
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlhfless.executor.virtual.actors import VirtualActor
from solver.model.runtime_rules import ActorCounts, ActorView, StepState
from solver.model.workload import IntArray

Ids = tuple[int, ...]


class Snapshot(Protocol):
    """A step at one moment, from which states and views are computed."""

    now_s: float

    def responses_of(self, actor: VirtualActor) -> tuple[Ids, Ids, Ids]:
        """Return the responses of an actor that are running, waiting and arriving."""
        ...

    def weigh(self, actor: VirtualActor, view: ActorView) -> int:
        """Return the KV tokens that the responses of an actor take of its memory."""
        ...

    def context_tokens(self) -> int:
        """Return the context tokens of all unfinished responses."""
        ...

    def context_of(self, response: int) -> int:
        """Return the context tokens of a response."""
        ...

    def copy_tokens(self) -> IntArray:
        """Return (R,) generated tokens that later iterations do not change."""
        ...


class LazyView(ActorView):
    """An ``ActorView`` whose responses and free memory are computed when first read, which must happen before the step
    continues.
    """

    def __init__(self, of: VirtualActor, snapshot: Snapshot) -> None:
        expecting, arriving = of.expecting, of.arriving
        self.__dict__.update(
            actor=of.index, gpus=of.gpus, assigned=of.assigned, completed=of.completed,
            free_slots=max(0, of.engine.slots - expecting), _counts=(expecting - arriving, arriving),
            _of=of, _snapshot=snapshot,
        )  # fmt: skip

    @cached_property
    def _responses(self) -> tuple[Ids, Ids, Ids]:
        snapshot: Snapshot = self.__dict__["_snapshot"]
        return snapshot.responses_of(self.__dict__["_of"])

    @cached_property
    def running(self) -> Ids:
        """See ``ActorView``."""
        return self._responses[0]

    @cached_property
    def waiting(self) -> Ids:
        """See ``ActorView``."""
        return self._responses[1]

    @cached_property
    def arriving(self) -> Ids:
        """See ``ActorView``."""
        return self._responses[2]

    @cached_property
    def free_kv_tokens(self) -> float:
        """See ``ActorView``."""
        of: VirtualActor = self.__dict__["_of"]
        snapshot: Snapshot = self.__dict__["_snapshot"]
        return float(of.latency.kv_capacity_tokens - snapshot.weigh(of, self))

    @property
    def unfinished_count(self) -> int:
        """See ``ActorView``; it needs no computation."""
        count: int = self.__dict__["_counts"][0]
        return count

    @property
    def arriving_count(self) -> int:
        """See ``ActorView``; it needs no computation."""
        count: int = self.__dict__["_counts"][1]
        return count

    def materialise(self) -> None:
        """Compute everything that was not read yet, and let go of the step."""
        self.free_kv_tokens, self._responses  # noqa: B018
        del self.__dict__["_of"], self.__dict__["_snapshot"]


class LazyState(StepState):
    """A ``StepState`` whose views and tokens are computed when first read, which must happen before the step
    continues.

    Args:
        live: its actors by index, those that were cut included; counts: of the others.
        complete: how many responses are. Other arguments are those of ``StepState``.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        live: dict[int, VirtualActor],
        counts: ActorCounts,
        complete: NDArray[np.bool_],
        completed: int,
        prompt_tokens: IntArray,
        reserved_tokens: IntArray | None,
    ) -> None:
        self.__dict__.update(
            now_s=snapshot.now_s, complete=complete, prompt_tokens=prompt_tokens, reserved_tokens=reserved_tokens,
            counts=counts, _live=live, _completed=completed, _snapshot=snapshot, _views={},
        )  # fmt: skip

    @cached_property
    def actors(self) -> tuple[ActorView, ...]:
        """See ``StepState``."""
        return tuple(map(self.view_of, self.counts.actor.tolist()))

    def view_of(self, actor: int) -> ActorView:
        """See ``StepState``."""
        views: dict[int, LazyView] = self.__dict__["_views"]
        if actor not in views:
            views[actor] = LazyView(self.__dict__["_live"][actor], self.__dict__["_snapshot"])
        return views[actor]

    @property
    def unfinished_count(self) -> int:
        """See ``StepState``; it needs no computation."""
        return len(self.complete) - int(self.__dict__["_completed"])

    @cached_property
    def context_tokens(self) -> int:
        """See ``StepState``."""
        snapshot: Snapshot = self.__dict__["_snapshot"]
        return snapshot.context_tokens()

    def context_of(self, response: int) -> int:
        """See ``StepState``."""
        snapshot: Snapshot | None = self.__dict__["_snapshot"]
        return super().context_of(response) if snapshot is None else snapshot.context_of(response)

    @cached_property
    def generated_tokens(self) -> IntArray:
        """See ``StepState``."""
        snapshot: Snapshot = self.__dict__["_snapshot"]
        return snapshot.copy_tokens()

    def references(self) -> list[weakref.ref[LazyView]]:
        """Return references to the views that the rule has looked at."""
        return [weakref.ref(view) for view in self.__dict__["_views"].values()]

    def materialise(self) -> None:
        """Compute everything that was not read yet, and let go of the step; its views do the same by themselves."""
        self.actors, self.generated_tokens, self.context_tokens  # noqa: B018
        self.__dict__.update(_live={}, _snapshot=None)
