"""``WarmPool``: keeps actors without work alive between steps, starts them ahead of steps, and records the GPU time of both.

Inputs: placements, a life-cycle and an ``ActorLauncher``. Outputs: rows in the record for GPU time outside a step's own actors
(``warm_allocations.py``). They are a start where an actor was prewarmed, and waiting where no span covers the time. Events say
whether an actor waits, and the two costs that decided it. A thread ends actors that waited too long and starts those that are
needed soon.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic

from rlhfless.executor.distributed.pool.lifecycle import KeepDecision, Lifecycle, StepHistory
from rlhfless.executor.distributed.pool.placement import ActorHandle, ActorLauncher, ActorPlacement
from rlhfless.executor.distributed.pool.warm_allocations import WarmRow, holder_at, write_warm
from rlhfless.executor.step.record import StepRecord
from solver.model.objective import NonGenerationPhases
from solver.model.plan import ActorPlan, Plan


@dataclass
class _IdleActor(Generic[ActorHandle]):
    actor: ActorHandle
    place: ActorPlacement
    since_s: float  # what was held before is in a record
    until_s: float
    started_s: float | None = None  # ahead of its step; None: it has worked before

    @property
    def holder(self) -> str:
        return holder_at(self.place)


@dataclass
class WarmPool(Generic[ActorHandle]):
    """Actors without work. Its thread ends with ``close``.

    Args:
        launcher: the ``ActorLauncher`` that starts and ends them. lifecycle: how long they live.
        watched: run the thread; otherwise the caller calls ``act``.

    Attributes:
        history: the steps so far. lock: acquired by every method that changes the pool.
    """

    launcher: ActorLauncher[ActorHandle]
    lifecycle: Lifecycle
    watched: bool = True
    history: StepHistory = field(default_factory=StepHistory)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _waiting: list[_IdleActor[ActorHandle]] = field(default_factory=list)
    _aside: dict[int, _IdleActor[ActorHandle]] = field(default_factory=dict)  # for the step under way, by index of its actors
    _over: list[WarmRow] = field(default_factory=list)
    _events: list[tuple[float, str, str, dict[str, object]]] = field(default_factory=list)
    _wanted: tuple[ActorPlacement, ...] = ()  # to be started ahead of the next step

    def __post_init__(self) -> None:
        self._changed = threading.Condition(self.lock)
        self._closed = False
        self._failed: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def actors(self) -> list[ActorHandle]:
        """Return the waiting actors, in no particular order."""
        return [idle.actor for idle in self._waiting]

    def __len__(self) -> int:
        return len(self._waiting)

    # --- steps --------------------------------------------------------------------------------------------------------

    def begin(self, record: StepRecord, plan: Plan, phases: NonGenerationPhases) -> None:
        """Begin a step: waiting actors that its plan can use are reserved for it, and those whose GPUs it needs otherwise end.

        GPU time up to now that is in no record yet is written to this one.
        """
        with self.lock:
            self._raise()
            self.history.begin(record.start_s, plan, phases)
            self._wanted = ()
            for row in self._over:  # ended since the step's time was taken, and from then on its GPUs are the step's
                row.end_s = min(row.end_s, record.start_s)
            for idle in [w for w in self._waiting if not self.launcher.alive(w.actor)]:
                self._end(idle, "lost", record.start_s)
            places = [ActorPlacement.of(actor) for actor in plan.actors]
            for same in (True, False):  # where it was if possible, else elsewhere on its node
                for i, place in enumerate(places):
                    fits = [w for w in self._waiting if (w.place == place if same else self.launcher.serves(w.place, place))]
                    if i not in self._aside and fits:
                        self._aside[i] = fits[0]
                        self._waiting.remove(fits[0])
            taken = {gpu for place in places for gpu in place.gpu_ids}
            for idle in [w for w in self._waiting if taken.intersection(w.place.gpu_ids)]:
                self._end(idle, "in the way", record.start_s)
            self._write(record)

    def take(self, index: int, place: ActorPlacement, at_s: float) -> ActorHandle:
        """Return the actor with this index of the step, a waiting or a new one; its step pays for it from ``at_s`` on."""
        with self.lock:
            idle = self._aside.pop(index, None)
            for other in [w for w in self._waiting if idle is None and not set(place.gpu_ids).isdisjoint(w.place.gpu_ids)]:
                if other.place == place and self.launcher.alive(other.actor):
                    self._waiting.remove(other)
                    idle = other
                else:
                    self._end(other, "in the way")
            if idle is None:
                return self.launcher.start(place)
            self._note(idle, at_s)
            return idle.actor

    def waited(self, place: ActorPlacement, since_s: float, until_s: float) -> None:
        """Record that an actor of the running step waited between two parts of it."""
        with self.lock:
            if until_s > since_s:
                self._over.append(WarmRow(place, since_s, until_s, None))

    def keeps(self, actor: ActorPlan, cold_s: float = 0.0) -> bool:
        """Return whether an actor of the step stays alive when it has no work left; ``cold_s``: the longest cold start so
        far.
        """
        if actor.release != "done":
            return True
        with self.lock:
            self.history.start_s = max(self.history.start_s, cold_s)
            now_s, place = self.launcher.now_s(), ActorPlacement.of(actor)
            decision = self.lifecycle.keep(self.history, now_s, len(place.gpu_ids))
            keeps = decision.until_s > now_s
            if not keeps:  # else it is decided again when the step's generation is over
                self._note_decision(decision, place, now_s)
            return keeps

    def generated(self, record: StepRecord, finished: Sequence[tuple[ActorHandle, ActorPlan, float]], cold_s: float) -> None:
        """End a step's generation and take over its living actors.

        Args:
            finished: its living actors, their plans, and until when the record says that their GPUs are allocated.
            cold_s: the longest cold start of the step; 0 if there was none.
        """
        with self.lock:
            now_s = self.launcher.now_s()
            self._waiting += self._aside.values()
            self._aside.clear()
            self.history.end_generation(now_s, cold_s)
            for actor, plan, end_s in finished:
                place, until_s = ActorPlacement.of(plan), math.inf
                if plan.release != "step":  # else that is the plan's own wish, until the next step or ``close``
                    decision = self.lifecycle.keep(self.history, now_s, len(place.gpu_ids))
                    self._note_decision(decision, place, now_s)
                    until_s = decision.until_s
                self._waiting.append(_IdleActor(actor, place, end_s, until_s))
            self._wanted = tuple(ActorPlacement.of(actor) for actor in record.plan.actors)
            self._write(record)
            self._wake()

    def finalise_allocations(self, record: StepRecord) -> None:
        """Write the GPU time since the last call, up to now. Call it when the other phases of a step are over, before its
        record is kept.
        """
        with self.lock:
            self._raise()
            now_s = self.launcher.now_s()
            for idle in self._waiting:
                self._note(idle, now_s)
            self._write(record)

    def close(self) -> None:
        """End all waiting actors. Idempotent; another step can start new ones."""
        with self.lock:
            self._closed, self._wanted = True, ()
            self._changed.notify_all()
            for idle in list(self._waiting):
                self._end(idle)
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()  # it was waked, and only has to notice: what it does with actors, it does with the lock
        self._closed = False

    def give_up(self, record: StepRecord) -> None:
        """End the waiting actors of a step that will not be complete, and write their GPU time to its record."""
        with self.lock:
            self._waiting += self._aside.values()
            self._aside, self._wanted = {}, ()
            for idle in list(self._waiting):
                self._end(idle, "given up")
            self._write(record)
            if len(self.history.starts_s) > len(self.history.generated_s):
                self.history.give_up()

    # --- what is held -------------------------------------------------------------------------------------------------

    def _note(self, idle: _IdleActor[ActorHandle], now_s: float) -> None:
        """Write its GPU time up to now; later time becomes another row."""
        if now_s <= idle.since_s:
            return
        starting = None
        if idle.started_s is not None:
            up_s = self.launcher.up_s(idle.actor)
            over_s = now_s if up_s is None else min(max(up_s, idle.started_s), now_s)
            starting = (max(idle.since_s, idle.started_s), over_s)
        self._over.append(WarmRow(idle.place, idle.since_s, now_s, starting))
        idle.since_s = now_s

    def _note_decision(self, decision: KeepDecision, place: ActorPlacement, now_s: float) -> None:
        """Say in the trace whether an actor waits and which costs decided it, under its name in the step.

        A time that the user gave needs no words.
        """
        if decision.by_cost:
            costs = {name: _rounded(getattr(decision, name)) for name in ("waiting_gpu_s", "starting_gpu_s")}
            self._events.append((now_s, "keep", holder_at(place), {"keeps": decision.until_s > now_s, **costs}))

    def _end(self, idle: _IdleActor[ActorHandle], reason: str = "no work", at_s: float | None = None) -> None:
        """End a waiting actor. It is charged until its GPUs are free, or until ``at_s``, from when another holder is
        charged.
        """
        self.launcher.end(idle.actor)
        self._waiting.remove(idle)
        over_s = self.launcher.now_s() if at_s is None else at_s
        self._note(idle, over_s)
        self._events.append((over_s, "kill", idle.holder, {"reason": reason}))

    def _write(self, record: StepRecord) -> None:
        for row in self._over:
            write_warm(record, row)
        worked_as = {f"warm-{a['gpu_ids'][0]}": a["holder"] for a in record.allocations if a["role"] == "decode"}
        for time_s, name, holder, what in self._events:
            record.event(time_s, name, worked_as.get(holder, holder) if name == "keep" else holder, **what)
        if self._over and record.end_s:
            record.close(max(record.end_s, *(row.end_s for row in self._over)))
        self._over, self._events = [], []

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Wake the thread because there is something new to watch."""
        if self._thread is None and self.watched:
            self._thread = threading.Thread(target=self._watch, name="rlhfless-warm-pool", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _watch(self) -> None:
        with self.lock:
            try:
                while not self._closed:
                    at_s = self.act()
                    wait_s = None if at_s == math.inf else max(0.0, at_s - self.launcher.now_s())
                    self._changed.wait(wait_s)
            except BaseException as error:  # said by the next call: here nobody would hear of it
                self._failed, self._thread = error, None  # the next step's actors have another thread

    def act(self) -> float:
        """Do what is due; returns when the next action is due. The caller has acquired the lock."""
        now_s = self.launcher.now_s()
        for idle in [w for w in self._waiting if w.until_s <= now_s]:
            self._end(idle)
        warm_s = self.lifecycle.prewarm_s(self.history) if self._wanted else None
        if warm_s is not None and warm_s <= now_s:
            self._start_prewarmed()
            warm_s = None
        return min([w.until_s for w in self._waiting] + ([] if warm_s is None else [warm_s]), default=math.inf)

    def _start_prewarmed(self) -> None:
        """Start actors like the last step's where none waits already."""
        wanted, self._wanted = self._wanted, ()
        held = {gpu for idle in self._waiting for gpu in idle.place.gpu_ids}
        until_s = self.lifecycle.waits_until_s(self.history, self.launcher.now_s())
        for idle in self._waiting:
            if idle.place in wanted:
                idle.until_s = max(idle.until_s, until_s)
        for place in wanted:
            if held.isdisjoint(place.gpu_ids):
                now_s = self.launcher.now_s()
                idle = _IdleActor(self.launcher.start(place, prewarm=True), place, now_s, until_s, now_s)
                self._waiting.append(idle)
                self._events.append((now_s, "prewarm", idle.holder, {}))

    def _raise(self) -> None:
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed


def _rounded(gpu_s: float | None) -> float | None:
    """Return GPU-seconds to a millisecond; None where they are unknown, or infinite."""
    return None if gpu_s is None or math.isinf(gpu_s) else round(gpu_s, 3)
