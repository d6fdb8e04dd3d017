"""Copies of KV states in an actor's process: written, or read, in threads while the actor decodes on.

A copy is taken between two iterations. What follows of it, the rest, is cut off the whole KV state when the response leaves,
and joined to the copy where it arrives. Threads touch neither the engine nor the connection: what they have done comes back as
an order of the actor to itself (``CopyDone``).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from rlhfless.engine.protocol import KvSnapshot, Request, SupportsSnapshots
from rlhfless.executor.distributed.messages import KvCopy, NoRoom, Unreachable, WrittenCopy
from rlhfless.executor.distributed.worker.shared_memory import Block

Behind = Callable[[Callable[[], None]], Callable[[], None]]
"""Starts a function behind the iterations; returns what waits for its end."""
Done = tuple[Mapping[str, Any], Mapping[int, KvSnapshot]]
"""What a thread has to report, and the copies that it has read, by response."""


class StoresBlocks(Protocol):
    """The worker whose KV states are copied."""

    def now_s(self) -> float:
        """Return the seconds since the run's start."""
        ...

    def _read(self, block: Block, free: bool = False) -> Any: ...
    def _write(self, name: str, obj: Any) -> Block: ...


@dataclass(frozen=True)
class CopyDone:
    """Order of an actor to itself: report what a thread has done.

    Attributes:
        engine: for which it was done.
        received: the copies that were read, by response, with their tokens.
        report: what to report (fields of ``ActorReport``); None: the thread raised ``error``.
        wrote: it was a copy that is sent, so the next one may be.
    """

    engine: Any
    report: Mapping[str, Any] | None
    received: Mapping[int, KvSnapshot] = field(default_factory=dict)
    wrote: bool = False
    error: Exception | None = None


def in_thread(function: Callable[[], None]) -> Callable[[], None]:
    """Start a function in a thread of its own; returns what waits for its end."""
    thread = threading.Thread(target=function, name="rlhfless-copy", daemon=True)
    thread.start()
    return thread.join


class KvCopies:
    """The copies that an actor sends and receives.

    Args:
        worker: stores and reads blocks. put: gives the worker an order. behind: starts a function behind the iterations.
    """

    def __init__(self, worker: StoresBlocks, put: Callable[[CopyDone], None], behind: Behind = in_thread) -> None:
        self._worker, self._put, self._behind = worker, put, behind
        self._sent_tokens: dict[int, int] = {}  # of copies of responses that are still here
        self._received: dict[int, KvSnapshot] = {}  # copies whose responses have not come yet
        self._waits: list[Callable[[], None]] = []
        self._next: deque[tuple[int, str]] = deque()  # copies that wait for the one that is written
        self._writes = False

    def send(self, engine: SupportsSnapshots, names: Mapping[int, str]) -> None:
        """Copy the KV states of responses and write the copies under these names, behind the iterations, one after another."""
        self._next.extend(names.items())
        if not self._writes:
            self._send_next(engine)

    def _send_next(self, engine: SupportsSnapshots) -> None:
        """Copy the next KV state as it is now."""
        while self._next and not self._writes:
            response, name = self._next.popleft()
            begin_s, snapshot = self._worker.now_s(), engine.snapshot(response)
            if snapshot is None:
                self._put(CopyDone(engine, {"copied": {response: None}}))
                continue
            self._writes, self._sent_tokens[response] = True, snapshot.kv_tokens
            self._start(engine, partial(self._write, response, name, snapshot, begin_s))

    def receive(self, engine: SupportsSnapshots, copies: Mapping[int, WrittenCopy]) -> None:
        """Read copies behind the iterations."""
        for response, written in copies.items():
            self._start(engine, partial(self._read, response, written))

    def accept(self, done: CopyDone) -> Mapping[str, Any]:
        """Keep what was read, and return what to report.

        Raises:
            Exception: of the thread.
        """
        if done.error is not None:
            raise done.error
        self._received.update(done.received)
        assert done.report is not None
        if done.wrote:
            self._writes = False
            self._send_next(done.engine)
        return done.report

    def rest(self, engine: SupportsSnapshots, request: Request) -> KvSnapshot:
        """Return what the KV state of a response that leaves has beyond its copy; None as the state where it has none."""
        tokens = self._sent_tokens[request.response]
        kv = None if request.kv is None else engine.kv_since(request.kv, tokens)
        return KvSnapshot(kv, request.context_tokens - tokens)

    def joined(self, engine: SupportsSnapshots, request: Request, rest: Any) -> KvSnapshot:
        """Return the KV state of a response that came with the ``rest`` of it, and how many tokens that had."""
        copy = self._received[request.response]
        return KvSnapshot(engine.joined_kv(copy.kv, rest), request.context_tokens - copy.kv_tokens)

    def forget(self, response: int) -> None:
        """Forget the copy of a response that leaves, or comes, if there is one."""
        self._sent_tokens.pop(response, None)
        self._received.pop(response, None)
        self._next = deque(one for one in self._next if one[0] != response) if self._next else self._next

    def close(self) -> None:
        """Wait for the threads, and forget all copies."""
        for wait in self._waits:
            wait()
        for forgotten in (self._waits, self._sent_tokens, self._received, self._next):
            forgotten.clear()
        self._writes = False

    def _start(self, engine: Any, function: Callable[[], Done]) -> None:
        def run() -> None:
            try:
                report, received = function()
                self._put(CopyDone(engine, report, received, wrote="copied" in report))
            except Exception as error:
                self._put(CopyDone(engine, None, error=error))

        self._waits.append(self._behind(run))

    def _write(self, response: int, name: str, snapshot: KvSnapshot, begin_s: float) -> Done:
        try:
            block = self._worker._write(name, snapshot.kv)
        except NoRoom:  # it leaves in one step
            return {"copied": {response: None}}, {}
        copy = KvCopy("migrate", response, begin_s, self._worker.now_s(), snapshot.kv_tokens, block.nbytes, background=True)
        return {"copied": {response: WrittenCopy(block, snapshot.kv_tokens)}, "copies": [copy]}, {}

    def _read(self, response: int, written: WrittenCopy) -> Done:
        block, begin_s = written.block, self._worker.now_s()
        try:
            kv = self._worker._read(block, free=True)
        except Unreachable:
            return {"received": {response: False}}, {}
        copy = KvCopy("transfer", response, begin_s, self._worker.now_s(), written.kv_tokens, block.nbytes, background=True)
        return {"received": {response: True}, "copies": [copy]}, {response: KvSnapshot(kv, written.kv_tokens)}
