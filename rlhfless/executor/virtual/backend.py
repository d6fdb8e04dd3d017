"""``VirtualBackend``: the engines of this process on one causal time line.

Engines commit iterations that end at or before a horizon, the earliest moment at which a rule may want to be asked. A decision
takes effect at the actor's next iteration boundary: the engine runs ahead to it, and completions of that iteration stay pending
until their own, later, time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from rlhfless.engine.protocol import Progress, SupportsDrafts
from rlhfless.engine.simulated.completions import Completions
from rlhfless.executor.step.actor_state import Allocation
from rlhfless.executor.step.dispatcher import Leaving, Reassignment, Taken
from rlhfless.executor.step.rule_driver import RuleDriver
from rlhfless.executor.step.step_state import RunningStep
from rlhfless.executor.virtual.actors import VirtualActor
from rlhfless.executor.virtual.background_copies import BackgroundCopy
from rlhfless.executor.virtual.event_times import EventTimes
from rlhfless.executor.virtual.migration import KvTransfers
from rlhfless.executor.virtual.progress_pacing import ProgressPacer
from rlhfless.system.cleanup import clean_up


class VirtualBackend:
    """The actors of a step on the virtual clock; see ``rlhfless.executor.step.event_loop.Backend``.

    Args:
        live: its actors, which have their requests already.
        pace: of progress callbacks where no rule is asked; None where there are none.

    Attributes:
        pending: completions that are not published yet, with their actors.
        changed: actors whose counts have changed since an observer has last looked.
    """

    def __init__(
        self,
        step: RunningStep[VirtualActor],
        live: Mapping[int, VirtualActor],
        transfers: KvTransfers,
        pace: ProgressPacer | None,
    ) -> None:
        self.step, self.transfers, self._pace = step, transfers, pace
        step.live.update(live)
        self.pending: list[tuple[VirtualActor, Completions]] = []
        self.changed = transfers.changed
        self.changed.update(live)
        self._reserved = None if step.plan.rule is None else step.reserved_tokens  # what a rule's views of memory need
        self._now_s = step.record.start_s
        self._maybe_done = set(live)  # actors that have had completions, or lost responses, since the last release
        self._times = EventTimes(step.live, lazy=step.plan.rule is not None and step.options.on_progress is None)

    def now_s(self) -> float:
        """See ``Backend``; infinite once nothing but the end is waited for."""
        return self._now_s

    def start(self) -> None:
        """See ``Backend``. Engines have started already; actors without work are done as soon as they are ready."""
        reserved = self._reserved
        for actor in self.step.live.values():
            self.step.owner.update(dict.fromkeys(actor.plan.responses, actor))
            if reserved is not None:
                actor.reserved_tokens = int(reserved[list(actor.plan.responses)].sum())
            if actor.expecting == 0:
                actor.done_s = actor.engine.clock_s
        self.step.begin(min((actor.ready_s for actor in self.step.live.values()), default=self._now_s))

    def going_on(self) -> bool:
        """See ``Backend``."""
        return bool(self.step.live or self.pending)

    def events(self, driver: RuleDriver[VirtualActor] | None) -> Sequence[VirtualActor]:
        """See ``Backend``."""
        self._now_s = self._horizon(driver)
        for actor in self._times.reaching(self._now_s):
            progress = actor.engine.advance(self._now_s)
            self._enter(actor, progress)
            if self._times.leaves_alone(actor):
                self._times.advanced(actor, self._now_s, len(progress.completions))
        if self._pace is not None:
            self._pace.came(self._now_s)
        completing = self._publish()
        if not completing and self._now_s < math.inf:
            self.step.report(self._now_s)
        if self.transfers.copies.next_s <= self._now_s < math.inf:
            self._complete_copies()
        return completing

    def release_done(self) -> None:
        """See ``Backend``. Time that an engine needed to prepare shapes is recorded and not charged; so is why it drafts no
        more.
        """
        live = self.step.live
        done = [live[i] for i in sorted(self._maybe_done) if i in live and live[i].expecting == live[i].copied == 0]
        self._maybe_done.clear()
        for actor in sorted(done, key=lambda a: a.done_s):
            self.changed.add(actor.index)
            actor.engine.close()
            journal = self.transfers.log.journals.get(actor.index)
            if journal is not None and journal.prepare_s > 0:
                self.step.record.event(actor.start_s, "capture", actor.holder, seconds=journal.prepare_s)
            if isinstance(actor.engine, SupportsDrafts) and (why := actor.engine.drafts_off) is not None:
                self.step.record.event(actor.done_s, "drafts_off", actor.holder, why=why)
            del self.step.live[actor.index]
            self.step.held.append(Allocation(actor.index, "decode", actor.plan, actor.start_s, actor.done_s))

    def stop_early(self) -> None:
        """See ``Backend``: actors hold their GPUs until the last time at which they did anything."""
        step = self.step
        for actor in step.live.values():
            self.catch_up(actor)
        step.record.enter([(actor.holder, completions) for actor, completions in self.pending])
        ends: dict[str, float] = {}
        for row in step.record.spans:
            ends[row["holder"]] = max(row["end_s"], ends.get(row["holder"], -math.inf))
        released = {allocation.number for allocation in step.held}
        for actor in [a for i, a in step.live.items() if i not in released]:
            until_s = max(actor.start_s, actor.done_s, ends.get(actor.holder, -math.inf))
            step.held.append(Allocation(actor.index, "decode", actor.plan, actor.start_s, until_s))

    def close(self) -> None:
        """See ``Backend``."""
        clean_up(*(actor.engine.close for actor in self.step.live.values()))

    def catch_up(self, actor: VirtualActor) -> None:
        """Commit the iterations of an engine that was left alone, up to now; none of them has completions."""
        if actor.caught_up_s < self._now_s < math.inf and self._times.leaves_alone(actor):
            actor.caught_up_s = self._now_s
            self._enter(actor, actor.engine.advance(self._now_s))

    def has_ended(self, response: int) -> bool:
        """See ``TakesAndGives``."""
        return bool(self.step.complete[response]) or any((c.responses == response).any() for _, c in self.pending)

    def batch(self, now_s: float, sender: VirtualActor) -> Mapping[int, int]:
        """Return the responses whose KV state is in the actor's batch, with the context tokens that are known by now.

        A response that is being copied to another actor is not among them.
        """
        self.catch_up(sender)
        if sender.engine.clock_s <= now_s:
            self.note_tokens(sender)
        step, copies = self.step, self.transfers.copies
        running = [r for r in sender.engine.running() if r not in copies]
        return {r: int(step.prompt_tokens[r] + step.observed_tokens[r]) for r in running}

    def copy(self, now_s: float, sender: VirtualActor, moves: Mapping[int, VirtualActor]) -> Collection[int]:
        """Begin to copy KV states (response to receiver) as of the engine's next iteration boundary; returns those that began.

        These responses leave, each by itself, once its copy is there. The others have ended, or have to be taken off.
        """
        self._take(now_s, sender, [])
        running = set(sender.engine.running())
        begun = {response: receiver for response, receiver in moves.items() if response in running}
        self.transfers.copy(max(sender.engine.clock_s, now_s), sender, begun)
        for response, receiver in begun.items():
            self._reserve(response, receiver, 1)
        return begun

    def take(self, now_s: float, sender: VirtualActor, responses: Sequence[int] | None) -> Taken[VirtualActor]:
        """See ``TakesAndGives``: at the engine's next iteration boundary, with the iteration that leads to it.

        A response that is being copied to ``sender`` leaves the actor that decodes it.
        """
        copies = self.transfers.copies
        if not copies:
            return self._take(now_s, sender, responses)
        coming = [c for c in copies if c.receiver is sender and (responses is None or c.response in responses)]
        if responses is None:
            responses = [r for r in (*sender.engine.running(), *sender.engine.waiting()) if r not in copies]
        taken = self._take(now_s, sender, [r for r in responses if r not in copies])
        leaving = [*taken.leaving, *(Leaving(c.response, c.kv_tokens, True, c) for c in coming)]
        return replace(taken, leaving=leaving)

    def _take(self, now_s: float, sender: VirtualActor, responses: Sequence[int] | None) -> Taken[VirtualActor]:
        self.catch_up(sender)
        if sender.engine.clock_s <= now_s:
            sender.noted, sender.running, sender.waiting = True, sender.engine.running(), sender.engine.waiting()
            self.note_tokens(sender)
        requests, progress = sender.engine.cut(now_s, responses)
        self._enter(sender, progress)
        self._times.changed(sender)
        self.changed.add(sender.index)
        self._maybe_done.add(sender.index)
        leaving = [Leaving(r.response, r.context_tokens, r.kv is not None, r) for r in requests]
        return Taken(sender, leaving, self.transfers.marks(sender))

    def hand_over(self, now_s: float, taken: Taken[VirtualActor], orders: Sequence[Reassignment]) -> None:
        """See ``TakesAndGives``. A response that was being copied to another actor leaves in one step."""
        redirected = [order for order in orders if isinstance(order.leaving.what, BackgroundCopy)]
        orders = [order for order in orders if order not in redirected] if redirected else orders
        self._send(now_s, taken, orders)
        for order in redirected:
            self._leave(now_s, order.leaving.what, order.receiver, None)

    def _send(
        self,
        now_s: float,
        taken: Taken[VirtualActor],
        orders: Sequence[Reassignment],
        copied: BackgroundCopy | None = None,
    ) -> None:
        self.transfers.send(now_s, max(taken.sender.engine.clock_s, now_s), taken, orders, copied)
        for order in orders:
            self._times.changed(order.receiver)
            self._reserve(order.leaving.response, taken.sender, -1)
            self._reserve(order.leaving.response, order.receiver, 1)

    def _keep_completed(self, published: Sequence[tuple[VirtualActor, Completions]]) -> None:
        """Give responses that are complete before they could leave back to the actor that decoded them."""
        copies = self.transfers.copies
        for actor, completions in published:
            for response, time_s in zip(completions.responses.tolist(), completions.time_s.tolist(), strict=True):
                if response in copies:
                    copy = copies[response]
                    self._end_copy(copy, time_s)
                    copy.receiver.done_s = max(copy.receiver.done_s, time_s)
                    self.step.assign(response, actor)

    def _complete_copies(self) -> None:
        """Let the responses whose copies are there leave at the next iteration boundary."""
        for actor in {copy.sender.index: copy.sender for copy in self.transfers.copies}.values():
            self.catch_up(actor)
        for copy in self.transfers.copies.take_there(self._now_s):
            self._leave(self._now_s, copy, copy.receiver, copy)

    def _leave(self, now_s: float, copy: BackgroundCopy, receiver: VirtualActor, copied: BackgroundCopy | None) -> None:
        """Send a response that decodes on after its KV state was ``copied``, or, if None, all of its KV state.

        If it completes before the boundary, nothing is sent. Until then it is arriving, as far as a rule may know. If it is
        given back to its sender, it stays.
        """
        if receiver is copy.sender:
            self._end_copy(copy, now_s)
            return
        taken = self._take(now_s, copy.sender, [copy.response])
        if receiver is not copy.receiver:
            self._reserve(copy.response, copy.receiver, -1)
            self._reserve(copy.response, receiver, 1)
            self.transfers.redirect(copy, receiver, now_s)
        if not taken.leaving:
            return
        self._end_copy(copy, now_s)
        leaving = taken.leaving[0]
        moves_kv = copied is not None or self.step.moves_kv(copy.sender, receiver, leaving.context_tokens)
        self._send(now_s, taken, [Reassignment(leaving, receiver, leaving.has_kv and moves_kv)], copied)

    def _end_copy(self, copy: BackgroundCopy, at_s: float) -> None:
        self.transfers.end_copy(copy, at_s)
        self._maybe_done.update((copy.sender.index, copy.receiver.index))
        self._reserve(copy.response, copy.receiver, -1)

    def _reserve(self, response: int, actor: VirtualActor, times: int) -> None:
        """Note that ``reserve`` sets memory aside on the actor for a response, or, with -1, no longer."""
        if self._reserved is not None:
            actor.reserved_tokens += times * int(self._reserved[response])

    def note_tokens(self, actor: VirtualActor) -> None:
        """Enter the tokens of an actor's responses as of now; those of arriving ones stay as they left."""
        observed, on_way = self.step.observed_tokens, list(self.transfers.available_s) if actor.arriving else []
        responses, tokens = actor.tokens()
        if on_way:
            before = observed[on_way]
            observed[responses] = tokens
            observed[on_way] = before
        else:
            observed[responses] = tokens

    def _enter(self, actor: VirtualActor, progress: Progress) -> None:
        """Enter the iterations that an engine committed; completions stay pending until their time has come."""
        self.step.record.engine_spans(actor.holder, progress.spans)
        if progress.completions:
            completions = Completions.of(progress.completions)
            actor.pending += len(completions)
            self.pending.append((actor, completions))

    def _horizon(self, driver: RuleDriver[VirtualActor] | None) -> float:
        """Return the earliest moment at which a trigger may fire or a progress callback is due."""
        now_s = self._now_s
        if self._pace is not None:
            engines = [actor.engine for actor in self.step.live.values()]
            next_s = min((engine.peek_next_event_s() for engine in engines), default=math.inf)
            ready_s = min((engine.clock_s for engine in engines), default=now_s)  # nothing is decoded while all of them start
            return max(self._pace.until(max(now_s, ready_s)), next_s)
        if driver is None:
            return math.inf
        pending = sum(len(c) for _, c in self.pending)
        first_s = min((float(completions.time_s[0]) for _, completions in self.pending), default=math.inf)
        return max(
            now_s, min(first_s, driver.next_time_s, self._times.trigger_s(driver, now_s, pending), self.transfers.copies.next_s)
        )

    def _publish(self) -> list[VirtualActor]:
        """Publish completions up to now; returns their actors."""
        published, later = [], []
        for actor, completions in self.pending:
            count = len(completions)
            if completions.time_s[-1] > self._now_s:
                count = int(completions.time_s.searchsorted(self._now_s, side="right"))
                later.append((actor, completions[count:] if count else completions))
            if count:
                published.append((actor, completions[:count] if count < len(completions) else completions))
                actor.pending -= count
                self.changed.add(actor.index)
                self._maybe_done.add(actor.index)
        self.pending = later
        if self.transfers.copies:
            self._keep_completed(published)
        if published:
            self.step.publish(published)
            if (reserved := self._reserved) is not None:
                for actor, completions in published:
                    actor.reserved_tokens -= int(reserved[completions.responses].sum())
        return [actor for actor, _ in published]
