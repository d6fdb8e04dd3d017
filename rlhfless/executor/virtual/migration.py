"""Hands responses over between actors on the virtual clock: transfer times of KV caches, and what they record.

Inputs: responses that were taken off an actor, their receivers, and the time of the sender's iteration boundary.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.requests import changed
from rlhfless.executor.step.dispatcher import Reassignment, Taken
from rlhfless.executor.step.record import Recompute
from rlhfless.executor.step.shared_links import NodeLinks
from rlhfless.executor.step.step_state import RunningStep
from rlhfless.executor.virtual.actors import VirtualActor
from rlhfless.executor.virtual.background_copies import BackgroundCopies, BackgroundCopy
from rlhfless.executor.virtual.retiming import RetimingLog
from solver.model.latency import LatencyModel

Marks = tuple[int, int, int]
"""Numbers of spans, events and recomputes in the record before a hand-over, where retiming needs them."""


class KvTransfers:
    """Transfers of a step on the virtual clock.

    An actor's link sends one transfer at a time, in the order in which they were ordered. Receiving makes no link busy (as in
    ``solver.replanning.migrations`` and ``solver.prefix_sharing.placement``). It shares its node's link with other actors
    where node links are shared. A cache that is still being transferred is sent on once it has arrived.

    Attributes:
        copies: KV states that are copied before their responses leave, or were.
        available_s: arrival time of each response that is being transferred to another actor.
        log: the data for retiming the step, where engines keep journals.
    """

    def __init__(self, step: RunningStep[VirtualActor], log: RetimingLog, links: NodeLinks | None) -> None:
        self.step, self.log, self.links = step, log, links
        self.copies = BackgroundCopies(links, self._context_of)
        self.available_s: dict[int, float] = {}
        self._arrivals: list[tuple[float, int]] = []  # a heap; responses that were sent on since are still in it

    def arrived(self, now_s: float) -> None:
        """Forget the transfers that have arrived by now."""
        arrivals, available_s = self._arrivals, self.available_s
        while arrivals and arrivals[0][0] <= now_s:
            at_s, response = heapq.heappop(arrivals)
            if available_s.get(response) == at_s:
                del available_s[response]
                self.step.owner[response].arriving -= 1

    def marks(self, sender: VirtualActor) -> Marks | None:
        """Return what the record has before a hand-over; None where it will not be retimed."""
        if sender.index not in self.log.journals:
            return None
        record = self.step.record
        return len(record.spans), len(record.events), len(record.recomputes)

    def copy(self, boundary_s: float, sender: VirtualActor, receivers: Mapping[int, VirtualActor]) -> None:
        """Begin to copy the KV states of running responses (by response: its receiver) at an iteration boundary."""
        for response, receiver in receivers.items():
            self.copies.begin(boundary_s, response, sender, receiver)
            sender.copied += 1
            receiver.arriving += 1

    def _context_of(self, actor: VirtualActor, response: int) -> int:
        responses, tokens, _ = actor.token_arrays()
        return int(self.step.prompt_tokens[response] + tokens[responses == response].sum())

    def end_copy(self, copy: BackgroundCopy, now_s: float) -> None:
        """Forget the copy of a response that has left its sender or is complete there."""
        self._stop_copy(copy, now_s)
        self.copies.forget(copy)
        copy.sender.copied -= 1
        copy.receiver.arriving -= 1

    def redirect(self, copy: BackgroundCopy, receiver: VirtualActor, now_s: float) -> None:
        """Note that a response which is being copied belongs to another receiver now; nothing more is copied."""
        self._stop_copy(copy, now_s)
        copy.receiver.arriving, receiver.arriving = copy.receiver.arriving - 1, receiver.arriving + 1
        copy.receiver, copy.start_s = receiver, math.inf

    def _stop_copy(self, copy: BackgroundCopy, now_s: float) -> None:
        """Send nothing more of a copy, and record what was sent while its response decoded on."""
        end_s = min(now_s, copy.there_s)
        self.copies.stop(copy, now_s)
        what = {
            "background": True, "kv_tokens": float(copy.kv_tokens), "from_actor": copy.sender.holder, "response": copy.response,
            "bytes": round(copy.kv_tokens * copy.sender.latency.kv_bytes_per_token) or None,
        }  # fmt: skip
        for holder, phase in ((copy.sender.holder, "migrate"), (copy.receiver.holder, "transfer")):
            self.step.record.span(holder, phase, copy.start_s, end_s, **what)

    def send(
        self,
        now_s: float,
        boundary_s: float,
        taken: Taken[VirtualActor],
        orders: Sequence[Reassignment],
        copied: BackgroundCopy | None = None,
    ) -> None:
        """Move or recompute the KV state of taken responses, and give them to the engines of their receivers.

        ``copied``: the copy of the only one, which is there; the tokens since are sent.
        """
        sender, record = taken.sender, self.step.record
        transfer_s: dict[int, float] = {}
        handed_over: dict[int, tuple[VirtualActor, list[Request]]] = {}
        for order in orders:
            receiver, sent_s = order.receiver, boundary_s
            request: Request = order.leaving.what
            if order.with_kv:
                there = 0 if copied is None else copied.kv_tokens
                sent_s, transfer_s[request.response] = self._move(boundary_s, sender, receiver, request, there)
            elif request.generated_tokens:
                record.recomputes.append(Recompute(sent_s, request.response, sender.holder, receiver.holder))
            if request.response in self.available_s:
                sender.arriving -= 1
            receiver.arriving += 1
            self.available_s[request.response] = sent_s
            heapq.heappush(self._arrivals, (sent_s, request.response))
            passed_on = changed(request, available_s=sent_s, kv=request.kv if order.with_kv else None)
            handed_over.setdefault(receiver.index, (receiver, []))[1].append(passed_on)
        for receiver, requests in handed_over.values():
            receiver.engine.add(requests)
        if taken.marks is not None:
            spans, events, recomputes = taken.marks
            self.log.handed(
                now_s, sender.index, boundary_s, {o.leaving.response: self.available_s[o.leaving.response] for o in orders},
                transfer_s, range(spans, len(record.spans)), range(recomputes, len(record.recomputes)),
                range(events, len(record.events)),
            )  # fmt: skip
        record.moves += len(orders)
        sender.done_s = max(sender.done_s, boundary_s, sender.link_free_s if transfer_s else 0.0)

    def _move(
        self, boundary_s: float, sender: VirtualActor, receiver: VirtualActor, request: Request, there: int
    ) -> tuple[float, float]:
        """Send a KV cache, but for its first tokens that are ``there``, over the sender's link; returns when it arrives, and
        the seconds that it takes alone.
        """
        context = request.context_tokens - there
        start_s = max(boundary_s, sender.link_free_s, request.available_s)
        transfer_s = sender.latency.transfer_s(context)
        sent_s = start_s + transfer_s
        if self.links is not None:
            sent_s += self.links.delay_s(sender.plan.node, receiver.plan.node, start_s, transfer_s)
        sender.link_free_s = sent_s
        self.copies.link_busy(sender, start_s, sent_s)
        what = {
            "kv_tokens": float(context), "bytes": _kv_bytes(request, sender.latency, context), "from_actor": sender.holder,
            "response": request.response,
        }  # fmt: skip
        self.step.record.span(sender.holder, "migrate", start_s, sent_s, **what)
        self.step.record.span(receiver.holder, "transfer", start_s, sent_s, background=True, **what)
        return sent_s, transfer_s


def _kv_bytes(request: Request, latency: LatencyModel, kv_tokens: int) -> int | None:
    """Return the bytes of the request's last KV tokens: measured where engines are real, else computed from the bytes per
    token; None where unknown.
    """
    real = getattr(request.kv, "nbytes", None)  # of a tensor; simulated engines export a mark
    if real is not None:
        return int(real) * kv_tokens // request.context_tokens
    return round(kv_tokens * latency.kv_bytes_per_token) or None
