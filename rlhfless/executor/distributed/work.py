"""``PoolWork``: runs a step's work items on the wall clock, in processes of the pool that have no engine.

The rule is that of ``solver.schedule_work``, decided as time passes: no server idles while an item that it may run is ready,
and servers that have worked before come first. A server is taken from the pool like an actor when it is first needed, so a
process that has just finished decoding on its GPUs is reused. It ends when no item is left for it. An item whose process dies
is run once more. One that fails, or whose process dies twice, ends the step. A process is lost when it is silent for a multiple
of its item's ``seconds`` (``Faults``); without these an item has no time limit.
"""

from __future__ import annotations

import heapq
import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlhfless.executor.distributed.actor_state import RemoteActorState
from rlhfless.executor.distributed.messages import ActorLost, ActorReport, RemoteActor, StartServer
from rlhfless.executor.distributed.orders import ActorOrders
from rlhfless.executor.step.failure import ActorError
from rlhfless.executor.step.step_state import RunningStep
from rlhfless.executor.step.work_items import ItemRun, WorkGpus, WorkItem, WorkServer, bought_as, named
from rlhfless.executor.step.work_rows import ExecutedWork, WorkHold
from solver.model.errors import PlanningError
from solver.model.plan import ActorPlan

TRIES = 2  # processes that may die with an item


@dataclass(eq=False)
class _Server:
    """A server of work.

    Attributes:
        place: its GPUs as the pool knows them. index: of its process, negative and never used twice; 0: it has none.
        up, closing: its process accepts items; was told to end. runs: the item that it runs, since ``since_s``.
        worked: it has run an item. deaths: of its processes. due_s: when a process that has not reported counts as lost.
        role: of its hold, which began at ``held_s``.
    """

    server: WorkServer
    gpus: WorkGpus
    place: ActorPlan
    index: int = 0
    remote: RemoteActor | None = None
    up: bool = False
    closing: bool = False
    runs: int | None = None
    since_s: float = -math.inf
    worked: bool = False
    deaths: int = 0
    due_s: float = math.inf
    role: str = ""
    held_s: float = math.inf
    holds: list[WorkHold] = field(default_factory=list)

    @property
    def ids(self) -> frozenset[int]:
        """Return its GPUs."""
        return frozenset(self.server.gpu_ids)

    def hold(self, role: str, now_s: float) -> None:
        """Hold the GPUs with this role from now on."""
        if role != self.role:
            self.release(now_s)
            self.role, self.held_s = role, now_s

    def release(self, now_s: float) -> None:
        """Note what was held until now."""
        if self.role:
            self.holds.append(WorkHold(self.server, self.gpus, self.role, self.held_s, max(now_s, self.held_s)))
        self.role = ""


class PoolWork:
    """The work items of a step on the wall clock; see ``rlhfless.executor.step.event_loop.StepWork``.

    Attributes:
        results: of the items that have ended.

    Raises:
        PlanningError: an item cannot run in another process.
    """

    def __init__(self, step: RunningStep[RemoteActorState], orders: ActorOrders) -> None:
        self.step, self.orders, self.work = step, orders, step.options.work
        _check(self.work, step)
        self.servers = [
            _Server(server, gpus, _place(server, step)) for gpus in dict.fromkeys(item.gpus for item in self.work)
            for server in gpus.of(step.plan)
        ]  # fmt: skip
        self.results: dict[int, Any] = {}
        self._runs: dict[int, ItemRun] = {}
        self._tries = [0] * len(self.work)
        self._left = [len(set(item.responses)) + len(set(item.items)) for item in self.work]
        self._ready_s = [step.record.start_s + item.after_s for item in self.work]
        self._then: dict[int, list[int]] = {}  # by item: those that wait for it
        self._of_response: dict[int, list[int]] = {}
        for i, item in enumerate(self.work):
            for before in set(item.items):
                self._then.setdefault(before, []).append(i)
            for response in set(item.responses):
                self._of_response.setdefault(response, []).append(i)
        self._awaited = np.array(sorted(self._of_response), dtype=np.int64)  # responses that are not complete yet
        self._later = [(self._ready_s[i], i) for i, left in enumerate(self._left) if not left]  # wait for their time only
        heapq.heapify(self._later)
        self._ready: dict[WorkGpus, list[tuple[float, float, int]]] = {item.gpus: [] for item in self.work}
        self._unstarted = {gpus: sum(item.gpus == gpus for item in self.work) for gpus in self._ready}
        self._next_index = -1

    # --- what the loop asks -------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """See ``StepWork``: the loop has gone on until all work ended."""

    def going_on(self) -> bool:
        """Return whether an item has not ended, or a server's process."""
        return len(self._runs) < len(self.work) or any(server.remote is not None for server in self.servers)

    @property
    def used_gpus(self) -> frozenset[int]:
        """Return the GPUs that servers hold or have held; no actor is started on them again."""
        return frozenset(gpu for s in self.servers if s.remote is not None or s.holds or s.deaths for gpu in s.ids)

    def wants(self, gpu_ids: Sequence[int]) -> bool:
        """Return whether an item could run now on the GPUs of an actor that closes, if its process stayed."""
        return any(self._ready[s.gpus] and s.remote is None and s.ids == frozenset(gpu_ids) for s in self.servers)

    def next_time_s(self) -> float:
        """Return when something is due although nobody reports: an item's time, or the end of a server's start."""
        return min([self._later[0][0] if self._later else math.inf, *(server.due_s for server in self.servers)])

    def executed(self) -> ExecutedWork:
        """See ``StepWork``."""
        now_s = self.orders.step_actors.now_s()
        for server in self.servers:
            server.release(now_s)
        return ExecutedWork(
            tuple(self._runs[i] for i in sorted(self._runs)), tuple(hold for server in self.servers for hold in server.holds)
        )

    # --- starting -----------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Start what may start now, and end servers for which nothing is left.

        Raises:
            ActorError: a server could not be started too often.
        """
        now_s = self.orders.step_actors.now_s()
        self._admit(now_s)
        for server in [server for server in self.servers if server.due_s <= now_s]:
            since = f"since {server.since_s:.1f} s" if server.up else "since it was started"
            self._lose(server, ActorLost(f"has not reported {since}"), now_s)
        for gpus, ready in self._ready.items():
            while ready and (free := self._free_server(gpus)) is not None:
                self._begin(free, heapq.heappop(ready)[2], now_s)
        over = not (self.step.live or self.orders.ending)
        for server in self.servers:
            if server.remote is None and server.gpus.hold == "step" and not over and self._is_free(server):
                self._start(server, next(item.role for item in self.work if item.gpus == server.gpus), now_s)
            if server.remote is None or server.runs is not None or server.closing:
                continue
            needless = not self._unstarted[server.gpus] and (over or server.gpus.hold != "step")
            if needless or self._in_the_way(server):
                server.closing, server.since_s = True, now_s
                self._expect(server, now_s)
                server.remote.close()

    def _admit(self, now_s: float) -> None:
        """Take in which responses are complete, and which items' time has come."""
        if len(self._awaited):
            done = self.step.complete[self._awaited]
            for response in self._awaited[done].tolist():
                for i in self._of_response[response]:
                    self._count(i, self.step.record.completions[response].time_s)
            self._awaited = self._awaited[~done]
        while self._later and self._later[0][0] <= now_s:
            ready_s, i = heapq.heappop(self._later)
            heapq.heappush(self._ready[self.work[i].gpus], (float(self.work[i].priority), ready_s, i))

    def _count(self, i: int, time_s: float) -> None:
        """Note that something for which the item waits has happened."""
        self._left[i] -= 1
        self._ready_s[i] = max(self._ready_s[i], time_s)
        if not self._left[i]:
            heapq.heappush(self._later, (self._ready_s[i], i))

    def _free_server(self, gpus: WorkGpus) -> _Server | None:
        """Return the server for the next item of these GPUs: one that has worked, else one that is there, else another."""
        of_gpus = [server for server in self.servers if server.gpus == gpus and server.runs is None and not server.closing]
        there = [server for server in of_gpus if server.remote is not None]
        if there:
            return min(there, key=lambda server: (not server.worked, server.since_s))
        return min((s for s in of_gpus if self._is_free(s)), key=lambda server: server.deaths, default=None)

    def _is_free(self, server: _Server) -> bool:
        """Return whether nobody has any of its GPUs."""
        taken = {gpu for a in (*self.step.live.values(), *self.orders.ending.values()) for gpu in a.plan.gpu_ids}
        taken.update(gpu for s in self.servers if s.remote is not None for gpu in s.ids)
        return server.ids.isdisjoint(taken)

    def _in_the_way(self, server: _Server) -> bool:
        """Return whether an item of other servers could start on GPUs that this one holds without work."""
        return not self._ready[server.gpus] and any(
            self._ready[s.gpus] and s.remote is None and not s.ids.isdisjoint(server.ids) for s in self.servers
        )

    def _start(self, server: _Server, role: str, now_s: float) -> None:
        server.index, self._next_index = self._next_index, self._next_index - 1
        server.up, server.since_s = False, now_s
        server.hold(role, now_s)
        self._expect(server, now_s)
        order = StartServer(server.index, server.server.holder, server.place, self.orders.wall.weights_version)
        server.remote = self.orders.step_actors.start_server(order)

    def _begin(self, server: _Server, i: int, now_s: float) -> None:
        item = self.work[i]
        if server.remote is None:
            self._start(server, item.role, now_s)
        assert server.remote is not None
        server.hold(item.role, now_s)
        server.runs, server.since_s, server.worked = i, now_s, True
        self._unstarted[item.gpus] -= 1
        completions = [self.step.record.completions[r] for r in item.responses]
        server.remote.run_item(i, item.run, completions, [self.results[before] for before in item.items])
        self._expect(server, now_s)

    def _expect(self, server: _Server, now_s: float) -> None:
        """Set the time at which the server's process counts as lost if it has not reported by then."""
        faults, seconds = self.orders.wall.faults, None if server.runs is None else self.work[server.runs].seconds
        if not server.up:
            server.due_s = server.held_s + faults.min_start_timeout_s
        elif server.closing:
            server.due_s = now_s + faults.silence_floor_s
        elif seconds is not None:
            server.due_s = now_s + max(faults.silence_floor_s, faults.silence_factor * seconds)
        else:
            server.due_s = math.inf

    # --- hearing ------------------------------------------------------------------------------------------------------

    def heard(self, index: int, message: ActorReport | ActorLost) -> bool:
        """Take in what a server's process reports; returns whether it is one's.

        Raises:
            ActorError: an item failed, or its process died too often.
        """
        if index >= 0:
            return False
        server = next((server for server in self.servers if server.index == index and server.remote is not None), None)
        if server is None:  # it was lost: nothing that it says counts
            return True
        if isinstance(message, ActorLost):
            self._lose(server, message, self.orders.step_actors.now_s())
        elif message.ready_s is not None:
            server.up = True
            self._expect(server, self.orders.step_actors.now_s())
            self.step.record.span(server.server.holder, "start", server.held_s, max(server.held_s, message.ready_s[1]))
        elif message.closed:
            server.remote, server.index, server.closing, server.due_s = None, 0, False, math.inf
            server.release(message.time_s)
        elif message.item is not None:
            self._end(server, message)
        return True

    def _end(self, server: _Server, report: ActorReport) -> None:
        done = report.item
        assert done is not None
        item = self.work[done.index]
        if done.error is not None:
            error = ActorError(f"{named(done.index, item)} failed on {server.server.holder} with {done.error}")
            error.add_note(done.trace)
            raise error
        assert done.index == server.runs
        start_s = max(done.start_s, server.held_s)
        result = self.results[done.index] = pickle.loads(done.result)
        self._runs[done.index] = ItemRun(item, server.server.holder, start_s, max(start_s, done.end_s), result)
        server.runs, server.since_s, server.due_s = None, done.end_s, math.inf
        for i in self._then.get(done.index, ()):
            self._count(i, done.end_s)

    def _lose(self, server: _Server, lost: ActorLost, now_s: float) -> None:
        """Go on without a server's process: its item is run once more."""
        holder, i, closing = server.server.holder, server.runs, server.closing
        self.orders.step_actors.abandon(server.index)
        self.step.record.event(now_s, "work lost", holder, why=lost.reason, item=i)
        server.deaths += 1
        server.remote, server.index, server.runs, server.closing, server.due_s = None, 0, None, False, math.inf
        server.release(now_s)
        if i is None:
            if not closing and server.deaths > self.orders.wall.faults.restarts:
                raise ActorError(f"{holder} {lost.reason}; it was started {server.deaths} times, so the step was aborted")
            return
        item = self.work[i]
        self._tries[i] += 1
        self.step.record.span(holder, item.kind, max(server.since_s, server.held_s), now_s, call="lost")
        if self._tries[i] >= TRIES:
            raise ActorError(
                f"{named(i, item)} was lost {TRIES} times with its process, the last time because {holder} {lost.reason}; the "
                "step was aborted"
            )
        self._unstarted[item.gpus] += 1
        heapq.heappush(self._ready[item.gpus], (float(item.priority), self._ready_s[i], i))


def _place(server: WorkServer, step: RunningStep[RemoteActorState]) -> ActorPlan:
    """Return the GPUs of a server as a plan gives them to an actor."""
    node, pool = bought_as(server.gpu_ids[0], step.options.cluster)
    node = node if server.node is None else server.node
    return ActorPlan(pool.kind, server.gpu_ids, node, (), (), 1, market=pool.market, usd_per_gpu_s=pool.usd_per_gpu_s)


def _check(work: Sequence[WorkItem], step: RunningStep[RemoteActorState]) -> None:
    """Refuse items that cannot run in another process.

    Raises:
        PlanningError: naming the item.
    """
    for i, item in enumerate(work):
        if item.run is None:
            raise PlanningError(
                f"{named(i, item)} has seconds and no function, which the wall clock cannot run; give it a function, or use "
                "the virtual clock"
            )
        if getattr(getattr(item.run, "func", item.run), "__module__", None) == "__main__":
            raise PlanningError(
                f"the function of {named(i, item)} is defined in __main__, which other processes do not import; define it in a "
                "module"
            )
        try:
            pickle.dumps(item.run, pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise PlanningError(
                f"the function of {named(i, item)} cannot be sent to another process ({error}); define it at the top "
                "of a module"
            ) from None
        if any(not server.gpu_ids for server in item.gpus.of(step.plan)):
            raise PlanningError(f"{named(i, item)} has no GPU, which the wall clock cannot run; give it GPUs")
