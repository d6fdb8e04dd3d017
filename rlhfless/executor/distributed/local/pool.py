"""``ProcessPool``: runs actors as processes of this machine, one per actor, each on its own device, on the wall clock.

It assigns devices to processes and names shared memory. Any exception that ends a step early ends every process and frees all
shared memory.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import queue
import secrets
from collections.abc import Collection, Sequence
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from rlhfless.engine.common.pool_engines import PoolEngines
from rlhfless.executor.distributed.failure_limits import Faults
from rlhfless.executor.distributed.messages import ActorLost, ActorReport, Block, Order, Prewarm
from rlhfless.executor.distributed.pool.lifecycle import Lifecycle
from rlhfless.executor.distributed.pool.pool import ActorPool
from rlhfless.executor.distributed.transport import ActorPlacement
from rlhfless.executor.distributed.wall_clock import MACHINE, Clock
from rlhfless.executor.distributed.worker.process import main
from rlhfless.executor.distributed.worker.shared_memory import write_block
from rlhfless.executor.step.record import StepRecord
from rlhfless.executor.step.work_items import WorkServer
from rlhfless.system.child import Child, Ended, Failed, Ready
from solver.model.cluster import Cluster, MixedCluster
from solver.model.plan import Plan
from solver.model.plurals import counted

CPU = "cpu"
SOON_S = 0.5  # that a process whose pipe has ended has to say how it ended


def _cuda_devices() -> Sequence[str]:
    """Return this machine's CUDA devices; none without torch, which alone uses them. Simulated engines need no torch."""
    if importlib.util.find_spec("torch") is None:
        return ()
    from rlhfless.engine.torch.devices import cuda_devices

    return cuda_devices()


def _as_kept(device: str) -> str:
    """Return a device, or the one spelling of a server's URL.

    Raises:
        InputError: it is no URL of a server, or has a password.
    """
    if "://" not in device and "@" not in device:
        return device
    from rlhfless.engine.server.client import Client  # HTTP, which no other pool needs

    return Client(device).url


class Process(Child):
    """A process that can run an actor.

    Args:
        prewarm: what it starts before it accepts orders; None: nothing.

    Attributes:
        device: on which it computes.
    """

    def __init__(
        self, device: str, backend_module: str, inbox: queue.SimpleQueue[tuple[Any, Any]], prewarm: Prewarm | None = None
    ) -> None:
        self.device = device
        super().__init__(main, (device, backend_module, prewarm), f"rlhfless-{device}", inbox)

    @property
    def up_s(self) -> float | None:
        """Return when it could accept orders, on this machine's monotonic clock; None before."""
        return None if self.ready is None else float(self.ready.value)

    def how_it_ended(self, wait_s: float = SOON_S) -> str:
        """Return how the process ended, as part of a sentence."""
        return super().how_it_ended(wait_s)


class ProcessPool(ActorPool[Process]):
    """A pool of processes on this machine, one per actor (see ``ActorPool``).

    A process starts when a plan first needs it, in parallel with the others, or earlier if the life cycle prewarms it. A
    finished actor frees its GPU memory. A process that is kept loads the next step's weights without a new start.

    Args:
        devices: torch device of every GPU id that plans use. None: this machine's CUDA devices in order; without any, or
            without torch, every actor computes on the CPU with one thread. With a ``ServerEngineFactory``: the URL of the
            server on each of these GPUs.
        lifecycle: how long processes live; by default from step to step, because the machine is allocated anyway.
        faults: limits for actors that die, hang or are slow.
        clock: the clock of the run, which processes share.

    Raises:
        InputError: a URL is none of a server, or has a password.
    """

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        *,
        lifecycle: Lifecycle = Lifecycle.serverful(),  # noqa: B008 (frozen)
        faults: Faults = Faults(),  # noqa: B008 (frozen)
        clock: Clock = MACHINE,
    ) -> None:
        if devices is None:
            devices = _cuda_devices()
        super().__init__(lifecycle, faults, clock)
        self.devices = tuple(map(_as_kept, devices))
        self._all: list[Process] = []
        self.inbox: queue.SimpleQueue[tuple[Process, Any]] = queue.SimpleQueue()
        self._name, self._count = f"rlhfless-{os.getpid()}-{secrets.token_hex(2)}", itertools.count()
        self._blocks: list[str] = []  # names of shared memory that may be there

    def __repr__(self) -> str:
        devices = ", ".join(self.devices) or "the CPU"
        return f"ProcessPool: {len(self.idle)} idle of {counted(len(self._all), 'process', 'processes')} on {devices}"

    @property
    def meta(self) -> dict[str, str]:
        """See ``ActorPool``."""
        return {"clock": "wall", "charging": "measured", "device": f"a process per actor on {', '.join(self.devices) or CPU}"}

    def close(self, record: StepRecord | None = None) -> None:
        """End every process; allocations up to then are written to ``record``. Idempotent; another step would start new
        processes.
        """
        self.release()
        if record is not None:
            self.finalise_allocations(record)
        self.end_all(list(self._all))
        self._step_over()

    # --- see ``Transport`` --------------------------------------------------------------------------------------------

    def spawn(self, place: ActorPlacement, prewarm: Prewarm | None = None) -> Process:
        """Start a process on the devices of the place."""
        process = Process(self.device_of(place.gpu_ids), self.side_name, self.inbox, prewarm)
        self._all.append(process)
        return process

    def serves(self, here: ActorPlacement, wanted: ActorPlacement) -> bool:
        """Return whether both places use the same devices; GPU ids without devices of their own are mere names."""
        return here.alike(wanted) and self.device_of(here.gpu_ids) == self.device_of(wanted.gpu_ids)

    def up_s(self, actor: Process) -> float | None:
        """Return when it could accept orders."""
        return None if actor.up_s is None else actor.up_s - self._origin_s

    def alive(self, actor: Process) -> bool:
        """Return whether the process is alive, judged by its pipe."""
        return actor.alive

    def kill(self, actor: Process, *, at_once: bool = False) -> None:
        """See ``Transport``: what it stored stays until the step is over."""
        actor.kill()

    def end_all(self, actors: Sequence[Process]) -> None:
        """See ``Transport``."""
        for process in actors:
            process.kill()
        for process in actors:
            process.join()
        with self.lock:  # the pool's thread changes the list, too
            self._all = [process for process in self._all if process not in actors]

    def send(self, actor: Process, order: Order, version: int) -> None:
        """See ``Transport``."""
        actor.send(order)

    def listen(self, actors: Collection[Process], timeout_s: float | None) -> list[tuple[Process, ActorReport | ActorLost]]:
        """See ``Transport``."""
        messages = []
        with contextlib.suppress(queue.Empty):
            messages.append(self.inbox.get(timeout=timeout_s))
            while True:
                messages.append(self.inbox.get_nowait())
        found: list[tuple[Process, ActorReport | ActorLost]] = []
        for process, message in messages:
            if process not in actors or isinstance(message, Ready):  # else it ended without work, which is no loss
                continue
            where = f"process {process.pid} on {process.device}"
            if isinstance(message, Ended):
                found.append((process, ActorLost(f"({where}) {process.how_it_ended()}")))
            else:
                found.append((process, ActorLost.failed(where, message) if isinstance(message, Failed) else message))
        return found

    def put(self, name: str, obj: Any) -> Block:
        """See ``Transport``."""
        return write_block(self.worker_backend, name, obj)

    def pid(self, actor: Process) -> int | None:
        """See ``Transport``."""
        return actor.pid if actor.alive else None

    def cpu_s(self, actor: Process) -> float | None:
        """See ``Transport``."""
        return actor.cpu_s

    def _refusal(self, plan: Plan, engines: PoolEngines, cluster: Cluster | MixedCluster) -> str | None:
        for i, actor in enumerate(plan.actors):
            if self.devices and max(actor.gpu_ids) >= len(self.devices):
                return (
                    f"actor {i} of the plan uses GPU {max(actor.gpu_ids)}, but the pool has "
                    f"{counted(len(self.devices), 'device')} ({', '.join(self.devices)}); plan for a cluster of "
                    f"{counted(len(self.devices), 'GPU')}"
                )
        return None

    def devices_of(self, plan: Plan) -> list[str]:
        """See ``ActorPool``."""
        return [self.device_of(actor.gpu_ids) for actor in plan.actors]

    def _work_refusal(self, servers: Sequence[WorkServer], cluster: Cluster | MixedCluster) -> str | None:
        for server in servers:
            if self.devices and max(server.gpu_ids, default=0) >= len(self.devices):
                return (
                    f"server {server.holder!r} of the work uses GPU {max(server.gpu_ids)}, but the pool has "
                    f"{counted(len(self.devices), 'device')} ({', '.join(self.devices)}); plan for a smaller cluster, or give "
                    "the pool more devices"
                )
        return None

    def device_of(self, gpu_ids: Sequence[int]) -> str:
        """Return the device of an actor with these GPUs: one, or several separated by commas."""
        return ",".join(dict.fromkeys(self.devices[i] for i in gpu_ids)) if self.devices else CPU

    def new_name(self) -> str:
        """See ``Transport``: the name of shared memory, which is freed after the step at the latest."""
        self._blocks.append(f"{self._name}-{next(self._count)}")
        return self._blocks[-1]

    def _step_over(self) -> None:
        for name in self._blocks:
            with contextlib.suppress(FileNotFoundError, ValueError):  # gone, or its process died before it had a size
                memory = SharedMemory(name)
                memory.close()
                memory.unlink()
        self._blocks.clear()
