"""Checks the decisions and triggers of runtime rules, which users write, on either clock.

Every error names the rule, what it returned and what would be right.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rlhfless.executor.step.actor_state import Actor
from solver.model.errors import PlanningError, as_given, is_number, is_whole
from solver.model.runtime_rules import ActorCounts, Cut, Decision, Move, RuntimeRule, Trigger, Triggers
from solver.model.workload import IntArray

NEVER = Trigger()

A = TypeVar("A", bound=Actor)


class RuleError(PlanningError):
    """A runtime rule returned an invalid decision or trigger; the message names the rule, what it returned and what would be
    right.
    """


def check_rule(rule: Any) -> None:
    """Refuse a plan's rule that lacks what a rule has, before anything starts; None is no rule.

    Raises:
        RuleError: naming what it lacks.
    """
    if rule is None:
        return
    if isinstance(rule, type):
        raise RuleError(f"the plan's rule is the class {rule.__name__}; give an object of it: {rule.__name__}(...)")
    if not hasattr(rule, "name"):
        raise RuleError(f"the plan's rule {type(rule).__name__} has no name; write name = 'my rule' in its class")
    triggers = "next_triggers" if hasattr(rule, "next_triggers") else "next_trigger"
    for method, takes in ((triggers, "counts" if triggers == "next_triggers" else "view"), ("decide", "now_s, state")):
        if not callable(getattr(rule, method, None)):
            raise RuleError(f"the plan's rule {_name(rule)} has no method {method}; write def {method}(self, {takes})")


def failed_rule(rule: RuntimeRule, method: str, error: Exception) -> RuleError:
    """Return the error for an exception in a rule's method; it names the rule, the exception, and the line of the rule's file
    that raised it.
    """
    file = getattr(getattr(getattr(type(rule), method, None), "__code__", None), "co_filename", "")
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f" ({Path(file).name}, line {lines[-1]})" if lines else ""
    failed = RuleError(f"rule {_name(rule)} failed in {method} with {type(error).__name__}: {error}{where}")
    return failed.with_traceback(error.__traceback__)  # a notebook shows the rule's own lines


def checked_trigger(rule: RuntimeRule, trigger: Any, actor: int | None, observed_s: float) -> Trigger | None:
    """Return the result of ``rule.next_trigger`` for an actor (None: for all of them) if it is valid.

    Args:
        observed_s: the latest time that the rule has seen; minus infinity before the first. A trigger time after it that has
            passed by now is due at once.

    Raises:
        RuleError: it is no ``Trigger``, its counts are not whole numbers from 1 on, or its time does not lie ahead.
    """
    if trigger is None:
        return None
    if not isinstance(trigger, Trigger):
        raise RuleError(
            f"rule {_name(rule)} returned {as_given(trigger)} for {_which(actor)}; next_trigger must return a Trigger, or None"
        )
    for name, count in (("completions", trigger.completions), ("step_completions", trigger.step_completions)):
        if count is not None and not (type(count) is int and count > 0) and not is_whole(count, 1):
            raise RuleError(f"{_asks(rule, actor)} {name}={count!r}; a whole number of at least 1, or None, is needed")
    time_s = trigger.time_s
    if time_s is not None and time_s != math.inf and not (is_number(time_s) and time_s > observed_s):
        after = f" (after {observed_s:g})" if math.isfinite(observed_s) else ""
        raise RuleError(f"{_asks(rule, actor)} time_s={time_s!r}; seconds{after} since the run's start, or None, are needed")
    return trigger


def checked_triggers(rule: RuntimeRule, triggers: Any, counts: ActorCounts, observed_s: float) -> tuple[IntArray, Trigger]:
    """Return the result of ``rule.next_triggers(counts)`` if it is valid: (K,) completions, and what all actors share.

    Raises:
        RuleError: it is no ``Triggers``, its completions are not one whole number from 0 on for each actor, or it has what
            ``checked_trigger`` refuses.
    """
    if not isinstance(triggers, Triggers):
        raise RuleError(f"rule {_name(rule)} returned {as_given(triggers)}; next_triggers must return Triggers")
    shared = NEVER
    if triggers.time_s is not None or triggers.step_completions is not None:
        shared = Trigger(None, triggers.time_s, triggers.step_completions)
        checked_trigger(rule, shared, None, observed_s)
    if triggers.completions is None:
        return np.zeros(len(counts.actor), np.int64), shared
    completions = np.asarray(triggers.completions)
    if (
        completions.shape != counts.actor.shape
        or completions.dtype.kind not in "iu"
        or np.minimum.reduce(completions, initial=0) < 0
    ):
        raise RuleError(
            f"rule {_name(rule)} returned completions={triggers.completions!r} for {len(counts.actor)} actors; a whole number "
            "for each of them is needed, 0 for none"
        )
    return completions, shared


def checked_decisions(rule: RuntimeRule | None, decisions: Any) -> Sequence[Decision]:
    """Return the result of ``rule.decide`` if it is valid.

    Raises:
        RuleError: it is not a list of ``Move`` and ``Cut``.
    """
    if not isinstance(decisions, list | tuple):
        raise RuleError(
            f"rule {_name(rule)} returned {as_given(decisions)}; decide must return a list of Move and Cut, empty for none"
        )
    for decision in decisions:
        if not isinstance(decision, Move | Cut) or (
            isinstance(decision, Cut)
            and not (isinstance(decision.moves, list | tuple) and all(isinstance(m, Move) for m in decision.moves))
        ):
            raise RuleError(
                f"rule {_name(rule)} ordered {as_given(decision)}; a decision must be a Move, or a Cut with a Move per response"
            )
    return decisions


def check_decision(rule: RuntimeRule | None, decision: Decision, live: Mapping[int, Actor], responses: int) -> None:
    """Refuse a decision about unknown responses or actors, or with an unknown ``two_step``, just before it is carried out.

    Args:
        live: live actors, by index. responses: how many the step has.

    Raises:
        RuleError: naming them.
    """
    for move in decision.moves if isinstance(decision, Cut) else (decision,):
        _check_actor(rule, move, move.to_actor)
        if not is_whole(move.response, 0) or move.response >= responses:
            raise RuleError(f"rule {_name(rule)} ordered {as_given(move)}; the step has responses 0 to {responses - 1} only")
        if move.two_step not in (True, False, "auto"):
            raise RuleError(
                f"rule {_name(rule)} ordered {move} with two_step={move.two_step!r}; True, False or 'auto' is needed"
            )
    if not isinstance(decision, Cut):
        return
    _check_actor(rule, decision, decision.actor)
    if decision.actor not in live or live[decision.actor].closing:
        raise RuleError(
            f"rule {_name(rule)} cuts actor {decision.actor}; a running actor that was not cut before is needed "
            f"(now: {_going_on(live)})"
        )


def receiver_of(rule: RuntimeRule | None, move: Move, sender: Actor, live: Mapping[int, A]) -> A:
    """Return the actor that gets the response of a move.

    Raises:
        RuleError: it is not another live actor.
    """
    receiver = live.get(move.to_actor)
    if receiver is None or receiver.closing or receiver.index == sender.index:
        receivers = {i: actor for i, actor in live.items() if i != sender.index}
        raise RuleError(
            f"rule {_name(rule)} ordered {move} from actor {sender.index}; a response must move to another running actor "
            f"(now: {_going_on(receivers)})"
        )
    return receiver


def check_all_go(rule: RuntimeRule | None, cut: Cut, unfinished: Collection[int]) -> None:
    """Refuse a cut that does not say where each of the actor's ``unfinished`` responses goes.

    Raises:
        RuleError: naming those that are missing.
    """
    if lost := sorted(set(unfinished).difference(move.response for move in cut.moves)):
        raise RuleError(
            f"rule {_name(rule)} cuts actor {cut.actor} without a Move for responses {as_given(lost)}; a Cut needs a Move for "
            "each of the actor's unfinished responses"
        )


def _check_actor(rule: RuntimeRule | None, decision: Decision, actor: Any) -> None:
    """Refuse an actor that is no index, such as its view (a RuleError)."""
    if not is_whole(actor):
        raise RuleError(
            f"rule {_name(rule)} ordered a {type(decision).__name__} with {as_given(actor)} as actor; its index is needed, "
            "which is view.actor"
        )


def _asks(rule: RuntimeRule, actor: int | None) -> str:
    return f"rule {_name(rule)} returned a trigger for {_which(actor)} with"


def _which(actor: int | None) -> str:
    return "each actor" if actor is None else f"actor {actor}"


def _name(rule: RuntimeRule | None) -> str:
    """Return the rule's name; None means that the executor itself takes responses off a slow actor."""
    return "of the executor" if rule is None else str(getattr(rule, "name", type(rule).__name__))


def _going_on(live: Mapping[int, Actor]) -> str:
    return ", ".join(str(i) for i, actor in live.items() if not actor.closing) or "none"
