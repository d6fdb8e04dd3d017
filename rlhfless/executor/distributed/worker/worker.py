"""The worker of one actor: obeys orders from its inbox and decodes iterations in between.

Inputs: orders. Outputs: reports and shared-memory blocks. The code of the engine kind is in a backend module (``backend.py``),
which is imported when the process runs. The clock is the machine's monotonic one, which all processes share. ``process.py``
runs a worker in a process of its own.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from rlhfless.engine.common.pool_engines import PoolEngine
from rlhfless.engine.protocol import Completion, EngineSpan, Progress, Request, SupportsDrafts
from rlhfless.errors import InputTypeError
from rlhfless.executor.distributed.messages import (
    ActorReport,
    Add,
    Block,
    Close,
    ComputePrefixes,
    KvCopy,
    NoRoom,
    RunItem,
    StartStep,
    StartWork,
    TakeOff,
    Unreachable,
)
from rlhfless.executor.distributed.wall_clock import MACHINE, Clock
from rlhfless.executor.distributed.worker.backend import backend_of
from rlhfless.executor.distributed.worker.shared_memory import read_block, write_block
from rlhfless.system.child import beating
from solver.model.errors import as_given
from solver.model.latency import LatencyModel

Beating = Callable[[Callable[[], object]], AbstractContextManager[None]]
REPORT_EVERY_S = 0.02  # at most, while nothing completes
ENGINE_METHODS = ("add", "step", "cut", "generated_tokens", "running", "waiting", "close")


class Worker:
    """An actor on ``device``. It imports ``backend_module``.

    Attributes:
        beating: context in which a thread sends heartbeats.
    """

    beating: Beating = staticmethod(beating)

    def __init__(
        self, connection: Connection, inbox: queue.SimpleQueue[Any], device: str, backend_module: str, clock: Clock = MACHINE
    ) -> None:
        self.connection, self.inbox, self.device, self.clock = connection, inbox, device, clock
        self.worker_backend = backend_of(backend_module)
        self.worker_backend.use_device(device)
        self.engines: Any = None
        self.engine: PoolEngine | None = None
        self.origin_s = 0.0
        self.up_s = self.clock.now_s()
        self._from_s = 0.0  # where the next iteration begins, unless the last one ended later
        self._reported_s, self._reported_drafts_off = 0.0, False
        self._spans: list[EngineSpan] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            StartStep: self._start_step, Add: self._add, TakeOff: self._take_off, ComputePrefixes: self._prefill,
            StartWork: self._start_work, RunItem: self._run_item, Close: self._close,
        }  # fmt: skip

    def now_s(self) -> float:
        """Return the seconds since the run's start."""
        return self.clock.now_s() - self.origin_s

    def prewarm(self, engines: Any, latency: LatencyModel) -> None:
        """Start what engines need in addition to the process before any order arrives.

        Raises:
            RuntimeError: that failed. The coming step may still succeed, because its weights are others.
        """
        try:
            self.worker_backend.prewarm(engines, latency)
        except MemoryError:
            raise
        except Exception as error:
            raise RuntimeError(f"could not be started ahead of its step: {type(error).__name__}: {error}") from error
        self.up_s = self.clock.now_s()

    def serve(self) -> None:
        """Run one turn after another, for ever."""
        while True:
            self.turn()

    @property
    def busy(self) -> bool:
        """Return whether there is something to decode."""
        return self.engine is not None and bool(self.engine.running() or self.engine.waiting())

    def turn(self) -> None:
        """Obey the next order; without an order, decode an iteration; without work, wait for an order."""
        try:
            order = self.inbox.get(block=not self.busy)
        except queue.Empty:
            self._iterate()
            return
        self._obey(order)
        self._from_s = self.now_s()

    def _obey(self, order: Any) -> None:
        if isinstance(order, Exception):
            raise order
        self._handlers[type(order)](order)

    def _iterate(self) -> None:
        assert self.engine is not None
        progress = self.engine.step(self._from_s, self.now_s)
        if not isinstance(progress, Progress):
            raise TypeError(
                f"{_method(self.engine, 'step')} returned {as_given(progress)}; return Progress(completions, spans)"
            )
        self._spans += progress.spans
        if progress.completions or self.engine.clock_s >= self._reported_s + REPORT_EVERY_S:
            self._report(progress.completions)

    def _report(self, completions: Sequence[Completion] = (), **what: Any) -> None:
        engine = self.engine
        assert engine is not None
        tokens = engine.generated_tokens()
        counted = np.array(list(tokens), dtype=np.int64), np.array(list(tokens.values()), dtype=np.int64)
        spans, self._spans = self._spans, []
        self._reported_s = engine.clock_s
        off = engine.drafts_off if isinstance(engine, SupportsDrafts) else None
        if off is not None and not self._reported_drafts_off:
            self._reported_drafts_off, what = True, {**what, "drafts_off": off}
        self.connection.send(
            ActorReport(engine.clock_s, engine.running(), engine.waiting(), counted, list(completions), spans, **what)
        )

    # --- orders -------------------------------------------------------------------------------------------------------

    def _start_step(self, order: StartStep) -> None:
        self.origin_s, self._reported_s, self._reported_drafts_off = order.origin_s, 0.0, False
        self.engines = engines = self._read(order.engines)
        weight_bytes = engines.weight_bytes
        if self.worker_backend.start_server(engines, order.latency):
            self.up_s = self.clock.now_s()
        engine = self.engine = engines(order.latency, order.admission, self.now_s())
        lacks = [name for name in ENGINE_METHODS if not callable(getattr(engine, name, None))]
        if not hasattr(engine, "clock_s"):
            lacks.append("clock_s")
        if lacks:
            raise TypeError(
                f"{type(engines).__name__} made a {type(engine).__name__} without {', '.join(lacks)}; an engine needs "
                f"clock_s and the methods {', '.join(ENGINE_METHODS)}"
            )
        if engines.version is not None and not hasattr(engine, "weights_version"):
            raise InputTypeError(
                f"a {type(engines).__name__} names the version of its weights, but a {type(engine).__name__} has no "
                "weights_version, so that nobody knows which it has loaded; add this attribute, or leave version out"
            )
        version = order.weights_version if engines.version is None else engine.weights_version
        ready_s = self.up_s - self.origin_s, self.now_s()
        self._report(ready_s=ready_s, weights_version=version, weight_bytes=weight_bytes)

    def _start_work(self, order: StartWork) -> None:
        self.origin_s = order.origin_s
        self.connection.send(ActorReport(self.now_s(), ready_s=(self.up_s - self.origin_s, self.now_s())))

    def _run_item(self, order: RunItem) -> None:
        with self.beating(lambda: self.connection.send(ActorReport(self.now_s()))):
            report = order.run(self.now_s)
        self.connection.send(report)

    def _add(self, order: Add) -> None:
        assert self.engine is not None
        copies, there, again = [], [], []
        prefixes = order.prefixes
        prefix_kv: Any = None
        if prefixes is not None:
            begin_s = self.now_s()
            with contextlib.suppress(Unreachable):
                prefix_kv = self._read(prefixes, free=True)
                tokens = sum(kv.tokens for kv in prefix_kv.values())
                copies.append(KvCopy("transfer", None, begin_s, self.now_s(), tokens, prefixes.nbytes))
        for request in order.requests:
            kv, begin_s = request.kv, self.now_s()
            if isinstance(kv, Block):
                request = replace(request, kv=None)
                try:
                    request = replace(request, kv=self._read(kv, free=True))
                    copies.append(self._kv_copy("transfer", request, begin_s, kv.nbytes))
                except Unreachable:
                    again.append(request.response)
            if request.cached_tokens and prefix_kv is None:  # they did not come: it computes them itself
                request = replace(request, cached_tokens=0)
            of_prompt = prefix_kv[request.prompt] if request.cached_tokens else None
            there.append(replace(request, available_s=self.now_s(), prefix_kv=of_prompt))
        self.engine.add(there)
        self._report(copies=copies, again=again)

    def _take_off(self, order: TakeOff) -> None:
        assert self.engine is not None
        answer = self.engine.cut(self.engine.clock_s, order.responses)
        if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Progress)):
            raise TypeError(f"{_method(self.engine, 'cut')} returned {as_given(answer)}; return (requests, Progress([], []))")
        taken, progress = answer
        assert not progress.completions, "between iterations nothing completes"
        copies, handed = [], []
        for request in taken:
            kv, begin_s = None, self.now_s()
            if request.kv is not None and request.response in order.kv_names:
                with contextlib.suppress(NoRoom):  # its context is recomputed
                    kv = self._write(order.kv_names[request.response], request.kv)
                    copies.append(self._kv_copy("migrate", request, begin_s, kv.nbytes))
            handed.append(replace(request, kv=kv))
        self._report(copies=copies, taken=handed)

    def _prefill(self, order: ComputePrefixes) -> None:
        """Compute all prefixes, then send them."""
        begin_s = self.now_s()
        computed = self.engines.compute_prefixes(order.prefixes)
        pieces = {id(piece): int(piece.shape[3]) for kv in computed.values() for piece in kv.pieces}
        end_s, tokens = self.now_s(), sum(pieces.values())
        span = EngineSpan("prefill", begin_s, end_s, float(len(computed)), max(1, len(computed)), tokens, float(tokens))
        sent = {}
        for actor, name in order.names.items():
            with contextlib.suppress(NoRoom):  # it computes them itself
                sent[actor] = self._write(name, {prompt: computed[prompt] for prompt in order.receivers[actor]})
        size = sum(block.nbytes for block in sent.values())
        copies = [KvCopy("migrate", None, end_s, self.now_s(), tokens, size)]
        self._spans.append(span)
        self._report(prefixes=sent, copies=copies)

    def _close(self, order: Close) -> None:
        if self.engine is not None:  # else it served work items
            self.engine.close()
        self.engine = self.engines = None
        self.worker_backend.free_memory(self.device)
        self.connection.send(ActorReport(self.now_s(), closed=True))

    # --- what is laid out ---------------------------------------------------------------------------------------------

    def _kv_copy(self, phase: str, request: Request, begin_s: float, size: int) -> KvCopy:
        return KvCopy(phase, request.response, begin_s, self.now_s(), request.context_tokens, size)

    def _read(self, block: Block, free: bool = False) -> Any:
        return read_block(self.worker_backend, block, self.device, free=free)

    def _write(self, name: str, obj: Any) -> Block:
        return write_block(self.worker_backend, name, obj)


def _method(engine: PoolEngine, name: str) -> str:
    return f"{type(engine).__name__}.{name}"
