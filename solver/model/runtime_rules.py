"""The vocabulary of runtime rules: what a rule may see while a step runs, and what it may order.

Knows nothing of engines, and nothing of how long responses will get: a rule sees only what is known at ``now_s``.
The rules themselves (the published cuts, folding, re-planning) live in rlhfless.scheduling and solver.replan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from solver.model.workload import IntArray

SIGNAL_TOKENS = 16  # that a running response's signals are means over, or all that it has: a single token's are mostly noise

Signals = Mapping[str, NDArray[np.floating[Any]]]
"""Of running responses, by name: (R, ...) means over their last ``SIGNAL_TOKENS`` known tokens; NaN where nothing is known."""


@dataclass(frozen=True)
class ActorView:
    """One running actor as known at the moment of a decision.

    Attributes:
        actor: its index in the plan, or a later one where it was started in place of a lost actor.
        gpus: GPUs that it holds.
        assigned: responses given to it so far, those that moved away not counted.
        completed: how many of these are complete.
        running, waiting: unfinished responses in its batch and in its queue.
        free_slots: places in its batch that neither running nor waiting nor arriving responses take.
        arriving: responses on their way to it.
        free_kv_tokens: KV tokens of its memory that neither running nor waiting nor arriving responses take by the admission
            rule in force (``StepState.held_tokens``); below 0 where some have to wait for others to end, infinite where
            nobody counts them.
        replaces: the actor of the plan on whose GPUs it was started; None for those of the plan.
    """

    actor: int
    gpus: int
    assigned: int
    completed: int
    running: tuple[int, ...]
    waiting: tuple[int, ...]
    arriving: tuple[int, ...]
    free_slots: int
    free_kv_tokens: float = math.inf
    replaces: int | None = None

    @property
    def planned(self) -> int:
        """Index in the plan of the actor that has its kind, size and price."""
        return self.actor if self.replaces is None else self.replaces

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Responses that it still has to complete and that are with it now."""
        return self.running + self.waiting

    @property
    def unfinished_count(self) -> int:
        """How many these are, which may be known where they have not been looked up."""
        return len(self.running) + len(self.waiting)


@dataclass(frozen=True)
class StepState:
    """Everything known at ``now_s``: live actors, and tokens so far and completion of every response.

    Attributes:
        reserved_tokens: (R,) KV tokens that ``reserve`` sets aside for each response, its prompt and its limit; None where
            admission is by ``preempt``.
        signals: the model's own signals of running responses (such as the log-probability of the end of text), where engines
            were asked for them; None where they were not, and before any was told. On the wall clock they are as old as the
            tokens: what each actor reported last.
    """

    now_s: float
    actors: tuple[ActorView, ...]
    generated_tokens: IntArray
    complete: Sequence[bool] | NDArray[np.bool_]
    prompt_tokens: IntArray
    reserved_tokens: IntArray | None = None
    signals: Signals | None = None

    @property
    def unfinished_count(self) -> int:
        """Responses that are not complete."""
        return len(self.complete) - int(np.count_nonzero(self.complete))

    @property
    def held_tokens(self) -> IntArray:
        """(R,) KV tokens with which each response counts in the memory of the actor that has it or gets it: what is reserved
        for it, or, under ``preempt``, what its context holds now."""
        return self.prompt_tokens + self.generated_tokens if self.reserved_tokens is None else self.reserved_tokens


@dataclass(frozen=True)
class Trigger:
    """When a rule wants to be asked again because of an actor: whatever comes first.

    Attributes:
        completions: at so many completions of the actor, counted from its first; at its next one if there are as many already.
        time_s: at this time, later than the last one that the rule was told, or at once when it has passed; infinite for never.
        step_completions: at so many completions of the whole step, as with ``completions``.
    """

    completions: int | None = None
    time_s: float | None = None
    step_completions: int | None = None


@dataclass(frozen=True)
class Move:
    """Take one response off its actor at the next iteration boundary and hand it to ``to_actor``.

    That actor may be full: then the response waits in its queue until a slot and memory are free, as any other that is with it.
    A rule that does not want this looks at ``free_slots`` and ``free_kv_tokens``; the shipped rules never order it.
    """

    response: int
    to_actor: int


@dataclass(frozen=True)
class Cut:
    """Stop an actor at its next iteration boundary: its unfinished responses go where ``moves`` says, then it is released."""

    actor: int
    moves: tuple[Move, ...]


Decision = Move | Cut


class RuntimeRule(Protocol):
    """A rule on a plan. Every step runs a deep copy of it, so it may keep what it has seen."""

    @property
    def name(self) -> str:
        """The rule's name in traces and plots."""
        ...

    def next_trigger(self, view: ActorView) -> Trigger | None:
        """When to ask ``decide`` because of this actor next; None for never."""
        ...

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        """What to do at ``now_s``; an empty list changes nothing."""
        ...
