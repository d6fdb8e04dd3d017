"""Carries out a rule's decisions on the virtual clock: takes responses off an actor and hands them over to their receivers.

Inputs: decisions, engines and transfer times. A decision takes effect at the actor's next iteration boundary. Completions of
the running iteration are entered with their own, later, time.
"""

from __future__ import annotations

import math

from rlhfless.engine.protocol import Progress, Request
from rlhfless.engine.simulated.completions import Completions
from rlhfless.engine.simulated.requests import changed
from rlhfless.executor.step.record import Recompute
from rlhfless.executor.step.rule_validation import check_all_go, check_decision, receiver_of
from rlhfless.executor.step.shared_links import NodeLinks
from rlhfless.executor.virtual.actors import VirtualActor
from rlhfless.executor.virtual.observation import VirtualViews
from rlhfless.executor.virtual.retiming import RetimingLog
from solver.model.latency import LatencyModel
from solver.model.runtime_rules import Cut, Decision, Move


class VirtualOrders(VirtualViews):
    """A step on the virtual clock that can carry out decisions.

    Attributes:
        log: the data for retiming the step, where engines keep journals.
        links: of nodes, that transfers share; None: transfers wait for their sender only.
    """

    log: RetimingLog
    links: NodeLinks | None

    def _take(self, actor: VirtualActor, progress: Progress) -> None:
        """Enter the iterations that an engine committed; completions stay pending until their time has come."""
        self.record.engine_spans(actor.holder, progress.spans)
        if progress.completions:
            completions = Completions.of(progress.completions)
            actor.pending += len(completions)
            self.pending.append((actor, completions))

    def _apply(self, now_s: float, decision: Decision) -> None:
        assert self.rule is not None
        check_decision(self.rule, decision, self.live, len(self.requests))
        if isinstance(decision, Cut):
            actor, moves = self.live[decision.actor], decision.moves
            taken, progress = actor.engine.cut(now_s)
            actor.closing, actor.trigger_completions, actor.trigger_time_s = True, None, math.inf
        else:
            moves = (decision,)
            if self._ended(decision.response):
                return
            actor = self.owner[decision.response]
            receiver_of(self.rule, decision, actor, self.live)
            self._note(now_s, actor)
            taken, progress = actor.engine.cut(now_s, [decision.response])
        self._take(actor, progress)
        boundary_s = max(actor.engine.clock_s, now_s)
        keeps = actor.index in self.log.journals
        spans, events = (len(self.record.spans), len(self.record.events)) if keeps else (0, 0)
        recomputes = len(self.record.recomputes)
        goes_to = {m.response: m.to_actor for m in moves}
        if isinstance(decision, Cut):
            check_all_go(self.rule, decision, [r.response for r in taken])
        self._record_decision(now_s, decision, actor, {r.response: goes_to[r.response] for r in taken})
        transfer_s = self._hand_over(actor, taken, goes_to, boundary_s)
        if keeps:
            self.log.handed(
                now_s, actor.index, boundary_s, {r.response: self.available_s[r.response] for r in taken}, transfer_s,
                range(spans, len(self.record.spans)), range(recomputes, len(self.record.recomputes)),
                range(events, len(self.record.events)),
            )  # fmt: skip
        self.record.moves += len(taken)
        actor.expecting -= len(taken)
        actor.assigned -= len(taken)
        actor.done_s = max(actor.done_s, boundary_s, actor.link_free_s if transfer_s else 0.0)

    def _ended(self, response: int) -> bool:
        """Return whether the response is complete or completes in the running iteration."""
        return bool(self.complete[response]) or any(
            (completions.responses == response).any() for _, completions in self.pending
        )

    def _hand_over(
        self, actor: VirtualActor, taken: list[Request], goes_to: dict[int, int], boundary_s: float
    ) -> dict[int, float]:
        """Move or recompute the KV state of ``taken``; returns the transfer times (seconds) in their order.

        An actor's link sends one transfer at a time, in the order in which they were ordered (as in
        ``solver.replanning.migrations`` and ``solver.prefix_sharing.kv_transfer``, receiving makes no link busy). It shares its
        node's link with other actors where node links are shared. A cache that is still being transferred is sent on once it
        has arrived.
        """
        transfers: dict[int, float] = {}
        handed_over: dict[int, list[Request]] = {}
        for request in taken:
            assert self.rule is not None
            receiver = receiver_of(self.rule, Move(request.response, goes_to[request.response]), actor, self.live)
            context = request.context_tokens
            move = request.kv is not None and self._moves_kv(actor, receiver, context)
            sent_s = boundary_s
            if move:
                start_s = max(boundary_s, actor.link_free_s, request.available_s)
                transfers[request.response] = transfer_s = actor.latency.transfer_s(context)
                sent_s = start_s + transfer_s
                if self.links is not None:
                    sent_s += self.links.delay_s(actor.plan.node, receiver.plan.node, start_s, transfer_s)
                actor.link_free_s = sent_s
                what = {
                    "kv_tokens": float(context), "bytes": _kv_bytes(request, actor.latency), "from_actor": actor.holder,
                    "response": request.response,
                }  # fmt: skip
                self.record.span(actor.holder, "migrate", start_s, sent_s, **what)
                self.record.span(receiver.holder, "transfer", start_s, sent_s, background=True, **what)
            elif request.generated_tokens:
                self.record.recomputes.append(Recompute(sent_s, request.response, actor.holder, receiver.holder))
            self.available_s[request.response] = sent_s
            passed_on = changed(request, available_s=sent_s, kv=request.kv if move else None)
            handed_over.setdefault(receiver.index, []).append(passed_on)
            self.owner[request.response] = receiver
            receiver.expecting += 1
            receiver.assigned += 1
        for index, requests in handed_over.items():
            self.live[index].engine.add(requests)
        return transfers


def _kv_bytes(request: Request, latency: LatencyModel) -> int | None:
    """Return the bytes of the request's KV state: measured where engines are real, else computed from the bytes per token; None
    where unknown.
    """
    real = getattr(request.kv, "nbytes", None)  # of a tensor; simulated engines export a mark
    if real is not None:
        return int(real)
    return round(request.context_tokens * latency.kv_bytes_per_token) or None
