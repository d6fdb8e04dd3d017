"""Runs a plan on the wall clock: actors decode in parallel, each where it is, and this loop hears of it.

Knows plans, rules and remote actors; nothing of processes, devices or engines. What a rule sees at ``now_s`` is what has been
reported by then. Nobody waits for anybody: a decision becomes orders to the actors, and what they hand over is passed on when
it arrives. From the decision on a response belongs to its receiver; if it turns out to have been complete before the order
reached its actor, the completion is that actor's, and the receiver expects one less. An actor obeys its orders in order, so a
response is with one actor only, or in the answer of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlhfless.engine.columns import Completions
from rlhfless.engine.protocol import Request
from rlhfless.executor.actors import Actor, Held, with_prefixes, without_prompt
from rlhfless.executor.billing import bill
from rlhfless.executor.record import StepRecord
from rlhfless.executor.remote import Crew, Order, RemoteActor, Report
from rlhfless.executor.step import Step
from solver.admission import Admission
from solver.cluster import Cluster, MixedCluster
from solver.errors import PlanningError
from solver.evaluate import admission_of
from solver.objective import StepRest
from solver.offers import Latencies, latency_of
from solver.plan import Plan
from solver.rules import ActorView, Cut, Decision, StepState


@dataclass
class Remote(Actor):
    """An actor of the plan on the wall clock."""

    admission: Admission = field(kw_only=True)
    remote: RemoteActor = field(kw_only=True)
    own: dict[int, None] = field(default_factory=dict)  # responses with it or on their way to it, in order of arrival
    answers: int = 0  # that it owes

    @property
    def done(self) -> bool:
        """Whether nothing is left that it could do."""
        return not self.own and not self.answers


class WallStep(Step[Remote]):
    """One step of a plan on the wall clock.

    Args:
        crew: where its actors run.
        latency, cluster, record, rest, admission, migration: see ``rlhfless.executor.run_step``.

    Raises:
        PlanningError: a kind has no latency model, or the plan asks for what remote actors cannot do; nothing was started.
    """

    def __init__(
        self,
        plan: Plan,
        requests: Sequence[Request],
        crew: Crew,
        latency: Latencies,
        cluster: Cluster | MixedCluster,
        record: StepRecord,
        rest: StepRest,
        admission: str,
        migration: str,
    ) -> None:
        super().__init__(plan, requests, record, migration)
        self.crew, self.cluster, self.rest = crew, cluster, rest
        self.leaving: dict[int, Remote] = {}  # responses that an actor was told to hand over and has not yet: that actor
        self.sender: dict[int, str] = {}  # of responses that were handed over: who did it last
        self.ending: dict[int, Remote] = {}  # actors that were told to close
        if (refusal := refuses(plan, self.requests)) is not None:
            raise PlanningError(refusal)
        models = [latency_of(latency, actor.kind, len(actor.gpu_ids)) for actor in plan.actors]
        self.orders = [
            Order(i, actor, model, admission_of(model, actor.max_batch, admission))
            for i, (actor, model) in enumerate(zip(plan.actors, models, strict=True))
        ]

    def run(self) -> None:
        """Until every response is complete and every actor has given its GPUs back.

        Raises:
            ActorError: an actor died or failed; the crew still holds the others.
        """
        self._start()
        self._release_done()
        self._ask_triggers(self.record.start_s)
        while self.live or self.ending:
            asked_s = min((a.asked_time_s for a in self.live.values()), default=math.inf)
            timeout_s = None if asked_s == math.inf else max(0.0, asked_s - self.crew.now_s())
            reached = False
            for index, report in self.crew.reports(timeout_s):
                reached |= self._take(index, report)
            self._release_done()
            now_s = self.crew.now_s()
            if self.rule is not None and self.live and (reached or self._timed(now_s)):
                state = self._state(now_s)
                decisions = self.rule.decide(now_s, state)
                for decision in decisions:
                    self._apply(now_s, decision)
                self._release_done()
                self._ask_triggers(now_s, None if decisions else state.actors)
        bill(self.record, self.plan, self.held, self.cluster, self.rest)

    def _start(self) -> None:
        for order, remote in zip(self.orders, self.crew.start(self.orders), strict=True):
            plan, count = order.plan, len(order.plan.responses)
            actor = Remote(
                order.index, plan, order.latency, self.record.start_s, count, expecting=count,
                waiting=plan.responses, admission=order.admission, remote=remote, own=dict.fromkeys(plan.responses),
            )  # fmt: skip
            self.live[order.index] = actor
            self.owner.update(dict.fromkeys(plan.responses, actor))
            remote.add(with_prefixes(plan, [self.requests[r] for r in plan.responses]))

    # --- what actors report -------------------------------------------------------------------------------------------

    def _take(self, index: int, report: Report) -> bool:
        """Enter a report; returns whether the rule wants to be asked because of it."""
        actor = self.live[index] if index in self.live else self.ending[index]
        if report.ready_s is not None:
            up_s, synced_s = (max(actor.start_s, t) for t in report.ready_s)
            self.record.span(actor.holder, "start", actor.start_s, up_s)
            self.record.span(actor.holder, "sync", up_s, synced_s)
        self.record.engine_spans(actor.holder, report.spans)
        for copy in report.copies:  # in the foreground on both sides: each stands still while it copies
            sender = actor.holder if copy.phase == "migrate" else self.sender[copy.response]
            self.record.span(
                actor.holder, copy.phase, copy.start_s, copy.end_s,
                kv_tokens=float(copy.kv_tokens), bytes=copy.bytes, from_actor=sender, response=copy.response,
            )  # fmt: skip
        reached = False
        for completion in report.completions:
            if self.leaving.pop(completion.response, None) is not None:  # it was complete before the order to hand it over
                self._give(completion.response, actor)
            del actor.own[completion.response]
        if report.completions:
            reached = self._enter([(actor, Completions.of(report.completions))])
        responses, counts = report.tokens
        self.known_tokens[np.asarray(responses, dtype=np.int64)] = counts
        if report.ready_s is None:  # else it has not looked at what was given to it
            actor.running, actor.waiting = report.running, report.waiting
        if report.taken is not None:
            actor.answers -= 1
            self._pass_on(actor, report.taken)
        if report.closed:
            del self.ending[index]
            self.held.append(Held(index, "decode", actor.plan, actor.start_s, report.time_s))
        return reached

    def _pass_on(self, sender: Remote, taken: Sequence[Request]) -> None:
        """Give what an actor handed over to those it is meant for."""
        for request in taken:
            response, receiver = request.response, self.owner[request.response]
            del self.leaving[response]
            self.sender[response] = sender.holder
            receiver.remote.add([request if sender.can_move_to(receiver) else replace(request, kv=None)])
        self.record.moves += len(taken)

    def _release_done(self) -> None:
        """Actors with nothing left to do give their GPUs back."""
        for actor in [a for a in self.live.values() if a.done]:
            del self.live[actor.index]
            self.ending[actor.index] = actor
            actor.remote.close()

    # --- what a rule may see ------------------------------------------------------------------------------------------

    def _views(self, now_s: float) -> tuple[ActorView, ...]:
        return tuple(self._view(actor) for actor in self.live.values() if not actor.closing)

    def _view(self, actor: Remote) -> ActorView:
        """As it was last reported, without what was meant for others since; what it has not seen yet is arriving."""
        own, leaving = actor.own, self.leaving
        running = tuple(r for r in actor.running if r in own and r not in leaving)
        waiting = tuple(r for r in actor.waiting if r in own and r not in leaving)
        here = {*running, *waiting}
        arriving = tuple(r for r in own if r not in here)
        free, gpus = max(0, actor.admission.max_batch - len(own)), len(actor.plan.gpu_ids)
        return ActorView(actor.index, gpus, actor.assigned, actor.completed, running, waiting, arriving, free)

    def _state(self, now_s: float) -> StepState:
        return StepState(now_s, self._views(now_s), self.known_tokens.copy(), self.complete.copy(), self.prompt_tokens)

    # --- decisions ----------------------------------------------------------------------------------------------------

    def _apply(self, now_s: float, decision: Decision) -> None:
        """Order what was decided. Responses that are between actors just get another receiver."""
        if isinstance(decision, Cut):
            actor, meant = self.live[decision.actor], {m.response: m.to_actor for m in decision.moves}
            lost = [r for r in actor.own if r not in meant]
            assert not lost, f"rule {self.plan.rule} cuts actor {actor.index} but says not where responses {lost} go"
            goes_to = {r: meant[r] for r in actor.own}
            actor.closing, actor.asked_at, actor.asked_time_s = True, None, math.inf
        else:
            if self.complete[decision.response]:
                return
            actor, goes_to = self.owner[decision.response], {decision.response: decision.to_actor}
        self.record.event(now_s, "cut" if isinstance(decision, Cut) else "move", actor.holder, responses=len(goes_to))
        with_kv = []
        asked = [r for r in goes_to if r not in self.leaving]
        for response, to_actor in goes_to.items():
            receiver = self.live[to_actor]
            assert receiver is not actor, "a response must move to another actor"
            assert not receiver.closing, "a response must move to an actor that goes on"
            known = int(self.prompt_tokens[response] + self.known_tokens[response])
            if self._moves_kv(actor, receiver, known):
                with_kv.append(response)
            self._give(response, receiver)
        if asked:
            self.leaving.update(dict.fromkeys(asked, actor))
            actor.answers += 1
            actor.remote.cut(asked, set(asked).intersection(with_kv))

    def _give(self, response: int, receiver: Remote) -> None:
        """The response is the receiver's from now on."""
        before = self.owner[response]
        del before.own[response]
        receiver.own[response] = None
        self.owner[response] = receiver
        for actor, change in ((before, -1), (receiver, 1)):
            actor.expecting += change
            actor.assigned += change


def refuses(plan: Plan, requests: Sequence[Request]) -> str | None:
    """Why the plan cannot run on the wall clock; None when it can."""
    for i, actor in enumerate(plan.actors):
        if actor.prefixes or i == plan.prefill_actor:
            does = "receives prefixes" if actor.prefixes else "computes prefixes for others"
            return (
                f"actor {i} of the plan {does}, which works on the virtual clock only; run a plan without deduplicated prefill"
            )
        if actor.start_s > 0:
            late = f"actor {i} of the plan starts {actor.start_s:g} s after the step"
            return f"{late}, which works on the virtual clock only; let every actor start with the step"
        if (refusal := without_prompt(i, actor, requests)) is not None:
            return refusal
    return None
