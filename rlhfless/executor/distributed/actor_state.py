"""State of one remote actor as the wall-clock event loop knows it: its responses, unanswered orders and last report."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from rlhfless.engine.protocol import Request
from rlhfless.executor.distributed.failure_limits import Speed
from rlhfless.executor.distributed.messages import RemoteActor, StartActor
from rlhfless.executor.step.actor_state import Actor
from solver.model.admission import Admission


@dataclass
class RemoteActorState(Actor):
    """An actor of the plan on the wall clock, or one that was started later to replace a lost one.

    Attributes:
        remote: None until it is started.
        running, waiting: its batch and its queue in its last report.
        responses: responses that it has or that are on their way to it, in order of arrival.
        kept: requests that wait here for it; None once requests are sent to it at once.
        awaits: it waits for prefixes from a prefill actor; prefixes: those that have arrived for it, sent with ``kept``.
        answers: number of answers that it still owes.
        short_of_memory: it is started on GPUs where memory ran out; see ``StartActor``.
        until_s: end of the last reported work. due_s: when it counts as silent; suspect: it has counted as silent once.
    """

    admission: Admission = field(kw_only=True)
    speed: Speed = field(kw_only=True)
    remote: RemoteActor | None = None
    running: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    responses: dict[int, None] = field(default_factory=dict)
    kept: list[Request] | None = field(default_factory=list)
    awaits: bool = False
    prefixes: Any = None
    answers: int = 0
    ready: bool = False
    short_of_memory: bool = False
    until_s: float = 0.0
    due_s: float = math.inf
    suspect: bool = False
    next_slow_check_s: float = -math.inf  # when it may next be checked for slowness

    def gain(self, response: int) -> None:
        """See ``Actor``."""
        super().gain(response)
        self.responses[response] = None

    def lose(self, response: int) -> None:
        """See ``Actor``."""
        super().lose(response)
        del self.responses[response]

    @property
    def done(self) -> bool:
        """Return whether the actor has nothing left to do."""
        return not self.responses and not self.answers

    def order(self, weights_version: int) -> StartActor:
        """Return the order that starts it.

        Where memory ran out, engines that allocate their memory at start-up allocate it for fewer slots too.
        """
        latency = replace(self.latency, max_batch=self.admission.max_batch) if self.short_of_memory else self.latency
        return StartActor(self.index, self.plan, latency, self.admission, weights_version, self.short_of_memory)
