"""``VirtualBackend``: the engines of this process on one causal time line.

Engines commit iterations that end at or before a horizon, the earliest moment at which a rule may want to be asked. A decision
takes effect at the actor's next iteration boundary: the engine runs ahead to it, and completions of that iteration stay pending
until their own, later, time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rlhfless.engine.protocol import Progress, SupportsDrafts
from rlhfless.engine.simulated.completions import Completions
from rlhfless.executor.step.actor_state import Allocation
from rlhfless.executor.step.dispatcher import Leaving, Reassignment, Taken
from rlhfless.executor.step.rule_driver import RuleDriver
from rlhfless.executor.step.step_state import RunningStep
from rlhfless.executor.virtual.actors import VirtualActor
from rlhfless.executor.virtual.event_times import EventTimes
from rlhfless.executor.virtual.migration import KvTransfers
from rlhfless.executor.virtual.progress_pacing import ProgressPacer


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
        return self._publish()

    def release_done(self) -> None:
        """See ``Backend``. Time that an engine needed to prepare shapes is recorded and not charged; so is why it drafts no
        more.
        """
        live = self.step.live
        done = [live[i] for i in sorted(self._maybe_done) if i in live and live[i].expecting == 0]
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
        for actor in self.step.live.values():
            actor.engine.close()

    def catch_up(self, actor: VirtualActor) -> None:
        """Commit the iterations of an engine that was left alone, up to now; none of them has completions."""
        if actor.caught_up_s < self._now_s < math.inf and self._times.leaves_alone(actor):
            actor.caught_up_s = self._now_s
            self._enter(actor, actor.engine.advance(self._now_s))

    def has_ended(self, response: int) -> bool:
        """See ``TakesAndGives``."""
        return bool(self.step.complete[response]) or any((c.responses == response).any() for _, c in self.pending)

    def take(self, now_s: float, sender: VirtualActor, responses: Sequence[int] | None) -> Taken[VirtualActor]:
        """See ``TakesAndGives``: at the engine's next iteration boundary, with the iteration that leads to it."""
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
        """See ``TakesAndGives``."""
        self.transfers.send(now_s, max(taken.sender.engine.clock_s, now_s), taken, orders)
        reserved = self._reserved
        for order in orders:
            self._times.changed(order.receiver)
            if reserved is not None:
                tokens = int(reserved[order.leaving.response])
                taken.sender.reserved_tokens -= tokens
                order.receiver.reserved_tokens += tokens

    def note_tokens(self, actor: VirtualActor) -> None:
        """Enter the tokens of an actor's responses, and their signals, as of now; those of arriving ones stay as they left."""
        observed, on_way = self.step.observed_tokens, list(self.transfers.available_s) if actor.arriving else []
        responses, tokens = actor.tokens()
        if on_way:
            before = observed[on_way]
            observed[responses] = tokens
            observed[on_way] = before
        else:
            observed[responses] = tokens
        self.note_signals(actor)

    def note_signals(self, actor: VirtualActor) -> None:
        """Enter the signals of an actor's responses as of now."""
        if actor.signalling is None:
            return
        responses, signals = actor.signalling.recent_signals()
        here = [r not in self.transfers.available_s for r in responses.tolist()]
        self.step.observed_signals.note(responses[here], {name: values[here] for name, values in signals.items()})

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
        return max(now_s, min(first_s, driver.next_time_s, self._times.trigger_s(driver, now_s, pending)))

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
        if published:
            self.step.publish(published)
            if (reserved := self._reserved) is not None:
                for actor, completions in published:
                    actor.reserved_tokens -= int(reserved[completions.responses].sum())
        return [actor for actor, _ in published]
