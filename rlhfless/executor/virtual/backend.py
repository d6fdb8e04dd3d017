"""``VirtualBackend``: the engines of this process on one causal time line.

Engines commit iterations that end at or before a horizon, the earliest moment at which a rule may want to be asked. A decision
takes effect at the actor's next iteration boundary: the engine runs ahead to it, and completions of that iteration stay pending
until their own, later, time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlhfless.engine.protocol import Progress, SupportsDrafts
from rlhfless.engine.simulated.completions import Completions
from rlhfless.executor.step.actor_state import Allocation
from rlhfless.executor.step.dispatcher import Leaving, Reassignment, Taken
from rlhfless.executor.step.observation import KnownResponses
from rlhfless.executor.step.rule_driver import RuleDriver
from rlhfless.executor.step.step_state import RunningStep
from rlhfless.executor.virtual.actors import VirtualActor
from rlhfless.executor.virtual.background_copies import BackgroundCopy
from rlhfless.executor.virtual.migration import KvTransfers
from rlhfless.executor.virtual.progress_pacing import ProgressPacer
from rlhfless.system.cleanup import clean_up
from solver.model.workload import IntArray


class VirtualBackend:
    """The actors of a step on the virtual clock; see ``rlhfless.executor.step.event_loop.Backend``.

    Args:
        live: its actors, which have their requests already.
        pace: of progress callbacks where no rule is asked; None where there are none.

    Attributes:
        pending: completions that are not published yet, with their actors.
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
        self._now_s = step.record.start_s
        self._maybe_done = set(live)  # actors that have had completions, or lost responses, since the last release

    def now_s(self) -> float:
        """See ``Backend``; infinite once nothing but the end is waited for."""
        return self._now_s

    def start(self) -> None:
        """See ``Backend``. Engines have started already; actors without work are done as soon as they are ready."""
        for actor in self.step.live.values():
            self.step.owner.update(dict.fromkeys(actor.plan.responses, actor))
            if actor.expecting == 0:
                actor.done_s = actor.engine.clock_s
        self.step.begin(min((actor.ready_s for actor in self.step.live.values()), default=self._now_s))

    def going_on(self) -> bool:
        """See ``Backend``."""
        return bool(self.step.live or self.pending)

    def events(self, driver: RuleDriver[VirtualActor] | None) -> Sequence[VirtualActor]:
        """See ``Backend``."""
        self._now_s = self._horizon(driver)
        for actor in self.step.live.values():
            self._enter(actor, actor.engine.advance(self._now_s))
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

    def known(self, now_s: float) -> list[KnownResponses]:
        """See ``Backend``.

        An engine may have run past ``now_s`` because a move made it finish the running iteration. Its actor is then shown as it
        was before that move. A response on its way has the tokens that were known when it left.
        """
        self.transfers.arrived(now_s)
        observed, on_way = self.step.observed_tokens, list(self.transfers.available_s)
        before = observed[on_way]
        known = []
        for actor in self.step.live.values():
            responses, tokens, running = actor.token_arrays()
            if actor.engine.clock_s <= now_s:
                observed[responses], actor.before_move = tokens, None
            if not actor.closing:
                known.append(self._known_of(actor, responses, running))
        observed[on_way] = before
        return known

    def _known_of(self, actor: VirtualActor, responses: IntArray, batch: int) -> KnownResponses:
        """Return what a rule may know of an actor, whose engine has these responses; the first ``batch`` are running."""
        slots, kv_tokens = actor.engine.slots - actor.copied, actor.latency.kv_capacity_tokens
        if not actor.arriving and not actor.copied and actor.before_move is None:
            return KnownResponses(actor, responses, batch, len(responses) - batch, slots, kv_tokens)
        copies, on_way = self.transfers.copies, self.transfers.available_s
        running, queue = responses[:batch], responses[batch:].tolist()
        waiting = [r for r in queue if r not in on_way and r not in copies]
        arriving = [r for r in queue if r in on_way] + [copy.response for copy in copies if copy.receiver is actor]
        if actor.copied:
            copied = [copy.response for copy in copies if copy.sender is actor]
            running = running[~np.isin(running, copied)]
            if self.step.reserved_tokens is not None:
                kv_tokens -= int(self.step.reserved_tokens[copied].sum())
        if actor.before_move is not None:
            decoded, queued = actor.before_move
            noted = {*decoded, *queued}
            queued += [r for r in queue if r not in noted]
            ended = {r for owner, c in self.pending if owner is actor for r in c.responses.tolist() if r not in copies}
            here = ended.union(running.tolist(), waiting)
            running, waiting = np.array([r for r in decoded if r in here], np.int64), [r for r in queued if r in here]
        responses = np.concatenate([running, np.array(waiting + arriving, np.int64)])
        return KnownResponses(actor, responses, len(running), len(waiting), slots, kv_tokens)

    def has_ended(self, response: int) -> bool:
        """See ``TakesAndGives``."""
        return bool(self.step.complete[response]) or any((c.responses == response).any() for _, c in self.pending)

    def batch(self, now_s: float, sender: VirtualActor) -> Mapping[int, int]:
        """Return the responses whose KV state is in the actor's batch, with the context tokens that are known by now.

        A response that is being copied to another actor is not among them.
        """
        if sender.engine.clock_s <= now_s:
            self._note_tokens(sender)
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
        if sender.engine.clock_s <= now_s:
            sender.before_move = self._note_tokens(sender)
        requests, progress = sender.engine.cut(now_s, responses)
        self._enter(sender, progress)
        sender.changed()
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
            order.receiver.changed()

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

    def _note_tokens(self, actor: VirtualActor) -> tuple[list[int], list[int]]:
        """Enter the tokens that an engine has committed; those of responses on their way stay as they left. Returns its batch
        and its queue.
        """
        observed, on_way = self.step.observed_tokens, list(self.transfers.available_s)
        before = observed[on_way]
        responses, tokens, running = actor.token_arrays()
        observed[responses] = tokens
        observed[on_way] = before
        listed: list[int] = responses.tolist()
        return listed[:running], listed[running:]

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
        triggers_s = [actor.next_trigger_s(now_s) for actor in self.step.live.values()]
        known_s = first_s, driver.next_time_s, self._step_trigger_s(driver, pending), self.transfers.copies.next_s
        return max(now_s, min(*known_s, *triggers_s))

    def _step_trigger_s(self, driver: RuleDriver[VirtualActor], pending: int) -> float:
        """Return a lower bound on the completion of the step at which the rule wants to be asked.

        By then one of K engines has at least a Kth of the completions that are still missing. ``pending`` ones are known.
        """
        if driver.trigger_completions is None:
            return math.inf
        missing, live = driver.trigger_completions - self.step.completed - pending, self.step.live
        if missing < 1 or not live:
            return math.inf  # the last of the pending ones comes first
        return min(actor.engine.peek_next_event_s(-(-missing // len(live))) for actor in live.values())

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
                self._maybe_done.add(actor.index)
        self.pending = later
        if self.transfers.copies:
            self._keep_completed(published)
        if published:
            self.step.publish(published)
        return [actor for actor, _ in published]
