"""Assigns responses to remote actors on the wall clock and sends them the orders that follow from plans and decisions.

Inputs: the plan, requests and decisions. Outputs: orders to actors. From the moment of a decision a response belongs to its
receiver, even while another actor still has it. An actor that has not started yet, or that waits for prefixes, gets no
requests: they are kept here until then.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlhfless.engine.protocol import Request
from rlhfless.executor.distributed.actor_state import RemoteActorState
from rlhfless.executor.distributed.failure_limits import Faults, Speed
from rlhfless.executor.distributed.messages import StepActors
from rlhfless.executor.step.actor_state import Allocation, with_prefixes, without_prompt
from rlhfless.executor.step.prefixes import prefixes_of
from rlhfless.executor.step.record import Recompute, StepRecord
from rlhfless.executor.step.rule_validation import check_all_go, check_decision, receiver_of
from rlhfless.executor.step.step_state import Step
from solver.model.errors import PlanningError
from solver.model.offers import Latencies, latency_of
from solver.model.plan import ActorPlan, Plan
from solver.model.runtime_rules import ActorView, Cut, Decision, Move, StepState
from solver.timing.evaluate import admission_of


class WallClockDispatch(Step[RemoteActorState]):
    """A step on the wall clock that can send orders to its actors.

    Attributes:
        latest: of responses that were handed over or restarted: their last request known here, without KV state.
        leaving: responses that an actor was ordered to hand over and has not yet: that actor.
        sender: of responses that were handed over: the actor that did it last.
        ending: actors that were ordered to close.
        later: actors that start later, the next one last; started: all actors started so far.

    Raises:
        PlanningError: a kind has no latency model, or a response does not name the prompt that the plan shares.
    """

    def __init__(
        self,
        plan: Plan,
        requests: Sequence[Request],
        step_actors: StepActors,
        latency: Latencies,
        record: StepRecord,
        admission: str,
        migration: str,
        faults: Faults,
        weights_version: int,
    ) -> None:
        super().__init__(plan, requests, record, migration, admission)
        self.step_actors, self.latency, self.admission, self.faults = step_actors, latency, admission, faults
        self.weights_version = weights_version
        self.longest_tokens = max((r.prompt_tokens + r.max_tokens for r in requests), default=0)
        self.latest: dict[int, Request] = {}
        self.leaving: dict[int, RemoteActorState] = {}
        self.sender: dict[int, str] = {}
        self.ending: dict[int, RemoteActorState] = {}
        self.later: list[RemoteActorState] = []
        self.started: list[RemoteActorState] = []
        for i, actor in enumerate(plan.actors):
            if (refusal := without_prompt(i, actor, self.requests)) is not None:
                raise PlanningError(refusal)
        self.planned = [self._remote(i, actor, record.start_s + actor.start_s) for i, actor in enumerate(plan.actors)]

    def _remote(self, index: int, plan: ActorPlan, start_s: float) -> RemoteActorState:
        model, count = latency_of(self.latency, plan.kind, len(plan.gpu_ids)), len(plan.responses)
        return RemoteActorState(
            index, plan, model, start_s, count, expecting=count, waiting=plan.responses, until_s=start_s,
            admission=admission_of(model, plan.max_batch, self.admission), speed=Speed(model),
            responses=dict.fromkeys(plan.responses),
        )  # fmt: skip

    # --- starting -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start the actors of the plan whose time has come, and the prefill that others wait for."""
        for actor in self.planned:
            self.live[actor.index] = actor
            self.owner.update(dict.fromkeys(actor.plan.responses, actor))
            actor.kept = [*with_prefixes(actor.plan, [self.requests[r] for r in actor.plan.responses])]
            actor.awaits = bool(actor.plan.prefixes) and self.plan.prefill is not None
            actor.closing = actor.index == self.plan.prefill_actor  # nothing but prefixes is for it
        prefill = self.plan.prefill_actor
        first = [a for a in self.planned if a.plan.start_s <= 0 or a.index == prefill]
        self.later = sorted((a for a in self.planned if a not in first), key=lambda a: -a.start_s)
        self._start(first)
        if self.plan.prefill is None:
            return
        prefixes = prefixes_of(self.plan, self.requests)
        receivers = {a.index: a.plan.prefixes for a in self.planned if a.awaits}
        if prefill is None:
            handles, done_s = self.step_actors.prefill(prefixes, receivers)
            self.plan = replace(self.plan, prefill=replace(self.plan.prefill, done_s=done_s - self.record.start_s))
            self._assign_prefixes(handles)
        else:
            actor = self.planned[prefill]
            assert actor.remote is not None
            actor.answers += 1
            actor.remote.prefill(prefixes, receivers)

    def _start(self, actors: Sequence[RemoteActorState]) -> None:
        """Start all these actors at once and send them the requests kept for them."""
        for actor, remote in zip(actors, self.step_actors.start([a.order(self.weights_version) for a in actors]), strict=True):
            actor.remote = remote
            self.started.append(actor)
            actor.due_s = self.step_actors.now_s() + self.faults.start_s(actor.latency)
            self._open(actor)

    def _open(self, actor: RemoteActorState) -> None:
        """Send the actor the requests kept for it, if it has started and waits for no prefixes."""
        if actor.remote is None or actor.awaits or actor.kept is None:
            return
        kept, actor.kept = actor.kept, None
        if kept:
            actor.remote.add(kept, actor.prefixes)
            self._expect(actor)

    def _assign_prefixes(self, handles: Mapping[int, Any]) -> None:
        """Let actors continue with the prefixes that arrived for them; without any they compute everything themselves."""
        for actor in [a for a in self.live.values() if a.awaits]:
            actor.awaits, actor.prefixes = False, handles.get(actor.index)
            assert actor.kept is not None
            if actor.prefixes is None:
                actor.kept = [replace(r, cached_tokens=0) for r in actor.kept]
            self._open(actor)

    # --- giving and taking --------------------------------------------------------------------------------------------

    def _send(self, receiver: RemoteActorState, requests: list[Request]) -> None:
        if receiver.kept is not None:
            receiver.kept += requests
            return
        assert receiver.remote is not None
        receiver.remote.add(requests)
        self._expect(receiver)

    def _take_off(self, actor: RemoteActorState, responses: Sequence[int], with_kv: Collection[int]) -> None:
        """Order the actor to hand over responses that belong to others already; requests that it was not sent yet go to them at
        once.
        """
        if actor.kept is not None:
            there = {r.response: r for r in actor.kept}
            actor.kept = [r for r in actor.kept if r.response not in responses]
            for response in responses:
                self._send(self.owner[response], [replace(there[response], cached_tokens=0, shares_prompt=False)])
            self.record.moves += len(responses)
            return
        assert actor.remote is not None
        self.leaving.update(dict.fromkeys(responses, actor))
        actor.answers += 1
        actor.remote.take_off(responses, with_kv)
        self._expect(actor)

    def _pass_on(self, sender: RemoteActorState, taken: Sequence[Request]) -> None:
        """Send responses that an actor handed over to their receivers."""
        for request in taken:
            response, receiver = request.response, self.owner[request.response]
            del self.leaving[response]
            self.sender[response] = sender.holder
            self.latest[response] = replace(request, kv=None)
            passed_on = request if sender.can_move_to(receiver) else self.latest[response]
            if passed_on.kv is None and passed_on.generated_tokens:
                self.record.recomputes.append(Recompute(self.step_actors.now_s(), response, sender.holder, receiver.holder))
            self._send(receiver, [passed_on])
        self.record.moves += len(taken)

    def _assign(self, response: int, receiver: RemoteActorState) -> None:
        """Assign the response to the receiver from now on."""
        before = self.owner[response]
        del before.responses[response]
        receiver.responses[response] = None
        self.owner[response] = receiver
        for actor, change in ((before, -1), (receiver, 1)):
            actor.expecting += change
            actor.assigned += change

    def _release_done(self) -> None:
        """Release the GPUs of actors with nothing left to do."""
        for actor in [a for a in self.live.values() if a.done]:
            del self.live[actor.index]
            if actor.remote is None:  # its time never came
                self.later.remove(actor)
                continue
            self.ending[actor.index] = actor
            actor.remote.close()
            self._expect(actor)

    def _allocate(self, actor: RemoteActorState, done_s: float) -> None:
        """Note that the actor's GPUs are allocated until ``done_s``."""
        role = "prefill" if actor.index == self.plan.prefill_actor else "decode"
        self.held.append(Allocation(actor.index, role, actor.plan, actor.start_s, done_s))

    def _expect(self, actor: RemoteActorState) -> None:
        """Note that the actor was sent an order: from now on, if not before, it must report."""
        if actor.due_s == math.inf:
            actor.due_s = self.step_actors.now_s() + self._silence_s(actor)

    def _silence_s(self, actor: RemoteActorState) -> float:
        """Return the seconds for which it may report nothing; infinite while it has nothing to report."""
        if actor.index in self.live and not actor.answers and (actor.kept is not None or not self._has_work(actor)):
            return math.inf
        joining = len(actor.responses) - len(actor.running)
        return self.faults.silence_s(
            actor.latency, actor.admission.max_batch, len(actor.responses), max(0, joining), self.longest_tokens
        )

    def _has_work(self, actor: RemoteActorState) -> bool:
        """Return whether any of its responses has arrived."""
        return any(r not in self.leaving for r in actor.responses)

    # --- what a rule may see ------------------------------------------------------------------------------------------

    def _query_rule(self) -> None:
        """Ask the rule, if there is one, for its next triggers."""
        if self.rule is not None:
            self._query_triggers(self._views())

    def _views(self) -> tuple[ActorView, ...]:
        """Return a view of every live actor."""
        return tuple(self._view(actor) for actor in self.live.values() if not actor.closing)

    def _view(self, actor: RemoteActorState) -> ActorView:
        """Return the actor as it was last reported, without responses that were assigned to others since. Responses that it has
        not reported yet count as arriving.
        """
        responses, leaving = actor.responses, self.leaving
        running = tuple(r for r in actor.running if r in responses and r not in leaving)
        waiting = tuple(r for r in actor.waiting if r in responses and r not in leaving)
        here = {*running, *waiting}
        arriving = tuple(r for r in responses if r not in here)
        free, gpus = max(0, actor.admission.max_batch - len(responses)), len(actor.plan.gpu_ids)
        free_kv = actor.admission.kv_capacity_tokens - self._weigh([*responses], self.observed_tokens)
        return ActorView(
            actor.index, gpus, actor.assigned, actor.completed, running, waiting, arriving, free, free_kv, actor.replaces
        )

    def _state(self, now_s: float) -> StepState:
        views, tokens = self._views(), self.observed_tokens.copy()
        complete, signals = self.complete.copy(), self.observed_signals.shown(self.complete)
        return StepState(now_s, views, tokens, complete, self.prompt_tokens, self.reserved_tokens, signals)

    # --- decisions ----------------------------------------------------------------------------------------------------

    def _apply(self, now_s: float, decision: Decision) -> None:
        """Send the orders of a decision. Responses that are between actors just get another receiver."""
        check_decision(self.rule, decision, self.live, len(self.requests))
        if isinstance(decision, Cut):
            actor, meant = self.live[decision.actor], {m.response: m.to_actor for m in decision.moves}
            check_all_go(self.rule, decision, actor.responses)
            goes_to = {r: meant[r] for r in actor.responses}
            actor.closing, actor.trigger_completions, actor.trigger_time_s = True, None, math.inf
        else:
            if self.complete[decision.response]:
                return
            actor, goes_to = self.owner[decision.response], {decision.response: decision.to_actor}
        self._record_decision(now_s, decision, actor, goes_to)
        with_kv = []
        leaving = [r for r in goes_to if r not in self.leaving]
        for response, to_actor in goes_to.items():
            receiver = receiver_of(self.rule, Move(response, to_actor), actor, self.live)
            context_tokens = int(self.prompt_tokens[response] + self.observed_tokens[response])
            if self._moves_kv(actor, receiver, context_tokens):
                with_kv.append(response)
            self._assign(response, receiver)
        if leaving:
            self._take_off(actor, leaving, set(leaving).intersection(with_kv))

    def _request(self, response: int) -> Request:
        """Return the last known request of the response, from which another actor can continue when its actor is lost."""
        return self.latest.get(response, self.requests[response])

    def _restart(self, responses: Sequence[int]) -> None:
        """Reset what is known of these responses to their requests, which have no signals until an actor reports new ones."""
        self.observed_signals.forget(responses)
        self.observed_tokens[list(responses)] = np.array([self._request(r).generated_tokens for r in responses], dtype=np.int64)
