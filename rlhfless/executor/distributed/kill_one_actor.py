"""A runtime rule that kills the process of one actor in the middle of a step, to see what the loss costs."""

from __future__ import annotations

import os
import signal
from typing import Any, Protocol

import numpy as np

from solver.model.runtime_rules import ActorView, Decision, StepState, Trigger


class Working(Protocol):
    """A pool of actors as processes of this machine."""

    @property
    def working(self) -> list[int]:
        """Process ids of the actors of the running step."""
        ...


class KillOneActor:
    """A runtime rule that kills one actor, to show recovery: when a share of the responses is complete and every actor still
    works.

    Args:
        pool: the pool, whose processes run on this machine.
        actors: number of actors of the plan.
        share: share of complete responses at which the actor is killed.

    Attributes:
        killed: process id of the killed actor; None before the kill.
        complete: number of responses that were complete then.
    """

    name = "kill one actor"

    def __init__(self, pool: Working, actors: int, share: float = 0.25) -> None:
        self.pool, self.actors, self.share = pool, actors, share
        self.killed: int | None = None
        self.complete = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> KillOneActor:
        """Return the same rule: a step runs a copy of its plan's rule, and this one is watched from outside."""
        return self

    def next_trigger(self, view: ActorView) -> Trigger | None:
        """See ``RuntimeRule``."""
        return None if self.killed else Trigger(completions=view.completed + 1)

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        """See ``RuntimeRule``."""
        complete = np.asarray(state.complete)
        if self.killed is None and len(state.actors) == self.actors and complete.mean() >= self.share:
            self.killed, self.complete = self.pool.working[0], int(complete.sum())
            os.kill(self.killed, signal.SIGKILL)
        return []
