"""``PoolWork``: runs a step's work items on the wall clock, in processes of the pool that have no engine.

The rule is that of ``schedule_work``, decided as time passes: no server idles while an item that it may run is ready,
and servers that have worked before come first. A server is taken from the pool like an actor when it is first needed, so a
process that has just finished decoding on its GPUs is reused. It ends when no item is left for it. An item whose process dies
is run once more. One that fails, or whose process dies twice, ends the step. A process is lost when it is silent for a multiple
of its item's ``seconds`` (``Faults``). Without these an item may take any time, and its process is lost when it sends no
heartbeats. Functions of items ``in_process`` run in a thread instead.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from typing import Any

from rlhfless.executor.distributed.actor_state import RemoteActorState
from rlhfless.executor.distributed.failure_limits import silent
from rlhfless.executor.distributed.messages import ActorLost, ActorReport, Close, ItemAnswer, RunItem
from rlhfless.executor.distributed.orders import ActorOrders
from rlhfless.executor.distributed.ready_items import ReadyItems
from rlhfless.executor.distributed.server_state import ServerState
from rlhfless.executor.distributed.thread_server import POLL_S, ThreadServer
from rlhfless.executor.step.failure import ActorError
from rlhfless.executor.step.progress import WorkSoFar
from rlhfless.executor.step.record import Row, StepRecord
from rlhfless.executor.step.step_state import RunningStep
from rlhfless.executor.step.work_items import Gpus, ItemRun, WorkItem, named
from rlhfless.executor.step.work_rows import ExecutedWork, write_holds
from solver.model.errors import PlanningError

TRIES = 2  # processes that may die with an item


class PoolWork:
    """The work items of a step on the wall clock; see ``rlhfless.executor.step.event_loop.StepWork``.

    Attributes:
        results: of the items that have ended.

    Raises:
        PlanningError: an item cannot run in another process.
    """

    def __init__(self, step: RunningStep[RemoteActorState], orders: ActorOrders) -> None:
        self.step, self.orders, self.work = step, orders, step.options.work
        _check(self.work)
        self.ready = ReadyItems(self.work, step.record.start_s)
        in_process = {item.gpus for item in self.work if item.in_process}
        self.servers = [
            ServerState.of(server, step.options.cluster, in_process=gpus in in_process)
            for gpus in self.ready.unstarted
            for server in gpus.servers(step.plan)
        ]
        self.results: dict[int, Any] = {}
        self._runs: dict[int, ItemRun] = {}
        self._tries = [0] * len(self.work)
        self._next_index = -1
        self._lost: list[ItemRun] = []
        self._shown: list[Row] = []  # spans of the items that have begun
        self._shown_of: dict[int, Row] = {}  # of these, by item, those of items that run
        step.work_so_far = self.so_far

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
        ids = frozenset(gpu_ids)
        return any(self.ready.any(s.gpus) and s.remote is None and s.ids == ids and not s.in_process for s in self.servers)

    def will_use(self, gpu_ids: Sequence[int]) -> bool:
        """Return whether items have not begun that may run on exactly these GPUs."""
        ids = frozenset(gpu_ids)
        return any(self.ready.unstarted[s.gpus] and s.ids == ids and not s.in_process for s in self.servers)

    def next_time_s(self) -> float:
        """Return when something is due without a report: an item's time, or that a process counts as lost."""
        now_s = self.orders.step_actors.now_s()
        later = [at_s for server in self.servers if server.remote is None and (at_s := self._from_s(server)) > now_s]
        due_s = min([self.ready.next_time_s(), *later, *(server.due_s for server in self.servers)])
        polls = any(isinstance(s.remote, ThreadServer) and not s.idle for s in self.servers)
        return min(due_s, now_s + POLL_S) if polls else due_s

    def close(self) -> None:
        """Wait for functions that run in this process; processes belong to the pool."""
        for server in self.servers:
            if isinstance(server.remote, ThreadServer):
                server.remote.join()

    def executed(self) -> ExecutedWork:
        """See ``StepWork``."""
        now_s = self.orders.step_actors.now_s()
        for server in self.servers:
            server.release(now_s)
        runs = [self._runs[i] for i in sorted(self._runs)]
        return [*runs, *self._lost], [hold for server in self.servers for hold in server.holds]

    def so_far(self, now_s: float) -> WorkSoFar:
        """Return the items that have begun, and the GPUs held for them, until now; takes as long however many have ended."""
        for server in self.servers:
            if server.runs is not None and (server.up or server.in_process):
                self._show(server, server.runs, now_s)
        record = self.step.record
        held = StepRecord(record.run, record.step, record.plan, record.start_s)
        holds = [hold for server in self.servers for hold in server.holds_until(now_s)]
        write_holds(held, holds, self.step.options.cluster, now_s)
        return WorkSoFar(self._shown, held.allocations)

    def _show(self, server: ServerState, i: int, until_s: float) -> None:
        """Show that a server has run an item until then."""
        if i not in self._shown_of:
            since_s = max(server.since_s, server.held_s)
            self._shown_of[i] = self.step.record.span_row(server.holder, self.work[i].kind, since_s, since_s)
            self._shown.append(self._shown_of[i])
        self._shown_of[i]["end_s"] = max(self._shown_of[i]["start_s"], until_s)

    # --- starting -----------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Start what may start now, and end servers for which nothing is left.

        Raises:
            ActorError: processes died too often.
        """
        if not self.work:
            return
        for server in [server for server in self.servers if isinstance(server.remote, ThreadServer)]:
            assert isinstance(server.remote, ThreadServer)
            for report in server.remote.reports():
                self.heard(server.index, report)
        now_s, completions = self.orders.step_actors.now_s(), self.step.record.completions
        self.ready.admit(now_s, self.step.complete, lambda response: completions[response].time_s)
        for server in [server for server in self.servers if server.due_s <= now_s]:
            item, faults = self._item(server), self.orders.wall.faults
            if server.hangs(now_s, item, faults):
                self._lose(server, silent(server.heard_s if server.up else None, *server.limit(item, faults)), now_s)
        for gpus in self.ready.unstarted:
            while self.ready.any(gpus) and (free := self._free_server(gpus)) is not None:
                self._begin(free, self.ready.take(gpus), now_s)
        over = not (self.step.live or self.orders.ending)
        for server in self.servers:
            held_all_step = server.server.held_all_step
            if server.remote is None and held_all_step and not over and self._is_free(server):
                role = next(item.holder_role for item in self.work if item.gpus == server.gpus)
                self._start(server, role, now_s)
            needless = not self.ready.unstarted[server.gpus] and (over or not held_all_step)
            if server.idle and (needless or self._in_the_way(server)):
                self._close(server, now_s)

    def _free_server(self, gpus: Gpus) -> ServerState | None:
        """Return the server for the next item of these GPUs: one that has worked, else one that is there, else another.

        None: all work.
        """
        of_gpus = [server for server in self.servers if server.gpus == gpus]
        if there := [server for server in of_gpus if server.idle]:
            return min(there, key=lambda server: (not server.worked, server.since_s))
        without = [server for server in of_gpus if server.remote is None and self._is_free(server)]
        return min(without, key=lambda server: server.deaths, default=None)

    def _from_s(self, server: ServerState) -> float:
        """Return when the server is allocated at the earliest."""
        return self.step.record.start_s + server.server.from_s

    def _is_free(self, server: ServerState) -> bool:
        """Return whether its time has come and all its GPUs are free."""
        if self._from_s(server) > self.orders.step_actors.now_s():
            return False
        taken = {gpu for a in (*self.step.live.values(), *self.orders.ending.values()) for gpu in a.plan.gpu_ids}
        taken.update(gpu for s in self.servers if s.remote is not None for gpu in s.ids)
        return server.ids.isdisjoint(taken)

    def _in_the_way(self, server: ServerState) -> bool:
        """Return whether an item of other servers could start on GPUs that this one holds without work."""
        if server.server.held_all_step or self.ready.any(server.gpus):
            return False
        return any(self.ready.any(s.gpus) and s.remote is None and not s.ids.isdisjoint(server.ids) for s in self.servers)

    def _start(self, server: ServerState, role: str, now_s: float) -> None:
        order = server.start(self._next_index, role, now_s, self.step.record.start_s, self.orders.wall.weights_version)
        self._next_index -= 1
        server.expect(now_s, None, self.orders.wall.faults)
        actors = self.orders.step_actors
        server.remote = ThreadServer(actors.now_s) if server.in_process else actors.start_server(order)

    def _begin(self, server: ServerState, i: int, now_s: float) -> None:
        item = self.work[i]
        if server.remote is None:
            self._start(server, item.holder_role, now_s)
        assert server.remote is not None
        server.hold(item.holder_role, now_s)
        server.runs, server.since_s, server.worked = i, now_s, True
        if server.up or server.in_process:
            self._send(server)
        server.expect(now_s, item, self.orders.wall.faults)

    def _send(self, server: ServerState) -> None:
        """Send a server its item. A new process gets it once it is up: if it dies before, the item is not to blame."""
        assert server.remote is not None
        assert server.runs is not None
        item = self.work[server.runs]
        completions = tuple(self.step.record.completions[r] for r in item.responses)
        order = RunItem(server.runs, (item.run, completions, tuple(self.results[before] for before in item.items)))
        server.remote.send(order if server.in_process else order.pickled())

    def _close(self, server: ServerState, now_s: float) -> None:
        assert server.remote is not None
        server.closing, server.since_s = True, now_s
        server.remote.send(Close())
        server.expect(now_s, None, self.orders.wall.faults)

    # --- hearing ------------------------------------------------------------------------------------------------------

    def heard(self, index: int, message: ActorReport | ActorLost) -> bool:
        """Take in what a server's process reports; returns whether it is one's.

        Raises:
            ActorError: an item failed, or its process died too often.
        """
        if index >= 0:
            return False
        server = next((server for server in self.servers if server.index == index), None)
        if server is None:  # it was lost: nothing that it says counts
            return True
        if isinstance(message, ActorLost):
            self._lose(server, message, self.orders.step_actors.now_s())
        elif message.ready_s is not None:
            server.ready(message.ready_s[1])
            item = self._item(server)
            if item is not None and not server.in_process:
                self._send(server)
            server.expect(self.orders.step_actors.now_s(), item, self.orders.wall.faults)
        elif message.closed:
            server.gone(message.time_s)
        elif message.item is not None:
            self._end(server, message.item, message.time_s)
        elif server.beats(item := self._item(server)):
            server.expect(self.orders.step_actors.now_s(), item, self.orders.wall.faults)
        return True

    def _item(self, server: ServerState) -> WorkItem | None:
        return None if server.runs is None else self.work[server.runs]

    def _end(self, server: ServerState, done: ItemAnswer, end_s: float) -> None:
        i, item = done.index, self.work[done.index]
        if done.failed is not None:
            error = ActorError(f"{named(i, item)} failed on {server.holder} with {done.failed.error}")
            error.add_note(done.failed.trace)
            raise error
        assert i == server.runs
        start_s = max(done.start_s, server.held_s)
        result = self.results[i] = done.result if server.in_process else pickle.loads(done.result)
        self._runs[i] = ItemRun(item, server.holder, start_s, max(start_s, end_s), result)
        self._show(server, i, end_s)
        del self._shown_of[i]
        server.runs, server.since_s, server.due_s = None, end_s, math.inf
        self.ready.ended(i, end_s)

    def _lose(self, server: ServerState, lost: ActorLost, now_s: float) -> None:
        """Go on without a server's process: its item is run once more."""
        i, up, closing, since_s = server.runs, server.up, server.closing, max(server.since_s, server.held_s)
        if i is not None:
            self._shown_of.pop(i, None)
        said = f"{server.holder} {lost.reason}"
        self.orders.step_actors.abandon(server.index)
        self.step.record.event(now_s, "work lost", server.holder, why=lost.reason, item=i)
        server.deaths += 1
        server.gone(now_s)
        if closing:
            return
        if i is not None and up:
            self._tries[i] += 1
            self._lost.append(ItemRun(self.work[i], server.holder, since_s, now_s, lost=True))
        if not (i is not None and up) and server.deaths > self.orders.wall.faults.restarts:
            raise ActorError(f"{said}; its process was lost {server.deaths} times, so the step was aborted")
        if i is not None and self._tries[i] >= TRIES:
            raise ActorError(
                f"{named(i, self.work[i])} was lost {TRIES} times with its process, the last time because {said}; the step was "
                "aborted"
            )
        if i is not None:
            self.ready.put_back(i)


def _check(work: Sequence[WorkItem]) -> None:
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
        if item.in_process:
            continue
        if any(not ids for ids in item.gpus.own):
            raise PlanningError(f"{named(i, item)} has no GPU, which the wall clock cannot run; give it GPUs")
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
