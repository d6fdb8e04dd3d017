"""State of a running step on either clock: which actor has which response, what is complete, and what is recorded. No clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.completions import Completions
from rlhfless.engine.simulated.requests import Requests
from rlhfless.executor.step.actor_state import Actor, Allocation
from rlhfless.executor.step.plan_validation import check_responses
from rlhfless.executor.step.prefixes import with_computed_tokens
from rlhfless.executor.step.progress import OnProgress, StepProgress, WorkSoFar
from rlhfless.executor.step.record import StepRecord, holder_of
from rlhfless.executor.step.rule_validation import check_rule
from rlhfless.executor.step.work_items import WorkItem
from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import PlanningError
from solver.model.objective import NonGenerationPhases
from solver.model.offers import Latencies
from solver.model.plan import Plan
from solver.model.runtime_rules import Cut, Decision
from solver.model.workload import IntArray
from solver.replanning.marginal_value import sends_kv

MIGRATION = ("cheaper", "move", "recompute")

A = TypeVar("A", bound=Actor)


def check_migration(migration: str) -> None:
    """Refuse a migration that is not one of ``MIGRATION`` (a PlanningError)."""
    if migration not in MIGRATION:
        raise PlanningError(f"migration {migration!r} is unknown; choose one of {', '.join(MIGRATION)}")


@dataclass(frozen=True)
class StepOptions:
    """How a step is executed and billed on either clock; see ``rlhfless.executor.run_step``."""

    latency: Latencies
    cluster: Cluster | MixedCluster
    phases: NonGenerationPhases = NonGenerationPhases()  # noqa: RUF009 (frozen)
    admission: str = "reserve"
    migration: str = "cheaper"
    on_progress: OnProgress | None = None
    work: tuple[WorkItem, ...] = ()


class RunningStep(Generic[A]):
    """A running step.

    Attributes:
        live: live actors, by index; held: allocations of the others.
        owner: of every response: the actor that has it, or to which it is being transferred.
        complete, observed_tokens: of every response, as far as published; completed: how many are complete.
        work_so_far: returns the work items until a moment, for progress; None where they run after generation.
        reserved_tokens: KV tokens that ``reserve`` sets aside for every response; None where admission is by ``preempt``.

    Raises:
        PlanningError: an unknown ``migration``, a rule without a method that rules have, or the requests are not one for each
            response of the plan; nothing was started.
    """

    def __init__(self, plan: Plan, requests: Sequence[Request], record: StepRecord, options: StepOptions) -> None:
        check_migration(options.migration)
        check_rule(plan.rule)
        self.record, self.options = record, options
        self.requests = Requests.of(requests)
        check_responses(plan, self.requests)
        self.plan = with_computed_tokens(plan, self.requests)
        self.prompt_tokens = self.requests.rows["prompt_tokens"].copy()
        self.reserved_tokens: IntArray | None = None
        if options.admission == "reserve":
            self.reserved_tokens = self.prompt_tokens + self.requests.rows["max_tokens"]
            self.reserved_tokens.setflags(write=False)
        self.prompt_tokens.setflags(write=False)  # rules see both
        self.observed_tokens = np.zeros(len(requests), np.int64)
        self.complete = np.zeros(len(requests), dtype=bool)
        self.completed = 0
        self._begun = False
        self.work_so_far: Callable[[float], WorkSoFar] | None = None
        self.live: dict[int, A] = {}
        self.held: list[Allocation] = []
        self.owner: dict[int, A] = {}

    def publish(self, together: Sequence[tuple[A, Completions]]) -> None:
        """Publish completions of actors."""
        if len(together) == 1:
            responses, tokens = together[0][1].responses, together[0][1].response_tokens
        else:
            responses = np.concatenate([completions.responses for _, completions in together])
            tokens = np.concatenate([completions.response_tokens for _, completions in together])
        assert not self.complete[responses].any(), "a response completed twice"
        self.complete[responses] = True
        self.observed_tokens[responses] = tokens
        self.completed += len(responses)
        for actor, completions in together:
            actor.completed += len(completions)
            actor.expecting -= len(completions)
            actor.done_s = max(actor.done_s, float(completions.time_s[-1]))
        self.record.enter([(actor.holder, completions) for actor, completions in together])
        self.report(max(float(c.time_s[-1]) for _, c in together))

    def begin(self, now_s: float) -> None:
        """Report that decoding can begin; an actor that is ready later changes nothing."""
        if not self._begun:
            self._begun = True
            self.report(now_s)

    def report(self, now_s: float) -> None:
        """Call the progress callback with the step as it is now, once decoding can begin."""
        if self._begun and self.options.on_progress is not None:
            now = (self.completed, len(self.complete), now_s, self.record, self.live.values(), self.held, self.work_so_far)
            self.options.on_progress(StepProgress(*now))

    def assign(self, response: int, receiver: A) -> None:
        """Assign the response to the receiver from now on."""
        self.owner[response].lose(response)
        receiver.gain(response)
        self.owner[response] = receiver

    def record_decision(
        self, now_s: float, decision: Decision, sender: A, goes_to: Mapping[int, int], copied: Collection[int]
    ) -> None:
        """Record a decision: how many responses move, which to which actor (``goes_to``: response to actor), and how many of
        them are ``copied`` first.
        """
        to: dict[str, list[int]] = {}
        for response, index in goes_to.items():
            to.setdefault(holder_of(index), []).append(response)
        name = "cut" if isinstance(decision, Cut) else "move"
        first = {"copied_first": len(copied)} if copied else {}
        self.record.event(now_s, name, sender.holder, responses=len(goes_to), to=to, **first)

    def moves_kv(self, sender: A, receiver: A, context_tokens: int) -> bool:
        """Return whether to move the KV state of a response with this context; else it is recomputed."""
        migration = self.options.migration
        if migration == "recompute" or not sender.can_move_to(receiver):
            return False
        if migration == "move":
            return True
        return bool(sends_kv(sender.latency.transfer_s(context_tokens), receiver.latency.recompute_s(context_tokens)))
