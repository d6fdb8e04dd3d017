"""Retimes an executed step: keeps its decisions and computes its times again from other iteration seconds.

Inputs: the journals of actors, the hand-overs between them and the new seconds. Output: a record with the same decisions as the
first pass. They are who is in which batch in which iteration, who leaves it after which, and who moves where. Only times
change:

- An actor's iterations follow one another from the time at which it was ready. An iteration that responses join starts when all
  of them have arrived. Computing prefixes once for others takes the given seconds, and their receivers are ready that much
  later or sooner (``step/startup.py``).
- A response that left after its actor's k-th iteration is handed over at that boundary. If it had arrived before and never
  joined, it is handed over when it arrives. Its transfer takes as long as in the first pass. It starts then, or when its
  sender's link is free.
- A decision keeps its distance to the latest iteration that had ended before it. It comes no later than the boundary at which
  it takes effect. The same holds for events, and for responses taken off an idle actor.

So nothing arrives before it was sent, and with the seconds of the first pass the record is the first record. A rule is not
asked again, though it might have decided otherwise. Where actors drift apart, a move can come before the completion elsewhere
that caused it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rlhfless.engine.common.journal import EngineJournal, Replayed
from rlhfless.engine.common.spans import spans_of
from rlhfless.engine.protocol import Engine
from rlhfless.executor.step.actor_state import Allocation
from rlhfless.executor.step.record import Row, StepRecord, holder_of
from rlhfless.executor.step.startup import ActorStartup


@dataclass(frozen=True)
class KvHandOver:
    """Responses that a decision took off an actor.

    Attributes:
        now_s: time of the decision; ended_s: the latest end of an iteration by then, of the actors ``after`` after as many of
            their iterations.
        sender: the actor; iterations: how many it had committed; boundary_s: when the responses left it.
        idle: the sender waited for an arrival, and its waiting responses left at ``boundary_s``.
        arrives_s: of each response at its receiver; transfer_s: seconds of its transfer, in the order of the transfers; a
            response without an entry is recomputed by its receiver.
        spans, recomputes, events: rows of the record that describe it; two spans, the sender's and the receiver's, of every
            transfer that takes time.
    """

    now_s: float
    ended_s: float
    after: Mapping[int, int]
    sender: int
    iterations: int
    boundary_s: float
    idle: bool
    arrives_s: Mapping[int, float]
    transfer_s: Mapping[int, float]
    spans: range
    recomputes: range
    events: range


@dataclass
class RetimingLog:
    """The data of a step that are needed to retime it.

    Attributes:
        journals: of every actor that keeps one, by index in the plan.
        startup: when the actors were ready, and what they waited for.
    """

    journals: Mapping[int, EngineJournal]
    startup: ActorStartup
    hand_overs: list[KvHandOver] = field(default_factory=list)

    @classmethod
    def of(cls, engines: Mapping[int, Engine], startup: ActorStartup) -> RetimingLog:
        """Return the log of a step that begins; engines without a journal leave nothing in it."""
        journals = {i: getattr(engine, "journal", None) for i, engine in engines.items()}
        return cls({i: journal for i, journal in journals.items() if journal is not None}, startup)

    def handed(
        self,
        now_s: float,
        sender: int,
        boundary_s: float,
        arrives_s: Mapping[int, float],
        transfer_s: Mapping[int, float],
        spans: range,
        recomputes: range,
        events: range,
    ) -> None:
        """Note a hand-over; the sender keeps a journal."""
        journal = self.journals[sender]
        ended_s = max((j.end_s for j in self.journals.values() if j.end_s <= now_s), default=now_s)
        after = {i: len(j) for i, j in self.journals.items() if j.end_s == ended_s}
        idle = boundary_s > journal.end_s
        self.hand_overs.append(
            KvHandOver(
                now_s, ended_s, after, sender, len(journal), boundary_s, idle, arrives_s, transfer_s, spans, recomputes, events
            )
        )


class _RetimedActor:
    """One actor's iterations and the part of them that is retimed so far."""

    def __init__(self, journal: EngineJournal, replayed: Replayed, ready_s: float) -> None:
        assert replayed.seconds.shape == (len(journal), 2), "an actor needs the seconds of all its iterations"
        self.journal = journal
        self._replayed_s = replayed.seconds
        self.seconds: list[tuple[float, float]] = replayed.seconds.tolist()
        self.starts: list[float] = []
        self.ends = [ready_s]  # of the first k iterations
        self._joining = {change.iteration: change.joined for change in journal.changes}

    def advance(self, iterations: int, arrives_s: Callable[[int], float], joined: Callable[[int, float, float], None]) -> float:
        """Time its first iterations; returns when the last of them ends.

        Args:
            arrives_s: of a response; joined: callback with every admitted response, and the start and end of its first
                iteration.
        """
        for k in range(len(self.starts), iterations):
            admitted = self._joining.get(k, ())
            start_s = max([self.ends[-1], *(arrives_s(new.response) for new in admitted)])
            prefill_s, decode_s = self.seconds[k]
            self.starts.append(start_s)
            self.ends.append(start_s + prefill_s + decode_s)
            for new in admitted:
                joined(new.response, start_s, self.ends[-1])
        return self.ends[iterations]

    def retimed(self) -> EngineJournal:
        """Return its journal at the new times, once all of its iterations are timed."""
        return self.journal.retimed(self.starts, self._replayed_s, self.ends[1:])


class _Retiming:
    """One retiming pass over a step."""

    def __init__(
        self, record: StepRecord, log: RetimingLog, replayed: Mapping[int, Replayed], prefill: Replayed | None
    ) -> None:
        self.before, self.log = record, log
        self.startup = log.startup if prefill is None else log.startup.with_prefill_s(float(prefill.seconds.sum()))
        self.record = StepRecord(
            record.run, record.step, record.plan, record.start_s, moves=record.moves, rule=record.rule,
            requests=record.requests, meta=record.meta,
        )  # fmt: skip
        self.record.actor_of.update(record.actor_of)
        self.actors = {
            i: _RetimedActor(journal, replayed[i], self.startup.actors[i].ready_s) for i, journal in log.journals.items()
        }
        self.arrives_s: dict[int, tuple[float, float]] = {}  # of responses that were handed over: then, and now
        self.first_s: dict[int, tuple[float, float]] = {}  # start and end of the first iteration of every response
        self.link_free_s: dict[int, float] = {}  # of senders
        self.done_s = {i: times.ready_s for i, times in enumerate(self.startup.actors)}

    def run(self) -> None:
        """Compute all times of the record except the allocations."""
        self.startup.record_spans(self.record)
        decided_s = [self._hand_over(hand_over) for hand_over in self.log.hand_overs]
        for index, actor in self.actors.items():
            self._advance(index, len(actor.journal))
            for iterations, response in actor.journal.first_tokens:
                self.first_s[response] = self.first_s[response][0], actor.ends[iterations]
        for index, actor in self.actors.items():
            spans = spans_of(actor.retimed().iteration_runs(), actor.journal.slots)
            self.record.engine_spans(holder_of(index), spans)
            for iterations, response in actor.journal.finished:
                self._complete(index, response, actor.ends[iterations])
        self._retime_events(decided_s)

    def _advance(self, index: int, iterations: int) -> float:
        def arrives_s(response: int) -> float:
            return self.arrives_s.get(response, (-np.inf, -np.inf))[1]

        def joined(response: int, start_s: float, end_s: float) -> None:
            self.first_s.setdefault(response, (start_s, end_s))

        return self.actors[index].advance(iterations, arrives_s, joined)

    def _hand_over(self, hand_over: KvHandOver) -> float:
        ended_s = max((self._advance(i, iterations) for i, iterations in hand_over.after.items()), default=hand_over.ended_s)
        decided_s = ended_s + (hand_over.now_s - hand_over.ended_s)
        boundary_s = self._advance(hand_over.sender, hand_over.iterations)
        if hand_over.idle:
            boundary_s = max(boundary_s, decided_s)
        came = [self.arrives_s[response] for response in hand_over.arrives_s if response in self.arrives_s]
        boundary_s = max([boundary_s, *(now_s for then_s, now_s in came if then_s <= hand_over.boundary_s)])
        free_s, rows = boundary_s, iter(hand_over.spans)
        for response, then_s in hand_over.arrives_s.items():
            at_s = boundary_s
            if response in hand_over.transfer_s:
                _, there_s = self.arrives_s.get(response, (-np.inf, -np.inf))
                start_s = max(boundary_s, self.link_free_s.get(hand_over.sender, -np.inf), there_s)
                at_s = free_s = self.link_free_s[hand_over.sender] = start_s + hand_over.transfer_s[response]
                for number in itertools.islice(rows, 2 if at_s > start_s else 0):
                    self.record.spans.append({**self.before.spans[number], "start_s": start_s, "end_s": at_s})
            self.arrives_s[response] = then_s, at_s
        for again in self.before.recomputes[hand_over.recomputes.start : hand_over.recomputes.stop]:
            self.record.recomputes.append(again._replace(time_s=self.arrives_s[again.response][1]))
        self._done(hand_over.sender, free_s)
        return min(decided_s, boundary_s)

    def _complete(self, index: int, response: int, at_s: float) -> None:
        at_s = max(at_s, self.arrives_s.get(response, (-np.inf, -np.inf))[1])  # one of no tokens joined no iteration
        start_s, first_token_s = self.first_s.get(response, (at_s, at_s))
        done = self.before.completions[response]
        self.record.completions[response] = replace(done, time_s=at_s, start_s=start_s, first_token_s=first_token_s)
        self._done(index, at_s)

    def _done(self, index: int, at_s: float) -> None:
        self.done_s[index] = max(self.done_s.get(index, -np.inf), at_s)

    def _retime_events(self, decided_s: Sequence[float]) -> None:
        times = {n: at_s for hand_over, at_s in zip(self.log.hand_overs, decided_s, strict=True) for n in hand_over.events}
        events: list[Row] = [{**row, "time_s": times.get(n, row["time_s"])} for n, row in enumerate(self.before.events)]
        self.record.events += sorted(events, key=lambda row: float(row["time_s"]))


def retime(
    record: StepRecord,
    log: RetimingLog,
    held: Sequence[Allocation],
    replayed: Mapping[int, Replayed],
    prefill: Replayed | None = None,
) -> tuple[StepRecord, list[Allocation], ActorStartup]:
    """Return the record of a step with other seconds for its iterations, and the allocations that follow from it.

    Args:
        record: of a finished step, as it was executed; log: of the same step.
        held: the allocations of its actors.
        replayed: measured seconds of every actor's iterations; time spent on warming up becomes an event, and is not charged.
        prefill: measured seconds of computing the plan's prefixes; None leaves them as they were.

    Returns:
        A record without allocations, ready for ``rlhfless.executor.step.allocations.bill``, the allocations to bill, and the
            actors' start-up, with the plan to bill it by.
    """
    retiming = _Retiming(record, log, replayed, prefill)
    retiming.run()
    if prefill is not None:
        prefill_actor = log.startup.plan.prefill_actor
        holder = "learner" if prefill_actor is None else holder_of(prefill_actor)
        retiming.record.event(retiming.startup.computes_s[1], "replay prefixes", holder, warm_up_s=prefill.warm_up_s)
    for index, replay in replayed.items():
        at_s = retiming.actors[index].ends[-1]
        differing = {"differing": replay.differing} if replay.differing else {}
        about = {"iterations": len(replay.seconds), "warm_up_s": replay.warm_up_s, **differing}
        retiming.record.event(at_s, "replay", holder_of(index), **about)
    held = [allocation._replace(done_s=retiming.done_s.get(allocation.number, allocation.done_s)) for allocation in held]
    return retiming.record, held, retiming.startup
