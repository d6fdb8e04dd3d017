"""``PoolBackend``: remote actors of a pool decode in parallel on the wall clock, and report what they did.

Nothing waits for an actor: a decision becomes orders (``orders.py``), and handed-over responses are sent on when they arrive. A
response may turn out to have been complete before the order to hand it over reached its actor. Then the completion is that
actor's, and the receiver expects one response less. An actor obeys its orders in order, so a response is in one actor only, or
in the answer of one. Where actors are lost, the step continues without them (``failure_handling.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhfless.engine.simulated.completions import Completions
from rlhfless.executor.distributed.actor_state import RemoteActorState
from rlhfless.executor.distributed.messages import ActorLost, ActorReport
from rlhfless.executor.distributed.orders import ActorOrders
from rlhfless.executor.distributed.work import PoolWork
from rlhfless.executor.step.dispatcher import Leaving, Reassignment, Taken
from rlhfless.executor.step.observation import KnownResponses
from rlhfless.executor.step.progress import OFTEN_S
from rlhfless.executor.step.record import Recompute
from rlhfless.executor.step.rule_driver import RuleDriver
from rlhfless.executor.step.step_state import RunningStep

Loss = tuple[RemoteActorState, ActorLost]


class PoolBackend:
    """The actors of a step on the wall clock; see ``rlhfless.executor.step.event_loop.Backend``.

    Attributes:
        losses: actors whose loss was reported and is not handled yet.
        cold_start_s: the longest cold start that was measured, in earlier steps or in this one.
    """

    def __init__(self, step: RunningStep[RemoteActorState], orders: ActorOrders, work: PoolWork) -> None:
        self.step, self.orders, self.work = step, orders, work
        self.losses: list[Loss] = []
        self.cold_start_s = orders.wall.cold_start_s
        self._reported_s = -math.inf

    def now_s(self) -> float:
        """See ``Backend``."""
        return self.orders.step_actors.now_s()

    def start(self) -> None:
        """See ``Backend``."""
        self.orders.begin()

    def going_on(self) -> bool:
        """See ``Backend``."""
        return bool(self.step.live or self.orders.ending or self.work.going_on())

    def events(self, driver: RuleDriver[RemoteActorState] | None) -> Sequence[RemoteActorState]:
        """See ``Backend``: waits for reports, which are of what ended before they came."""
        orders, completing = self.orders, list[RemoteActorState]()
        self.work.advance()
        if not self.going_on():  # the last thing that happened was in this process
            return completing
        for index, message in orders.step_actors.reports(self._patience_s(driver)):
            if self.work.heard(index, message):
                continue
            actor = self.step.live.get(index) or orders.ending.get(index)
            if actor is None or any(actor is lost for lost, _ in self.losses):  # it was lost: nothing that it says counts
                continue
            if isinstance(message, ActorReport) and message.ready_s is not None:
                version, wanted = message.weights_version, orders.wall.weights_version
                if version != wanted:
                    message = ActorLost(f"has weights of version {version}, not {wanted}")
            if isinstance(message, ActorLost):
                self.losses.append((actor, message))
            else:
                self._enter(actor, message)
                if message.completions:
                    completing.append(actor)
        if completing or self.now_s() >= self._reported_s + OFTEN_S:
            self._reported_s = self.now_s()
            if not completing and (self.step.live or self.work.going_on()):
                self.step.report(self._reported_s)
        return completing

    def known(self, now_s: float) -> Sequence[KnownResponses]:
        """See ``Backend``: actors as they were last reported, without responses that were assigned to others since. Responses
        that an actor has not reported yet count as migrating to it.
        """
        return [self._known_of(actor) for actor in self.step.live.values() if not actor.closing]

    def _known_of(self, actor: RemoteActorState) -> KnownResponses:
        own, leaving, admission = actor.responses, self.orders.leaving, actor.admission
        running = [r for r in actor.running if r in own and r not in leaving]
        waiting = [r for r in actor.waiting if r in own and r not in leaving]
        here = {*running, *waiting}
        responses = np.array([*running, *waiting, *(r for r in own if r not in here)], dtype=np.int64)
        slots, kv_tokens = admission.max_batch, admission.kv_capacity_tokens
        return KnownResponses(actor, responses, len(running), len(waiting), slots, kv_tokens)

    def release_done(self) -> None:
        """See ``Backend``."""
        self.orders.release_done()

    def stop_early(self) -> None:
        """See ``Backend``."""
        now_s = self.now_s()
        for actor in (*self.step.live.values(), *self.orders.ending.values()):
            if actor.remote is not None:
                self.orders.allocate(actor, max(now_s, actor.until_s))

    def close(self) -> None:
        """See ``Backend``: the pool owns the actors."""
        self.work.close()

    def has_ended(self, response: int) -> bool:
        """See ``TakesAndGives``."""
        return bool(self.step.complete[response])

    def take(self, now_s: float, sender: RemoteActorState, responses: Sequence[int] | None) -> Taken[RemoteActorState]:
        """See ``TakesAndGives``. Nothing is ordered yet; responses that are between actors just get another receiver."""
        step, all_of = self.step, sender.responses if responses is None else responses
        return Taken(sender, [Leaving(r, int(step.prompt_tokens[r] + step.observed_tokens[r]), True) for r in all_of])

    def hand_over(self, now_s: float, taken: Taken[RemoteActorState], orders: Sequence[Reassignment]) -> None:
        """See ``TakesAndGives``. Responses that are between actors leave already."""
        here = [order for order in orders if order.leaving.response not in self.orders.leaving]
        if here:
            with_kv = {order.leaving.response for order in here if order.with_kv}
            self.orders.take_off(taken.sender, [order.leaving.response for order in here], with_kv)

    def _patience_s(self, driver: RuleDriver[RemoteActorState] | None) -> float | None:
        """Return the seconds until the rule wants to be asked, an actor starts or one counts as silent."""
        orders = self.orders
        next_s = min(
            math.inf if driver is None else driver.next_time_s,
            orders.later[-1].start_s if orders.later else math.inf,
            self.work.next_time_s(),
            min((a.due_s for a in (*self.step.live.values(), *orders.ending.values())), default=math.inf),
        )
        return None if next_s == math.inf else max(0.0, next_s - self.now_s())

    def _enter(self, actor: RemoteActorState, report: ActorReport) -> None:
        step, orders = self.step, self.orders
        if report.ready_s is not None:
            up_s, synced_s = (max(actor.start_s, t) for t in report.ready_s)
            step.record.span(actor.holder, "start", actor.start_s, up_s)
            step.record.span(actor.holder, "sync", up_s, synced_s, bytes=report.weight_bytes or None)
            actor.ready, actor.until_s = True, synced_s
            self.cold_start_s = max(self.cold_start_s, up_s - actor.start_s)
            step.begin(synced_s)
        self._enter_spans(actor, report)
        if report.drafts_off is not None:
            step.record.event(report.time_s, "drafts_off", actor.holder, why=report.drafts_off)
        for response in report.again:
            step.record.recomputes.append(Recompute(report.time_s, response, orders.sender[response], actor.holder))
        for completion in report.completions:
            if orders.leaving.pop(completion.response, None) is not None:  # complete before the order to hand it over
                step.assign(completion.response, actor)
            del actor.responses[completion.response]
        if report.completions:
            step.publish([(actor, Completions.of(report.completions))])
        responses, counts = report.tokens
        step.observed_tokens[np.asarray(responses, dtype=np.int64)] = counts
        if report.ready_s is None:  # else it has not looked at what was given to it
            actor.running, actor.waiting = report.running, report.waiting
        if report.taken is not None:
            actor.answers -= 1
            orders.pass_on(actor, report.taken)
        if report.prefixes is not None:
            actor.answers -= 1
            orders.assign_prefixes(report.prefixes)
        if report.closed:
            del orders.ending[actor.index]
            orders.allocate(actor, report.time_s)
        actor.suspect, actor.due_s = False, self.now_s() + orders.silence_s(actor)

    def _enter_spans(self, actor: RemoteActorState, report: ActorReport) -> None:
        record, prefill_actor = self.step.record, self.step.plan.prefill_actor
        what: dict[str, Any]
        record.engine_spans(actor.holder, report.spans)
        actor.speed.observe(report)
        for copy in report.copies:  # in the foreground on both sides: each stands still while it copies
            if copy.response is None:
                source = "learner" if prefill_actor is None else self.orders.planned[prefill_actor].holder
                what = {"call": "prefixes"}
            else:
                source, what = self.orders.sender.get(copy.response, ""), {"response": copy.response}
            sender = actor.holder if copy.phase == "migrate" else source
            record.span(
                actor.holder, copy.phase, copy.start_s, copy.end_s,
                kv_tokens=float(copy.kv_tokens), bytes=copy.bytes, from_actor=sender, **what,
            )  # fmt: skip
        actor.until_s = max([actor.until_s, *(s.end_s for s in report.spans), *(c.end_s for c in report.copies)])
