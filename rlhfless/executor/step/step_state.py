"""State of a step that both clocks share: which actor has which response, what is complete, and when the rule is due.

``virtual/executor.py`` and ``distributed/executor.py`` add the clock and the engines.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.completions import Completions
from rlhfless.engine.simulated.requests import Requests
from rlhfless.executor.step.actor_state import Actor, Allocation
from rlhfless.executor.step.plan_validation import check_responses
from rlhfless.executor.step.prefixes import with_computed_tokens
from rlhfless.executor.step.progress import OnProgress, StepProgress
from rlhfless.executor.step.record import StepRecord, holder_of
from rlhfless.executor.step.rule_validation import checked_trigger
from rlhfless.executor.step.signals import ObservedSignals
from solver.model.errors import PlanningError
from solver.model.plan import Plan
from solver.model.runtime_rules import ActorView, Cut, Decision
from solver.model.workload import IntArray
from solver.replanning.marginal_value import sends_kv

MIGRATION = ("cheaper", "move", "recompute")

A = TypeVar("A", bound=Actor)


def check_migration(migration: str) -> None:
    """Refuse a migration that is not one of ``MIGRATION`` (a PlanningError)."""
    if migration not in MIGRATION:
        raise PlanningError(f"migration {migration!r} is unknown; choose one of {', '.join(MIGRATION)}")


class Step(Generic[A]):
    """A running step.

    Attributes:
        rule: the plan's, copied for this step alone.
        live: live actors, by index; held: allocations of the others.
        owner: of every response: the actor that has it, or to which it is being transferred.
        on_progress: progress callback; None calls nothing.
        complete, observed_tokens, observed_signals: of every response, as far as published; completed: how many are complete.
        reserved_tokens: KV tokens that ``reserve`` sets aside for every response; None where admission is by ``preempt``.
        trigger_completions: completions of the step at which the rule wants to be asked; observed_s: when it last saw the step.

    Raises:
        PlanningError: an unknown ``migration``, or the requests are not one for each response of the plan; nothing was started.
    """

    def __init__(self, plan: Plan, requests: Sequence[Request], record: StepRecord, migration: str, admission: str) -> None:
        check_migration(migration)
        self.record, self.migration = record, migration
        self.rule = record.rule = copy.deepcopy(plan.rule)  # rules keep what they have seen, a plan does not
        self.requests = Requests.of(requests)
        check_responses(plan, self.requests)
        self.plan = with_computed_tokens(plan, self.requests)
        self.prompt_tokens = self.requests.rows["prompt_tokens"].copy()
        self.reserved_tokens: IntArray | None = None
        if admission == "reserve":
            self.reserved_tokens = self.prompt_tokens + self.requests.rows["max_tokens"]
        self.observed_tokens = np.zeros(len(requests), np.int64)
        self.observed_signals = ObservedSignals(len(requests))
        self.complete = np.zeros(len(requests), dtype=bool)
        self.completed = 0
        self.trigger_completions: int | None = None
        self.observed_s = -math.inf
        self.live: dict[int, A] = {}
        self.held: list[Allocation] = []
        self.owner: dict[int, A] = {}
        self.on_progress: OnProgress | None = None

    def _enter(self, together: Sequence[tuple[A, Completions]]) -> bool:
        """Publish completions; returns whether the rule wants to be asked because of them."""
        responses, tokens = (
            np.concatenate([getattr(completions, name) for _, completions in together])
            for name in ("responses", "response_tokens")
        )
        assert not self.complete[responses].any(), "a response completed twice"
        self.complete[responses] = True
        self.observed_tokens[responses] = tokens
        self.completed += len(responses)
        reached = self.trigger_completions is not None and self.completed >= self.trigger_completions
        for actor, completions in together:
            actor.completed += len(completions)
            actor.expecting -= len(completions)
            actor.done_s = max(actor.done_s, float(completions.time_s[-1]))
            reached |= actor.trigger_completions is not None and actor.completed >= actor.trigger_completions
        self.record.enter([(actor.holder, completions) for actor, completions in together])
        if self.on_progress is not None:
            now_s = max(float(c.time_s[-1]) for _, c in together)
            self.on_progress(
                StepProgress(self.completed, len(self.complete), now_s, self.record, self.live.values(), self.held)
            )
        return reached

    def _record_decision(self, now_s: float, decision: Decision, sender: A, goes_to: Mapping[int, int]) -> None:
        """Record a decision: how many responses move, and which to which actor (``goes_to``: response to actor)."""
        to: dict[str, list[int]] = {}
        for response, index in goes_to.items():
            to.setdefault(holder_of(index), []).append(response)
        name = "cut" if isinstance(decision, Cut) else "move"
        self.record.event(now_s, name, sender.holder, responses=len(goes_to), to=to)

    def _moves_kv(self, sender: A, receiver: A, context_tokens: int) -> bool:
        """Return whether to move the KV state of a response with this context; else it is recomputed."""
        if self.migration == "recompute" or not sender.can_move_to(receiver):
            return False
        if self.migration == "move":
            return True
        return bool(sends_kv(sender.latency.transfer_s(context_tokens), receiver.latency.recompute_s(context_tokens)))

    def _weigh(self, responses: Sequence[int], tokens: IntArray) -> int:
        """Return the KV tokens that these responses take of an actor's memory by the admission rule in force."""
        indices = np.array(responses, dtype=np.int64)
        if self.reserved_tokens is not None:
            return int(self.reserved_tokens[indices].sum())
        return int(self.prompt_tokens[indices].sum() + tokens[indices].sum())

    def _timed(self, now_s: float) -> bool:
        return any(a.trigger_time_s <= now_s for a in self.live.values())

    def _query_triggers(self, views: Sequence[ActorView]) -> None:
        """Ask the rule for the triggers of every live actor, given its views.

        Raises:
            RuleError: a trigger that can never fire.
        """
        assert self.rule is not None
        self.trigger_completions = None
        for view in views:
            actor, trigger = (
                self.live[view.actor],
                checked_trigger(self.rule, self.rule.next_trigger(view), view, self.observed_s),
            )
            actor.trigger_completions, actor.trigger_time_s = None, math.inf
            if trigger is None:
                continue
            if trigger.completions is not None:
                actor.trigger_completions = max(trigger.completions, actor.completed + 1)
            if trigger.time_s is not None:
                actor.trigger_time_s = trigger.time_s
            if trigger.step_completions is not None:
                count = max(trigger.step_completions, self.completed + 1)
                self.trigger_completions = count if self.trigger_completions is None else min(self.trigger_completions, count)
