"""State of one actor of a plan while its step runs, on either clock, and which cached prefixes its requests can use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rlhfless.engine.protocol import Request
from rlhfless.executor.step.record import holder_of
from solver.model.latency import LatencyModel
from solver.model.plan import ActorPlan


@dataclass
class Actor:
    """An actor of the plan while the step runs, on either clock."""

    index: int
    plan: ActorPlan
    latency: LatencyModel
    start_s: float
    assigned: int
    completed: int = 0
    expecting: int = 0  # responses with it or on their way to it
    trigger_completions: int | None = None  # completions at which the rule wants to be asked
    trigger_time_s: float = math.inf
    done_s: float = 0.0
    link_free_s: float = 0.0  # when what was ordered to be sent over its link is sent
    closing: bool = False  # it was cut: nothing may be given to it any more
    holder: str = field(init=False)  # its name in the trace

    def __post_init__(self) -> None:
        self.holder = holder_of(self.index)

    def gain(self, response: int) -> None:
        """Note that the response belongs to this actor from now on."""
        self.expecting += 1
        self.assigned += 1

    def lose(self, response: int) -> None:
        """Note that the response belongs to another actor from now on."""
        self.expecting -= 1
        self.assigned -= 1

    def can_move_to(self, receiver: Actor) -> bool:
        """Return whether the receiver can take over KV caches, whose layout differs between kinds or sizes of actors."""
        return (self.plan.kind, len(self.plan.gpu_ids)) == (receiver.plan.kind, len(receiver.plan.gpu_ids))


class Allocation(NamedTuple):
    """GPUs of an actor of the plan that has finished at ``done_s``; its role is that of the trace."""

    number: int
    role: str
    plan: ActorPlan
    start_s: float
    done_s: float


def reuses_prefixes(actor: ActorPlan) -> bool:
    """Return whether the actor receives prefixes, or computes a prompt once for several of its responses."""
    return bool(actor.prefixes) or actor.shares_prompts


def without_prompt(index: int, actor: ActorPlan, requests: Sequence[Request]) -> str | None:
    """Return an error text if an actor should reuse prefixes but one of its responses names no prompt; else None."""
    unknown = [r for r in actor.responses if requests[r].prompt is None]
    if not reuses_prefixes(actor) or not unknown:
        return None
    wants = "receives prefixes" if actor.prefixes else "shares prompts between its responses"
    return f"actor {index} of the plan {wants}, but the request of response {unknown[0]} has no prompt index"


def with_prefixes(
    actor: ActorPlan, requests: Sequence[Request], prefix_kv: Mapping[int, Any] | None = None
) -> Sequence[Request]:
    """Return the actor's requests with the prompt tokens that are cached on it; ``prefix_kv`` is KV state by prompt, where
    engines are real.
    """
    if not reuses_prefixes(actor):
        return requests
    received = dict(zip(actor.prefixes, actor.prefix_tokens, strict=True))
    with_kv = []
    for r in requests:
        cached = 0 if r.prompt is None else received.get(r.prompt, 0)
        kv = None if prefix_kv is None or r.prompt is None or not cached else prefix_kv.get(r.prompt)
        with_kv.append(replace(r, cached_tokens=cached, prefix_kv=kv, shares_prompt=actor.shares_prompts))
    return with_kv
