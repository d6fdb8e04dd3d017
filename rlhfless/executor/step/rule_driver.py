"""``RuleDriver``: asks a plan's rule for triggers and decisions, on either clock, and checks what it returns."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from rlhfless.executor.step.actor_state import Actor
from rlhfless.executor.step.observation import KnownResponses, state_of
from rlhfless.executor.step.rule_validation import checked_decisions, checked_trigger, checked_triggers, failed_rule
from rlhfless.executor.step.step_state import RunningStep
from solver.model.errors import PlanningError
from solver.model.runtime_rules import ActorCounts, Decision, RuntimeRule, StepState, TriggersTogether
from solver.model.workload import IntArray

A = TypeVar("A", bound=Actor)


class RuleDriver(Generic[A]):
    """A rule while its step runs. It is a copy of the plan's: rules keep what they have seen, a plan does not.

    Args:
        known: returns what the clock knows of the responses of the live actors that were not cut (``Backend.known``).

    Attributes:
        trigger_completions: completions of the step at which the rule wants to be asked; None: it waits for none.
    """

    def __init__(self, rule: RuntimeRule, step: RunningStep[A], known: Callable[[float], Sequence[KnownResponses]]) -> None:
        self.rule = step.record.rule = copy.deepcopy(rule)
        self.step, self._known = step, known
        self._together = isinstance(self.rule, TriggersTogether) and _asks_together(type(self.rule))
        self.trigger_completions: int | None = None
        self._observed_s = -math.inf  # when it last saw the step
        self._timed = False  # whether any actor waits for a time
        self._common_time_s = math.inf  # for which all actors wait that were not cut
        self._asked: IntArray = np.zeros(0, np.int64)  # completions that were last asked for all actors at once, by actor

    @property
    def next_time_s(self) -> float:
        """Return the earliest time at which the rule wants to be asked, if no completion comes first."""
        live = self.step.live.values()
        if self._common_time_s < math.inf:
            return self._common_time_s if any(not a.closing for a in live) else math.inf
        return min((a.trigger_time_s for a in live), default=math.inf) if self._timed else math.inf

    def due(self, now_s: float, completing: Iterable[A]) -> bool:
        """Return whether the rule wants to be asked now, when these actors had completions."""
        if self.trigger_completions is not None and self.step.completed >= self.trigger_completions:
            return True
        if any(a.trigger_completions is not None and a.completed >= a.trigger_completions for a in completing):
            return True
        return self.next_time_s <= now_s

    def decide(self, now_s: float) -> Sequence[Decision]:
        """Return the rule's decisions; if there are none, it is also asked for its next triggers.

        Raises:
            RuleError: a decision is none, a trigger can never fire, or the rule's method raised an exception.
        """
        self._observed_s = now_s
        state = state_of(self.step, now_s, self._known(now_s))
        decisions = checked_decisions(self.rule, self._ask("decide", now_s, state))
        if not decisions:
            self._query(state)
        return decisions

    def query(self, now_s: float) -> None:
        """Ask the rule for the triggers of every live actor.

        Raises:
            RuleError: a trigger can never fire, or the rule's method raised an exception.
        """
        self._query(state_of(self.step, now_s, self._known(now_s)))

    def _ask(self, method: str, *given: Any) -> Any:
        """Return what a method of the rule answers; an exception names the rule and its line."""
        try:
            return getattr(self.rule, method)(*given)
        except PlanningError:  # its message is a whole sentence
            raise
        except Exception as error:
            raise failed_rule(self.rule, method, error) from error

    def _query(self, state: StepState) -> None:
        if self._together:
            self._query_together(state.counts)
            return
        rule, live = self.rule, self.step.live
        self._timed, step_completions = False, math.inf
        for view in state.actors:
            actor, completions, time_s = live[view.actor], None, math.inf
            trigger = self._ask("next_trigger", view)
            if trigger is not None:
                trigger = checked_trigger(rule, trigger, view.actor, self._observed_s)
                assert trigger is not None
                if trigger.completions is not None:
                    completions = max(trigger.completions, actor.completed + 1)
                if trigger.time_s is not None:
                    time_s = trigger.time_s
                    self._timed |= time_s < math.inf
                if trigger.step_completions is not None:
                    step_completions = min(step_completions, trigger.step_completions)
            actor.trigger_completions, actor.trigger_time_s = completions, time_s
        self.trigger_completions = None if step_completions == math.inf else max(int(step_completions), self.step.completed + 1)

    def _query_together(self, counts: ActorCounts) -> None:
        """Ask for all triggers at once; only actors that wait for other completions than before are looked at."""
        live = self.step.live
        completions, shared = checked_triggers(self.rule, self._ask("next_triggers", counts), counts, self._observed_s)
        if (missing := int(np.maximum.reduce(counts.actor, initial=-1)) + 1 - len(self._asked)) > 0:
            self._asked = np.append(self._asked, np.zeros(missing, np.int64))
        wanted = np.where(completions > 0, np.maximum(completions, counts.completed + 1), 0)
        other = (wanted != self._asked[counts.actor]).nonzero()[0]
        for index, count in zip(counts.actor[other].tolist(), wanted[other].tolist(), strict=True):
            live[index].trigger_completions = count or None
        self._asked[counts.actor] = wanted
        self._common_time_s = math.inf if shared.time_s is None or not len(counts.actor) else shared.time_s
        count = shared.step_completions if len(counts.actor) else None
        self.trigger_completions = None if count is None else max(count, self.step.completed + 1)


def _asks_together(rule: type) -> bool:
    """Return whether ``next_triggers`` speaks for a rule: not where a subclass has its own ``next_trigger`` only."""
    names = ({"next_trigger", "next_triggers"} & vars(base).keys() for base in rule.__mro__)
    return "next_triggers" in next(filter(None, names), ())
