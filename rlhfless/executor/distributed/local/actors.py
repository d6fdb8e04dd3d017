"""``StepActors`` of one step as processes of a pool on this machine.

It maps actors to processes and to the shared-memory blocks that they read. The pool (``pool.py``) assigns devices to processes.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from rlhfless.engine.protocol import Completion, Request
from rlhfless.executor.distributed.local.process import Process
from rlhfless.executor.distributed.messages import (
    ActorLost,
    ActorReport,
    NoRoom,
    RemoteActor,
    StartActor,
    Started,
    StartServer,
)
from rlhfless.executor.distributed.worker import work, worker
from rlhfless.executor.distributed.worker.backend import WorkerBackend
from rlhfless.executor.distributed.worker.shared_memory import Block, write_block
from rlhfless.system.child import Ended, Ready
from solver.model.plan import ActorPlan


class ProcessOwner(Protocol):
    """The interface of the process pool that a step's actors use."""

    inbox: queue.SimpleQueue[tuple[Process, Any]]

    @property
    def worker_backend(self) -> WorkerBackend:
        """Return the backend of the kind of engine to which processes are bound."""
        ...

    def now_s(self) -> float:
        """Seconds since the run's start."""
        ...

    def new_block(self) -> str:
        """Return a new name for shared memory, which is freed after the step at the latest."""
        ...

    def end(self, actor: Process) -> None:
        """End a process; its devices are free when this returns."""
        ...

    def forget(self, process: Process) -> None:
        """Remove a process that was killed."""
        ...


class LocalStepActors:
    """The actors of one step as local processes (see ``PoolStepActors``).

    Args:
        take: returns the process for an order, a waiting or a new one. keeps: whether a process without work stays alive.
        engines: a factory with the step's weights. origin_s: the run's start on this machine's monotonic clock.
    """

    def __init__(
        self,
        pool: ProcessOwner,
        take: Callable[[Started], Process],
        keeps: Callable[[ActorPlan], bool],
        engines: Any,
        origin_s: float,
    ) -> None:
        self._pool, self._take, self._keeps, self._engines, self._origin_s = pool, take, keeps, engines, origin_s
        self.used: list[Process] = []
        self.finished: list[tuple[Started, Process, float]] = []
        self._orders: dict[Process, Started] = {}
        self._process: dict[int, Process] = {}
        self._lost: list[Process] = []
        self._weights: Block | None = None

    @property
    def engines_to_prewarm(self) -> Any:
        """See ``PoolStepActors``. Such engines name their weights and contain none."""
        return self._engines

    @property
    def working(self) -> list[int]:
        """See ``PoolStepActors``."""
        return [p.pid for p in list(self._process.values()) if p.pid is not None and p.alive]

    @property
    def warm(self) -> set[tuple[int, ...]]:
        """See ``StepActors``."""
        return {order.plan.gpu_ids for order, _, _ in self.finished}

    def now_s(self) -> float:
        """See ``StepActors``."""
        return self._pool.now_s()

    def start(self, orders: Sequence[StartActor]) -> list[RemoteActor]:
        """Start all processes; the weights are written to shared memory meanwhile, once for the whole step."""
        started = []
        for order in orders:
            process = self._take(order)
            self.used.append(process)
            self._orders[process], self._process[order.index] = order, process
            started.append((process, order))
        if self._weights is None:
            self._weights = write_block(self._pool.worker_backend, self._pool.new_block(), self._engines)
        for process, order in started:
            process.send(worker.StartStep(self._origin_s, self._weights, order.latency, order.admission, order.weights_version))
        return [LocalActor(process, self._pool) for process, _ in started]

    def start_server(self, order: StartServer) -> RemoteActor:
        """See ``StepActors``."""
        process = self._take(order)
        self.used.append(process)
        self._orders[process], self._process[order.index] = order, process
        process.send(work.StartWork(self._origin_s, order.weights_version))
        return LocalActor(process, self._pool)

    def prefill(
        self, prefixes: Mapping[int, np.ndarray], receivers: Mapping[int, Sequence[int]]
    ) -> tuple[Mapping[int, Any], float]:
        """See ``StepActors``."""
        computed = self._engines.compute_prefixes(prefixes)
        done_s = self.now_s()
        sent = {}
        for actor, prompts in receivers.items():
            with contextlib.suppress(NoRoom):  # it computes them itself
                sent[actor] = write_block(self._pool.worker_backend, self._pool.new_block(), {p: computed[p] for p in prompts})
        return sent, done_s

    def reports(self, timeout_s: float | None) -> list[tuple[int, ActorReport | ActorLost]]:
        """See ``StepActors``."""
        inbox, messages = self._pool.inbox, []
        with contextlib.suppress(queue.Empty):
            messages.append(inbox.get(timeout=timeout_s))
            while True:
                messages.append(inbox.get_nowait())
        reports = []
        for process, message in messages:
            if isinstance(message, Ready):
                continue
            if process in self._orders:  # else it ended after it was closed, or between steps: nobody's loss
                reports.append((self._orders[process].index, self._read(process, message)))
        return reports

    def abandon(self, index: int) -> None:
        """See ``StepActors``. Its process is killed."""
        process = self._process.pop(index)
        self._orders.pop(process, None)
        process.kill()
        self._lost.append(process)

    def remove_dead(self) -> None:
        """Forget abandoned processes, which have ended by now and write no more shared memory."""
        for process in self._lost:
            self._pool.forget(process)

    def _read(self, process: Process, message: Any) -> ActorReport | ActorLost:
        """Convert a message of the process to a report; an actor that closed waits for another step, or ends."""
        if isinstance(message, ActorReport):
            if not message.closed:
                return message
            order = self._orders.pop(process)
            del self._process[order.index]
            if not order.short_of_memory and self._keeps(order.plan):
                self.finished.append((order, process, message.time_s))
                return message
            self._pool.end(process)
            return replace(message, time_s=self.now_s())
        name = f"(process {process.pid} on {process.device})"
        if isinstance(message, Ended):
            return ActorLost(f"{name} {process.how_it_ended()}")
        return ActorLost(
            f"{name} failed with {message.error}", message.out_of_memory, message.unrecoverable, trace=message.trace
        )


class LocalActor:
    """One actor of a step as a local process (see ``RemoteActor``)."""

    def __init__(self, process: Process, pool: ProcessOwner) -> None:
        self._process, self._pool = process, pool

    @property
    def cpu_s(self) -> float | None:
        """See ``RemoteActor``."""
        return self._process.cpu_s

    def add(self, requests: Sequence[Request], prefixes: Any = None) -> None:
        """See ``RemoteActor``."""
        self._process.send(worker.Add(requests, prefixes))

    def take_off(self, responses: Sequence[int], with_kv: Collection[int]) -> None:
        """See ``RemoteActor``."""
        self._process.send(worker.TakeOff(responses, {r: self._pool.new_block() for r in sorted(with_kv)}))

    def prefill(self, prefixes: Mapping[int, np.ndarray], receivers: Mapping[int, Sequence[int]]) -> None:
        """See ``RemoteActor``."""
        self._process.send(
            worker.ComputePrefixesOrder(prefixes, receivers, {actor: self._pool.new_block() for actor in receivers})
        )

    def run_item(self, index: int, function: Any, completions: Sequence[Completion], results: Sequence[Any]) -> None:
        """See ``RemoteActor``."""
        self._process.send(work.RunItem.of(index, function, completions, results))

    def close(self) -> None:
        """See ``RemoteActor``."""
        self._process.send(worker.End())
