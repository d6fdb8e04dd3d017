"""Code inside a Ray actor: the worker of a local process, with Ray's object store instead of shared memory.

Messages are pickled here, so that arrays stay writable (arrays that Ray itself deserialises are read-only); Ray objects are
sent along by name. An actor keeps what it hands over until the driver exports it (``export``), so the driver owns the object,
which outlives the actor.
"""

from __future__ import annotations

import os
import pickle
import queue
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pickle import PickleBuffer
from typing import Any

import ray
from ray.exceptions import RayError

from rlhfless.engine.common.pool_engines import Backend
from rlhfless.executor.distributed.messages import Block, Prewarm, StartStep, StartWork, Unreachable
from rlhfless.executor.distributed.ray.clock_sync import boot_id
from rlhfless.executor.distributed.wall_clock import MACHINE, Clock
from rlhfless.executor.distributed.worker import worker
from rlhfless.executor.distributed.worker.backend import backend_of
from rlhfless.executor.distributed.worker.shared_memory import packed
from rlhfless.system.child import Failed

# Ray's thread group of each method: ``listen`` waits, and the others must not wait for it
GROUPS = {"send": "orders", "export": "orders", "clock_s": "orders", "listen": "reports"}


@dataclass(frozen=True)
class VersionedOrder:
    """One order from the driver to an actor, and the version of the weights that the actor must have.

    ``within_s``: how long the actor may wait for objects of other actors.
    """

    version: int
    order: Any
    within_s: float = 0.0


@dataclass(frozen=True)
class RayActorReady:
    """The first message of an actor: where it runs and since when it is up, on its own monotonic clock."""

    pid: int
    node_id: str
    address: str
    device: str
    boot_id: str | None
    up_s: float


class RayWorker(worker.Worker):
    """A worker that has at most one version of the weights and refuses orders for another.

    Args:
        objects: Ray objects by the names of their blocks. exports: where it stores its blocks for other actors, by name.
    """

    def __init__(
        self,
        outbox: _Outbox,
        inbox: queue.SimpleQueue[Any],
        device: str,
        backend_module: str,
        objects: dict[str, Any],
        exports: dict[str, list[PickleBuffer]],
        clock: Clock = MACHINE,
    ) -> None:
        super().__init__(outbox, inbox, device, backend_module, clock)  # type: ignore[arg-type]  # all it does with a connection is ``send``
        self.objects, self.exports, self.version = objects, exports, -1
        self._read_by_s = 0.0

    def _obey(self, order: Any) -> None:
        if isinstance(order, Exception):
            raise order
        obeyed, self._read_by_s = order.order, self.clock.now_s() + order.within_s
        if isinstance(obeyed, StartStep | StartWork):
            self.version = obeyed.weights_version
        elif order.version != self.version:
            raise RuntimeError(f"the step needs weights version {order.version}, but the actor has version {self.version}")
        super()._obey(obeyed)

    def _read(self, block: Block, free: bool = False) -> Any:
        """Read a block. It waits for weights until the driver declares the silent actor lost, and for other actors' objects for
        ``within_s``.

        Raises:
            Unreachable: the object of another actor did not arrive.
        """
        stored = self.objects.pop(block.name)
        try:  # pulled to this node by the first actor here that asks
            buffers = ray.get(stored, timeout=max(0.0, self._read_by_s - self.clock.now_s()) if free else None)
        except RayError as error:  # its actor or node is gone, its node had no room for it, or the time is over
            if not free:
                raise
            raise Unreachable(f"{block.name} cannot be read ({type(error).__name__})") from error
        return self.worker_backend.unpack(block.form, buffers, self.device)

    def _write(self, name: str, obj: Any) -> Block:
        block, self.exports[name] = packed(self.worker_backend, name, obj)
        return block


class _Outbox:
    """Messages of the actor until the driver collects them."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def send(self, what: Any) -> None:
        self._messages.put(pickle.dumps(what, protocol=pickle.HIGHEST_PROTOCOL))

    def take(self) -> list[bytes]:
        """Return all messages; waits for at least one."""
        messages = [self._messages.get()]  # of a thread of this process; its driver has a limit for its silence
        while not self._messages.empty():
            messages.append(self._messages.get())
        return messages


class DecodeActor:
    """A Ray actor. Its worker, which imports ``backend_module``, runs in a separate thread, whose number of threads
    torch keeps; Ray calls in others.

    Args:
        prewarm: a pickled ``Prewarm`` whose engines are a block, for an actor that starts ahead of its step.
        buffers: the contents of that block.
    """

    def __init__(self, backend_module: str, prewarm: bytes | None = None, buffers: Sequence[Any] = ()) -> None:
        self._backend_module = backend_module
        self._outbox, self._inbox = _Outbox(), queue.SimpleQueue[Any]()
        self._objects: dict[str, Any] = {}
        self._exports: dict[str, list[PickleBuffer]] = {}
        self._next, self._early = 0, dict[int, bytes]()
        threading.Thread(target=self._serve, args=(prewarm, buffers), name="rlhfless-decode", daemon=True).start()

    def send(self, number: int, order: bytes, objects: Mapping[str, Any]) -> None:
        """Receive the order (a pickled ``VersionedOrder``) with this number, counted from 0, and the Ray objects that it names.

        Calls may overtake each other; orders are obeyed by number.
        """
        self._objects.update(objects)
        self._early[number] = order
        while self._next in self._early:
            order = self._early.pop(self._next)
            self._next += 1
            try:
                self._inbox.put(pickle.loads(order))
            except Exception as error:  # an order that cannot be read here: the worker says so
                self._inbox.put(error)

    def export(self, name: str) -> list[PickleBuffer]:
        """Return the buffers that the worker stored under this name, once; Ray copies them as they are."""
        return self._exports.pop(name)

    def clock_s(self) -> float:
        """Return this machine's monotonic clock."""
        return time.monotonic()

    def listen(self) -> list[bytes]:
        """Return the worker's messages since the last call, in order; waits for at least one."""
        return self._outbox.take()

    def _serve(self, prewarm: bytes | None, buffers: Sequence[Any]) -> None:
        try:
            warnings.filterwarnings("ignore", message="The given buffer is not writable")  # of Ray's objects, which are read
            worker_backend = backend_of(self._backend_module)
            device, context = _device(worker_backend), ray.get_runtime_context()
            decoding = RayWorker(self._outbox, self._inbox, device, self._backend_module, self._objects, self._exports)
            if prewarm is not None:
                order: Prewarm = pickle.loads(prewarm)
                engines = worker_backend.unpack(order.engines.form, buffers, device)
                decoding.prewarm(engines, order.latency)
            address = ray.util.get_node_ip_address()
            self._outbox.send(RayActorReady(os.getpid(), context.get_node_id(), address, device, boot_id(), decoding.up_s))
            decoding.serve()
        except Exception as error:
            self._outbox.send(Failed.of(error))


def _device(worker_backend: Backend) -> str:
    """Return the device of this process."""
    cuda = worker_backend.cuda_devices() if ray.get_gpu_ids() else []  # Ray lets a process see its own GPUs only
    return ",".join(cuda) or "cpu"


def remote_class() -> Any:
    """Return the class of the actors, for ``.options(...).remote()``."""
    for method, group in GROUPS.items():
        ray.method(concurrency_group=group)(getattr(DecodeActor, method))
    groups = dict.fromkeys(GROUPS.values(), 1)
    return ray.remote(concurrency_groups=groups, max_restarts=0, max_task_retries=0)(DecodeActor)
