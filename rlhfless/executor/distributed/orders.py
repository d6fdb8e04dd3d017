"""Sends orders to the remote actors of a step: to start, to decode requests, to hand responses over, to close.

From the moment of a decision a response belongs to its receiver, even while another actor still has it. An actor that has not
started yet, or that waits for prefixes, gets no requests: they are kept here until then. Nothing here waits for an actor.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlhfless.engine.protocol import Request
from rlhfless.executor.distributed.actor_state import RemoteActorState
from rlhfless.executor.distributed.failure_limits import Faults, Speed
from rlhfless.executor.distributed.messages import Add, Close, ComputePrefixes, TakeOff
from rlhfless.executor.distributed.step_actors import StepActors
from rlhfless.executor.step.actor_state import Allocation, with_prefixes, without_prompt
from rlhfless.executor.step.prefixes import prefixes_of
from rlhfless.executor.step.record import Recompute
from rlhfless.executor.step.step_state import RunningStep
from solver.lengths.remaining import RemainingLengths
from solver.model.errors import PlanningError
from solver.model.offers import latency_of
from solver.model.plan import ActorPlan
from solver.timing.evaluate import admission_of


@dataclass(frozen=True)
class WallOptions:
    """What the wall clock needs beyond ``StepOptions``.

    Attributes:
        faults: how actors that die, hang or are slow are handled.
        forecast: of the lengths of all responses, for re-planning when actors are lost; None learns from the step itself.
        weights_version: with which every actor decodes.
        cold_start_s: the longest cold start in earlier steps. When an actor is lost, its replacement is planned to take as
            long, whatever the latency model says.
    """

    faults: Faults = Faults()  # noqa: RUF009 (frozen)
    forecast: RemainingLengths | None = None
    weights_version: int = 0
    cold_start_s: float = 0.0


class ActorOrders:
    """Orders of a step to its remote actors, and what is between them.

    Attributes:
        latest: of responses that were handed over or restarted: their last request known here, without KV state.
        leaving: responses that an actor was ordered to hand over and has not yet: that actor.
        sender: of responses that were handed over: the actor that did it last.
        planned: the actors of the plan; started: all actors started so far.
        later: actors that start later, the next one last; ending: actors that were ordered to close.

    Raises:
        PlanningError: a kind has no latency model, or a response does not name the prompt that the plan shares.
    """

    def __init__(self, step: RunningStep[RemoteActorState], step_actors: StepActors[Any], wall: WallOptions) -> None:
        self.step, self.step_actors, self.wall = step, step_actors, wall
        self.longest_tokens = max((r.prompt_tokens + r.max_tokens for r in step.requests), default=0)
        self.latest: dict[int, Request] = {}
        self.leaving: dict[int, RemoteActorState] = {}
        self.sender: dict[int, str] = {}
        self.ending: dict[int, RemoteActorState] = {}
        self.later: list[RemoteActorState] = []
        self.started: list[RemoteActorState] = []
        for i, actor in enumerate(step.plan.actors):
            if (refusal := without_prompt(i, actor, step.requests)) is not None:
                raise PlanningError(refusal)
        start_s = step.record.start_s
        self.planned = [self.remote(i, actor, start_s + actor.start_s) for i, actor in enumerate(step.plan.actors)]

    def remote(self, index: int, plan: ActorPlan, start_s: float) -> RemoteActorState:
        """Return the state of an actor that is started at ``start_s``."""
        options = self.step.options
        model, count = latency_of(options.latency, plan.kind, len(plan.gpu_ids)), len(plan.responses)
        return RemoteActorState(
            index, plan, model, start_s, count, expecting=count, waiting=plan.responses, until_s=start_s,
            admission=admission_of(model, plan.max_batch, options.admission), speed=Speed(model),
            responses=dict.fromkeys(plan.responses),
        )  # fmt: skip

    # --- starting -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the actors of the plan whose time has come, and the prefill that others wait for."""
        for actor in self.planned:
            self.step.live[actor.index] = actor
            self.step.owner.update(dict.fromkeys(actor.plan.responses, actor))
            actor.kept = [*with_prefixes(actor.plan, [self.step.requests[r] for r in actor.plan.responses])]
            actor.awaits = bool(actor.plan.prefixes) and self.step.plan.prefill is not None
            actor.closing = actor.index == self.step.plan.prefill_actor  # nothing but prefixes is for it
        prefill = self.step.plan.prefill_actor
        first = [a for a in self.planned if a.plan.start_s <= 0 or a.index == prefill]
        self.later = sorted((a for a in self.planned if a not in first), key=lambda a: -a.start_s)
        self.start(first)
        if self.step.plan.prefill is None:
            return
        prefixes = prefixes_of(self.step.plan, self.step.requests)
        receivers = {a.index: a.plan.prefixes for a in self.planned if a.awaits}
        if prefill is None:
            handles, done_s = self.step_actors.prefill(prefixes, receivers)
            self.step.plan = replace(
                self.step.plan, prefill=replace(self.step.plan.prefill, done_s=done_s - self.step.record.start_s)
            )
            self.assign_prefixes(handles)
        else:
            actor = self.planned[prefill]
            assert actor.remote is not None
            actor.answers += 1
            names = {index: self.step_actors.new_name() for index in receivers}
            actor.remote.send(ComputePrefixes(prefixes, receivers, names))

    def start(self, actors: Sequence[RemoteActorState]) -> None:
        """Start all these actors at once and send them the requests kept for them."""
        for actor, remote in zip(
            actors, self.step_actors.start([a.order(self.wall.weights_version) for a in actors]), strict=True
        ):
            actor.remote = remote
            self.started.append(actor)
            actor.due_s = self.step_actors.now_s() + self.wall.faults.start_s(actor.latency)
            self.open(actor)

    def open(self, actor: RemoteActorState) -> None:
        """Send the actor the requests kept for it, if it has started and waits for no prefixes."""
        if actor.remote is None or actor.awaits or actor.kept is None:
            return
        kept, actor.kept = actor.kept, None
        if kept:
            actor.remote.send(Add(kept, actor.prefixes))
            self.expect(actor)

    def assign_prefixes(self, handles: Mapping[int, Any]) -> None:
        """Let actors continue with the prefixes that arrived for them; without any they compute everything themselves."""
        for actor in [a for a in self.step.live.values() if a.awaits]:
            actor.awaits, actor.prefixes = False, handles.get(actor.index)
            assert actor.kept is not None
            if actor.prefixes is None:
                actor.kept = [replace(r, cached_tokens=0) for r in actor.kept]
            self.open(actor)

    def start_later(self, now_s: float) -> None:
        """Start the actors whose time has come."""
        while self.later and self.later[-1].start_s <= now_s:
            self.start([self.later.pop()])

    def starts_later(self, gpu_ids: Sequence[int]) -> bool:
        """Return whether an actor of the plan whose time has not come has exactly these GPUs."""
        return any(actor.plan.gpu_ids == gpu_ids for actor in self.later)

    # --- giving and taking --------------------------------------------------------------------------------------------

    def send(self, receiver: RemoteActorState, requests: list[Request]) -> None:
        """Send requests to an actor, or keep them until it can get some."""
        if receiver.kept is not None:
            receiver.kept += requests
            return
        assert receiver.remote is not None
        receiver.remote.send(Add(requests))
        self.expect(receiver)

    def take_off(self, actor: RemoteActorState, responses: Sequence[int], with_kv: Collection[int]) -> None:
        """Order the actor to hand over responses that belong to others already; requests that it was not sent yet go to them at
        once.
        """
        if actor.kept is not None:
            there = {r.response: r for r in actor.kept}
            actor.kept = [r for r in actor.kept if r.response not in responses]
            for response in responses:
                self.send(self.step.owner[response], [replace(there[response], cached_tokens=0, shares_prompt=False)])
            self.step.record.moves += len(responses)
            return
        assert actor.remote is not None
        self.leaving.update(dict.fromkeys(responses, actor))
        actor.answers += 1
        actor.remote.send(TakeOff(responses, {r: self.step_actors.new_name() for r in sorted(with_kv)}))
        self.expect(actor)

    def pass_on(self, sender: RemoteActorState, taken: Sequence[Request]) -> None:
        """Send responses that an actor handed over to their receivers."""
        for request in taken:
            response, receiver = request.response, self.step.owner[request.response]
            del self.leaving[response]
            self.sender[response] = sender.holder
            self.latest[response] = replace(request, kv=None)
            passed_on = request if sender.can_move_to(receiver) else self.latest[response]
            if passed_on.kv is None and passed_on.generated_tokens:
                self.step.record.recomputes.append(
                    Recompute(self.step_actors.now_s(), response, sender.holder, receiver.holder)
                )
            self.send(receiver, [passed_on])
        self.step.record.moves += len(taken)

    def release_done(self) -> None:
        """Release the GPUs of actors with nothing left to do."""
        for actor in [a for a in self.step.live.values() if a.done]:
            del self.step.live[actor.index]
            if actor.remote is None:  # its time never came
                self.later.remove(actor)
                continue
            self.ending[actor.index] = actor
            actor.remote.send(Close())
            self.expect(actor)

    def allocate(self, actor: RemoteActorState, done_s: float) -> None:
        """Note that the actor's GPUs are allocated until ``done_s``."""
        role = "prefill" if actor.index == self.step.plan.prefill_actor else "decode"
        self.step.held.append(Allocation(actor.index, role, actor.plan, actor.start_s, done_s))

    def expect(self, actor: RemoteActorState) -> None:
        """Note that the actor was sent an order: from now on, if not before, it must report."""
        if actor.due_s == math.inf:
            actor.due_s = self.step_actors.now_s() + self.silence_s(actor)

    def silence_s(self, actor: RemoteActorState) -> float:
        """Return the seconds for which it may report nothing; infinite while it has nothing to report."""
        if actor.index in self.step.live and not actor.answers and (actor.kept is not None or not self._has_work(actor)):
            return math.inf
        joining = len(actor.responses) - len(actor.running)
        return self.wall.faults.silence_s(
            actor.latency, actor.admission.max_batch, len(actor.responses), max(0, joining), self.longest_tokens
        )

    def _has_work(self, actor: RemoteActorState) -> bool:
        """Return whether any of its responses has arrived."""
        return any(r not in self.leaving for r in actor.responses)

    def request(self, response: int) -> Request:
        """Return the last known request of the response, from which another actor can continue when its actor is lost."""
        return self.latest.get(response, self.step.requests[response])

    def restart(self, responses: Sequence[int]) -> None:
        """Reset what is known of these responses to their requests."""
        self.step.observed_tokens[list(responses)] = np.array(
            [self.request(r).generated_tokens for r in responses], dtype=np.int64
        )
