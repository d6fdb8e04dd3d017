"""State of one server of work as the wall-clock event loop knows it: its process, its item, and what it has held."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from rlhfless.executor.distributed.failure_limits import GRACE_S, Faults
from rlhfless.executor.distributed.messages import RemoteActor, StartServer
from rlhfless.executor.distributed.thread_server import ThreadServer
from rlhfless.executor.step.work_items import Gpus, WorkItem, WorkServer
from rlhfless.executor.step.work_rows import Hold, allocated
from rlhfless.system.child import LEAST_CPU_S
from solver.model.cluster import Cluster, MixedCluster
from solver.model.plan import ActorPlan


@dataclass(eq=False)
class ServerState:
    """A server of work. Its process is an actor of the pool without an engine.

    Attributes:
        place: its GPUs as the pool knows them.
        in_process: its functions run in a thread of this program.
        remote: its process; None: it has none. index: of its process, negative and never used twice.
        up, closing: its process accepts orders; was ordered to end.
        runs: the item that it runs. since_s: when it was ordered to start, to run its item or to end, or when its last item
            ended.
        worked: it has been given an item. deaths: of its processes.
        due_s: when a process that has not reported becomes suspect; suspect: it is, and its use of the processor is watched.
        heard_s: when it last reported or sent a heartbeat. cpu_s: processor seconds that it had used when it became suspect.
        held: the GPUs that it holds now, with an end that is not known yet; None: none. holds: those before.
    """

    server: WorkServer
    place: ActorPlan
    in_process: bool
    remote: RemoteActor | ThreadServer | None = None
    index: int = 0
    up: bool = False
    closing: bool = False
    runs: int | None = None
    since_s: float = -math.inf
    worked: bool = False
    deaths: int = 0
    due_s: float = math.inf
    suspect: bool = False
    heard_s: float = -math.inf
    cpu_s: float | None = None
    held: Hold | None = None
    holds: list[Hold] = field(default_factory=list)

    @classmethod
    def of(cls, server: WorkServer, cluster: Cluster | MixedCluster, *, in_process: bool) -> ServerState:
        """Return a server without a process."""
        kind, node, _, market, usd_per_gpu_s = allocated(server, cluster)[0]  # its GPUs are billed node by node
        place = ActorPlan(kind, server.gpu_ids, node, (), (), 1, market=market, usd_per_gpu_s=usd_per_gpu_s)
        return cls(server, place, in_process)

    @property
    def holder(self) -> str:
        """Return its name in the trace."""
        return self.server.holder

    @property
    def gpus(self) -> Gpus:
        """Return the GPUs whose items it runs."""
        return self.server.gpus

    @property
    def ids(self) -> frozenset[int]:
        """Return its GPUs."""
        return frozenset(self.server.gpu_ids)

    @property
    def idle(self) -> bool:
        """Return whether it has a process that could be given an item."""
        return self.remote is not None and self.runs is None and not self.closing

    @property
    def held_s(self) -> float:
        """Return since when it holds its GPUs."""
        return math.inf if self.held is None else self.held.start_s

    def start(self, index: int, role: str, now_s: float, step_start_s: float, weights_version: int) -> StartServer:
        """Note that a process is started for it, and return the order. A process that waited until now is billed as waiting."""
        self.index, self.up, self.since_s = index, False, now_s
        self.hold(role, now_s)
        return StartServer(index, self.holder, replace(self.place, start_s=now_s - step_start_s), weights_version)

    def gone(self, now_s: float) -> None:
        """Note that its process has ended."""
        self.remote, self.index, self.runs, self.closing, self.suspect, self.due_s = None, 0, None, False, False, math.inf
        self.release(now_s)

    def hold(self, role: str, now_s: float) -> None:
        """Hold the GPUs with this role from now on."""
        if self.held is None or role != self.held.role:
            self.release(now_s)
            self.held = Hold(self.server, role, now_s, math.inf)

    def ready(self, ready_s: float) -> None:
        """Note that its process accepts orders since then."""
        self.up = True
        if self.held is not None and not self.in_process:
            self.held = self.held._replace(startup_s=max(0.0, ready_s - self.held.start_s), startup="start")

    def release(self, now_s: float) -> None:
        """Note what was held until now."""
        self.holds, self.held = self.holds_until(now_s), None

    def holds_until(self, now_s: float) -> list[Hold]:
        """Return what was held until now, with what still is."""
        if self.held is None:
            return self.holds
        return [*self.holds, self.held._replace(end_s=max(now_s, self.held.start_s))]

    def expect(self, now_s: float, item: WorkItem | None, faults: Faults) -> None:
        """Set when its process is suspect if it does not report: that it is up, what became of ``item``, that it ended."""
        if self.in_process:
            return
        self.suspect, self.heard_s = False, now_s
        if not self.up:
            self.due_s = self.held_s + self.limit(item, faults)[0]
        elif self.closing or item is not None:
            self.due_s = now_s + self.limit(item, faults)[0]
        else:
            self.due_s = math.inf

    def limit(self, item: WorkItem | None, faults: Faults) -> tuple[float, str]:
        """Return the seconds for which its process may say nothing now, and the field of ``Faults`` that sets them."""
        if not self.up:
            return faults.min_start_timeout_s, "min_start_timeout_s"
        planned_s = 0.0 if self.closing or item is None or item.seconds is None else faults.silence_factor * item.seconds
        return max(faults.silence_floor_s, planned_s), "silence_floor_s"

    def beats(self, item: WorkItem | None) -> bool:
        """Return whether its heartbeats count: it runs an ``item`` of unknown duration."""
        return self.up and not self.closing and item is not None and item.seconds is None

    def hangs(self, now_s: float, item: WorkItem | None, faults: Faults) -> bool:
        """Return whether a process that is due is lost. At first it is suspect only, and due again a moment later. If it uses
        the processor until then, it lives.
        """
        cpu_s = None
        if self.remote is not None and not isinstance(self.remote, ThreadServer) and self.beats(item):
            cpu_s = self.remote.cpu_s
        if not self.suspect:
            self.suspect, self.cpu_s, self.due_s = True, cpu_s, now_s + GRACE_S
            return False
        if cpu_s is not None and self.cpu_s is not None and cpu_s - self.cpu_s >= LEAST_CPU_S:
            self.expect(now_s, item, faults)
            return False
        return True
