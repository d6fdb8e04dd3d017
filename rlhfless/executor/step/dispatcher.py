"""``Dispatcher``: carries out a rule's decisions on either clock: which response goes where, and how its KV state does."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from rlhfless.executor.step.actor_state import Actor
from rlhfless.executor.step.rule_validation import check_all_go, check_decision, receiver_of
from rlhfless.executor.step.step_state import RunningStep
from solver.model.runtime_rules import Cut, Decision, Move, RuntimeRule

A = TypeVar("A", bound=Actor)


class Leaving(NamedTuple):
    """A response that leaves an actor, with the KV tokens of its context; ``what`` is the backend's own."""

    response: int
    context_tokens: int
    has_kv: bool
    what: Any = None


@dataclass
class Taken(Generic[A]):
    """Responses that leave an actor together; ``marks`` is the backend's own."""

    sender: A
    leaving: Sequence[Leaving]
    marks: Any = field(default=None, repr=False)


class Reassignment(NamedTuple):
    """A response that leaves an actor, who gets it, and whether its KV state is moved (else it is recomputed)."""

    leaving: Leaving
    receiver: Any
    with_kv: bool


class TakesAndGives(Protocol[A]):
    """The part of a backend that moves responses."""

    def has_ended(self, response: int) -> bool:
        """Return whether the response is complete, or completes before it could be taken off its actor."""
        ...

    def take(self, now_s: float, sender: A, responses: Sequence[int] | None) -> Taken[A]:
        """Take these responses off an actor, or say which can be; None: all but those that are being copied."""
        ...

    def hand_over(self, now_s: float, taken: Taken[A], orders: Sequence[Reassignment]) -> None:
        """Send taken responses to their receivers, to which they are assigned already."""
        ...


class Dispatcher(Generic[A]):
    """Checks decisions and has a backend carry them out. ``rule``: None means that the executor itself decides."""

    def __init__(self, step: RunningStep[A], backend: TakesAndGives[A]) -> None:
        self.step, self.backend = step, backend

    def apply(self, now_s: float, decision: Decision, rule: RuntimeRule | None) -> None:
        """Carry out a decision; one about a response that has ended is ignored.

        Raises:
            RuleError: it is impossible.
        """
        step = self.step
        check_decision(rule, decision, step.live, len(step.requests))
        if isinstance(decision, Cut):
            sender, goes_to = step.live[decision.actor], {m.response: m.to_actor for m in decision.moves}
            copied = self.begin_copies(now_s, rule, sender, decision.moves)
            taken = self.backend.take(now_s, sender, None)
            check_all_go(rule, decision, [one.response for one in taken.leaving])
            sender.closing, sender.trigger_completions, sender.trigger_time_s = True, None, math.inf
        else:
            if self.backend.has_ended(decision.response):
                return
            sender, goes_to = step.owner[decision.response], {decision.response: decision.to_actor}
            receiver_of(rule, decision, sender, step.live)
            copied = self.begin_copies(now_s, rule, sender, [decision])
            taken = Taken(sender, []) if copied else self.backend.take(now_s, sender, [decision.response])
        leaving = [*copied, *(one.response for one in taken.leaving)]
        step.record_decision(now_s, decision, sender, {response: goes_to[response] for response in leaving}, copied)
        for response in copied:
            step.assign(response, step.live[goes_to[response]])
        orders = []
        for one in taken.leaving:
            receiver = receiver_of(rule, Move(one.response, goes_to[one.response]), sender, step.live)
            orders.append(Reassignment(one, receiver, one.has_kv and step.moves_kv(sender, receiver, one.context_tokens)))
            step.assign(one.response, receiver)
        if orders or not copied:
            self.backend.hand_over(now_s, taken, orders)

    def begin_copies(self, now_s: float, rule: RuntimeRule | None, sender: A, moves: Sequence[Move]) -> Collection[int]:
        """Begin to copy KV states of these moves while their responses decode on; returns the responses.

        These leave, each by itself, once its copy is there. Here there are none: every move takes one step, whatever the rule
        says.
        """
        return ()
