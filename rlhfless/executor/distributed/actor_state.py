"""What the event loop on the wall clock knows of one actor.

Knows what was given to it, what it owes and when it was last heard of; nothing of what is decided about it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from rlhfless.engine.protocol import Request
from rlhfless.executor.distributed.failure_detection import Speed
from rlhfless.executor.distributed.messages import RemoteActor, StartActor
from rlhfless.executor.step.actor_state import Actor
from solver.model.admission import Admission


@dataclass
class RemoteActorState(Actor):
    """An actor of the plan, or one that was started later, on the wall clock.

    Attributes:
        remote: None until it is started.
        own: responses with it or on their way to it, in order of arrival.
        kept: requests that it will get; None once it gets them at once.
        awaits: it waits for prefixes from a prefill actor; prefixes: which have come for it, and go with what is kept.
        answers: that it owes.
        replaces: the actor of the plan on whose GPUs it is started; None for those of the plan.
        short_of_memory: it is started where memory ran out; see ``StartActor``.
        until_s: when what was last reported of it ended. due_s: when it counts as silent; doubted: it did once already.
    """

    admission: Admission = field(kw_only=True)
    speed: Speed = field(kw_only=True)
    remote: RemoteActor | None = None
    own: dict[int, None] = field(default_factory=dict)
    kept: list[Request] | None = field(default_factory=list)
    awaits: bool = False
    prefixes: Any = None
    answers: int = 0
    ready: bool = False
    replaces: int | None = None
    short_of_memory: bool = False
    until_s: float = 0.0
    due_s: float = math.inf
    doubted: bool = False
    looked_s: float = -math.inf  # when it may next be looked at as a slow one

    @property
    def done(self) -> bool:
        """Whether nothing is left that it could do."""
        return not self.own and not self.answers

    def order(self, weights_version: int) -> StartActor:
        """To start it: where memory ran out, engines that take their memory when they start take it for fewer slots too."""
        latency = replace(self.latency, max_batch=self.admission.max_batch) if self.short_of_memory else self.latency
        return StartActor(self.index, self.plan, latency, self.admission, weights_version, self.short_of_memory)
