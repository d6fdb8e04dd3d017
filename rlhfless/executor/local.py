"""The actors of one step as processes of a pool: what the event loop's interface means for them.

Knows which process is which actor and what lies in shared memory for it; nothing of which process has which device, which the
pool knows (``processes.py``), or of what becomes of the responses of one that died.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlhfless.engine.protocol import Request
from rlhfless.executor import worker
from rlhfless.executor.remote import Lost, Order, RemoteActor, Report
from rlhfless.executor.spawn import Process

if TYPE_CHECKING:
    from rlhfless.executor.processes import ProcessPool


class LocalCrew:
    """The crew of one step (see ``Crew``)."""

    def __init__(self, pool: ProcessPool, engines: Any, start_s: float) -> None:
        self._pool, self._engines = pool, engines
        self._origin_s = time.monotonic() - start_s
        self._index: dict[Process, int] = {}
        self._process: dict[int, Process] = {}
        self._lost: list[Process] = []
        self._weights: worker.Block | None = None

    def now_s(self) -> float:
        return time.monotonic() - self._origin_s

    def start(self, orders: Sequence[Order]) -> list[RemoteActor]:
        """All processes are on their way up before the weights are laid out for them, once for all of the step."""
        pool, engines = self._pool, self._engines
        processes = []
        for order in orders:
            processes.append(pool.take(pool.device_of(order.plan), engines.side, engines.binding(order.latency)))
            self._index[processes[-1]] = order.index
            self._process[order.index] = processes[-1]
        if self._weights is None:
            self._weights = worker.write_block(pool.torch, pool.new_block(), engines)
        for process, order in zip(processes, orders, strict=True):
            begin = worker.Begin(self._origin_s, self._weights, order.latency, order.admission, order.weights_version)
            process.send(begin)
        return [LocalActor(process, pool) for process in processes]

    def prefill(
        self, prefixes: Mapping[int, np.ndarray], receivers: Mapping[int, Sequence[int]]
    ) -> tuple[Mapping[int, Any], float]:
        computed = self._engines.compute_prefixes(prefixes)
        done_s = self.now_s()
        sent = {
            actor: worker.write_block(self._pool.torch, self._pool.new_block(), {p: computed[p] for p in prompts})
            for actor, prompts in receivers.items()
        }
        return sent, done_s

    def reports(self, timeout_s: float | None) -> list[tuple[int, Report | Lost]]:
        inbox, found = self._pool.inbox, []
        with contextlib.suppress(queue.Empty):
            found.append(inbox.get(timeout=timeout_s))
            while True:
                found.append(inbox.get_nowait())
        said = []
        for process, message in found:
            if process in self._index:  # else it ended after it was closed, or between steps: nobody's loss
                said.append((self._index[process], self._read(process, message)))
        return said

    def abandon(self, index: int) -> None:
        process = self._process.pop(index)
        self._index.pop(process, None)
        process.kill()
        self._lost.append(process)

    def bury(self) -> None:
        """Processes that were abandoned are gone: none will lay out anything in shared memory any more."""
        for process in self._lost:
            self._pool.forget(process)

    def _read(self, process: Process, said: Any) -> Report | Lost:
        """What it said, in the words of the interface; an actor that closed gives its process back."""
        if isinstance(said, Report):
            if not said.closed:
                return said
            del self._process[self._index.pop(process)]
            self._pool.give_back(process)
            return said if self._pool.keep else replace(said, time_s=self.now_s())
        name = f"(process {process.pid} on {process.device})"
        if said is None:
            return Lost(f"{name} {process.end()}")
        return Lost(f"{name} failed with {said.error}", said.out_of_memory, said.hopeless, trace=said.trace)


class LocalActor:
    """An actor of a crew (see ``RemoteActor``)."""

    def __init__(self, process: Process, pool: ProcessPool) -> None:
        self._process, self._pool = process, pool

    def add(self, requests: Sequence[Request], prefixes: Any = None) -> None:
        self._process.send(worker.Add(requests, prefixes))

    def cut(self, responses: Sequence[int], with_kv: Collection[int]) -> None:
        self._process.send(worker.CutOff(responses, {r: self._pool.new_block() for r in sorted(with_kv)}))

    def prefill(self, prefixes: Mapping[int, np.ndarray], receivers: Mapping[int, Sequence[int]]) -> None:
        self._process.send(worker.Prefill(prefixes, receivers, {actor: self._pool.new_block() for actor in receivers}))

    def close(self) -> None:
        self._process.send(worker.End())
