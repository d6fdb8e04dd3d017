"""Interface of runtime rules: the state that a rule may see while a step runs, and the decisions that it may return.

A rule sees only what is observable at ``now_s``, never the final lengths of running responses. The rules themselves are in
rlhfless.scheduling (the published cuts, folding) and solver.replanning.replan (re-planning).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from solver.model.workload import FloatArray, IntArray


@dataclass(frozen=True)
class ActorView:
    """Observable state of one running actor at the moment of a decision.

    Attributes:
        actor: its index in the plan, or a later index if it replaced a lost actor.
        gpus: GPUs that it occupies.
        assigned: responses assigned to it so far, without those that migrated away.
        completed: how many of these are complete.
        running, waiting: unfinished responses in its batch and in its queue.
        free_slots: slots of its batch that no running, waiting or arriving response takes, nor one that is being copied away.
        arriving: responses that are migrating to it.
        free_kv_tokens: KV tokens of its memory that no running, waiting or arriving response takes by the admission rule in
            force (``StepState.held_tokens``). Below 0 if some have to wait for others to complete; infinite if the engine does
            not count them.
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

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Return its unfinished responses, running and waiting."""
        return self.running + self.waiting

    @property
    def unfinished_count(self) -> int:
        """Return the number of unfinished responses, running and waiting."""
        return len(self.running) + len(self.waiting)

    @property
    def arriving_count(self) -> int:
        """Return the number of arriving responses."""
        return len(self.arriving)


@dataclass(frozen=True, eq=False)
class ActorCounts:
    """Counts of K running actors as arrays, for rules that are asked too often to look at actors one by one.

    Attributes:
        actor, gpus, assigned, completed, unfinished, arriving, free_slots: (K,) as in ``ActorView``, in order of the actors.
        free_kv_tokens: (K,) the same.
    """

    actor: IntArray
    gpus: IntArray
    assigned: IntArray
    completed: IntArray
    unfinished: IntArray
    arriving: IntArray
    free_slots: IntArray
    free_kv_tokens: FloatArray

    @classmethod
    def of(cls, views: Sequence[ActorView]) -> ActorCounts:
        """Return the counts of these views."""
        rows = [
            (v.actor, v.gpus, v.assigned, v.completed, v.unfinished_count, v.arriving_count, v.free_slots) for v in views
        ]  # fmt: skip
        actor, gpus, assigned, completed, unfinished, arriving, free_slots = np.array(rows, dtype=np.int64).reshape(-1, 7).T
        free_kv_tokens = np.array([v.free_kv_tokens for v in views], dtype=float)
        return cls(actor, gpus, assigned, completed, unfinished, arriving, free_slots, free_kv_tokens)


@dataclass(frozen=True, eq=False)
class StepState:
    """Observable state of the step at ``now_s``, as plain arrays: K live actors, n unfinished and R responses in all.

    It is a snapshot: what a rule keeps of it does not change while the step continues. A rule must not write to the arrays. The
    executor makes those of a running step read-only.

    Attributes:
        counts: of the actors that may still be given responses.
        responses: (n,) unfinished responses: those of the first actor of ``counts``, then those of the next. Of each actor
            first the running ones, then the waiting and the arriving ones, each in order of admission.
        sizes: (K, 3) how many of each actor are running, waiting and arriving.
        generated_tokens, complete: (R,) generated tokens of every response, and whether it is complete.
        prompt_tokens: (R,) tokens of its prompt.
        reserved_tokens: (R,) KV tokens that ``reserve`` sets aside for each response, its prompt and its limit; None where
            admission is by ``preempt``.
    """

    now_s: float
    counts: ActorCounts
    responses: IntArray
    sizes: IntArray
    generated_tokens: IntArray
    complete: NDArray[np.bool_]
    prompt_tokens: IntArray
    reserved_tokens: IntArray | None = None

    @classmethod
    def of(
        cls,
        now_s: float,
        views: Sequence[ActorView],
        generated_tokens: IntArray,
        complete: Sequence[bool] | NDArray[np.bool_],
        prompt_tokens: IntArray,
        reserved_tokens: IntArray | None = None,
    ) -> StepState:
        """Return the state of actors that are given one by one, as in a test of a rule."""
        listed = [r for v in views for r in (*v.running, *v.waiting, *v.arriving)]
        sizes = [(len(v.running), len(v.waiting), len(v.arriving)) for v in views]
        return cls(
            now_s, ActorCounts.of(views), np.array(listed, dtype=np.int64), np.array(sizes, dtype=np.int64).reshape(-1, 3),
            generated_tokens, np.asarray(complete, dtype=bool), prompt_tokens, reserved_tokens,
        )  # fmt: skip

    @cached_property
    def owner(self) -> IntArray:
        """Return (n,) the position in ``counts`` of the actor of each of ``responses``."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes.sum(axis=1))

    @cached_property
    def arriving(self) -> NDArray[np.bool_]:
        """Return (n,) whether each of ``responses`` is migrating to its actor, and cannot be moved."""
        return np.repeat(np.tile([False, False, True], len(self.sizes)), self.sizes.ravel())

    @cached_property
    def actors(self) -> tuple[ActorView, ...]:
        """Return the views of the actors, in the order of ``counts``."""
        return tuple(map(self.view_of, self.counts.actor.tolist()))

    def view_of(self, actor: int) -> ActorView:
        """Return the view of one actor, which is cheaper than all of ``actors``.

        Raises:
            KeyError: it is not running.
        """
        if actor not in self._places:
            raise KeyError(actor)
        k = self._places[actor]
        first, waiting, arriving, end = self._ends[3 * k : 3 * k + 4]
        responses, of = tuple(self.responses[first:end].tolist()), self.counts
        return ActorView(
            int(of.actor[k]), int(of.gpus[k]), int(of.assigned[k]), int(of.completed[k]), responses[: waiting - first],
            responses[waiting - first : arriving - first], responses[arriving - first :], int(of.free_slots[k]),
            float(of.free_kv_tokens[k]),
        )  # fmt: skip

    @cached_property
    def _places(self) -> dict[int, int]:
        return {actor: k for k, actor in enumerate(self.counts.actor.tolist())}

    @cached_property
    def _ends(self) -> list[int]:
        """Return [3 K + 1] the places in ``responses`` at which each part of each actor begins, and the end."""
        return [0, *self.sizes.ravel().cumsum().tolist()]

    @property
    def unfinished_count(self) -> int:
        """Return the number of responses that are not complete."""
        return len(self.complete) - int(np.count_nonzero(self.complete))

    @cached_property
    def context_tokens(self) -> int:
        """Return the prompt tokens and generated tokens of all unfinished responses together."""
        return int((self.prompt_tokens + self.generated_tokens)[~self.complete].sum())

    def context_of(self, response: int) -> int:
        """Return the prompt tokens and generated tokens of one response."""
        return int(self.prompt_tokens[response] + self.generated_tokens[response])

    @property
    def held_tokens(self) -> IntArray:
        """Return the (R,) KV tokens for which each response counts in the memory of its present or next actor.

        That is its reservation, or, under ``preempt``, its present context.
        """
        return self.prompt_tokens + self.generated_tokens if self.reserved_tokens is None else self.reserved_tokens


@dataclass(frozen=True)
class Trigger:
    """Condition on which a rule's ``decide`` is called again for an actor: the first of these that happens.

    Attributes:
        completions: this many completions of the actor, counted from its first; its next completion if there are as many
            already.
        time_s: this time, later than the ``now_s`` of the last call; at once if it has passed, never if infinite.
        step_completions: this many completions of the whole step, counted as for ``completions``.
    """

    completions: int | None = None
    time_s: float | None = None
    step_completions: int | None = None


@dataclass(frozen=True, eq=False)
class Triggers:
    """Triggers of all actors at once.

    Attributes:
        completions: (K,) ``Trigger.completions`` of each actor of the ``ActorCounts``, 0 for none; None: none for all.
        time_s, step_completions: as in ``Trigger``, of every actor.
    """

    completions: IntArray | None = None
    time_s: float | None = None
    step_completions: int | None = None

    def of(self, place: int) -> Trigger | None:
        """Return the trigger of one of the actors; None where it has none."""
        completions = None if self.completions is None else int(self.completions[place]) or None
        if completions is None and self.time_s is None and self.step_completions is None:
            return None
        return Trigger(completions, self.time_s, self.step_completions)


@dataclass(frozen=True)
class Move:
    """Move one response to ``to_actor`` at the next iteration boundary of its present actor.

    If that actor is full, the response waits in its queue for a slot and memory like any other response there. A rule can avoid
    this by checking ``free_slots`` and ``free_kv_tokens``; the shipped rules never order such a move.

    In two steps, its KV state is first copied while it decodes on. It leaves at the first iteration boundary after the copy is
    there, and only the tokens since are transferred then. A state that is recomputed, or is not in the batch, takes one step.
    So does every move on the wall clock, and where iterations are measured on the virtual clock.

    Attributes:
        two_step: True, False, or ``"auto"``: where the transfer takes longer than an iteration of its present actor.
    """

    response: int
    to_actor: int
    two_step: bool | str = field(default="auto", repr=False)


@dataclass(frozen=True)
class Cut:
    """Stop an actor at its next iteration boundary: its unfinished responses move as ``moves`` says, then it is released."""

    actor: int
    moves: tuple[Move, ...]


Decision = Move | Cut


class RuntimeRule(Protocol):
    """A runtime rule of a plan. Every step runs a deep copy of the rule, so a rule may keep state.

    The states that it is shown are snapshots: it may keep them, and what it keeps does not change.
    """

    @property
    def name(self) -> str:
        """Return the rule's name in traces and plots."""
        ...

    def next_trigger(self, view: ActorView) -> Trigger | None:
        """Return when to call ``decide`` next because of this actor; None for never."""
        ...

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        """Return the decisions for ``now_s``; an empty list changes nothing."""
        ...


@runtime_checkable
class TriggersTogether(Protocol):
    """A runtime rule that returns the triggers of all actors at once; then ``next_trigger`` is not called."""

    def next_triggers(self, counts: ActorCounts) -> Triggers:
        """Return when to call ``decide`` next because of each of these actors."""
        ...


def trigger_of(rule: TriggersTogether, view: ActorView) -> Trigger | None:
    """Return ``next_trigger`` of a rule that returns the triggers of all actors at once."""
    return rule.next_triggers(ActorCounts.of([view])).of(0)
