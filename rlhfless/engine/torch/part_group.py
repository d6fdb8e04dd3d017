"""The processes of a tensor-parallel actor: the actor's own, which is the first part, and one for each other part.

All run the same engine on their part of the model and make the same decisions, because the sums of the parts are the same in
all. The first part tells the others each call of its engine, and the time of its clock. gloo adds up on the CPU, NCCL on GPUs.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rlhfless.engine.torch.devices import compute_on, free_memory
from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.tensor_pickles import pack, unpack
from rlhfless.system.parent_death import die_with_parent
from rlhfless.system.scratch_folders import OwnFolder
from solver.model.admission import Admission
from solver.model.latency import LatencyModel

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
PREFIX = "rlhfless-parts-"
END_S = 5.0  # that a process that was killed may take to be gone
TICK_S = 1e-6  # that an iteration takes at least, on any clock
SOON_S = 1.0  # in which a part that failed says why


class PartsError(RuntimeError):
    """A part of a tensor-parallel actor failed; the message says which and why."""


class PartGroup:
    """The other parts of this process's actor, each in a process of its own on its device.

    Args:
        devices: of all parts, the first one's is this process's.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices = tuple(devices)
        self._folder = OwnFolder(PREFIX)
        self._members: list[tuple[BaseProcess, Connection]] = []
        multiprocessing.current_process().daemon = False  # daemons may start no process; these end with this one
        meeting, context = self._folder.path / "meeting", multiprocessing.get_context("spawn")
        for rank in range(1, len(devices)):
            ours, theirs = context.Pipe()
            arguments = theirs, rank, self.devices, str(meeting)
            process = context.Process(target=main, args=arguments, name=f"rlhfless-part-{rank}", daemon=True)
            process.start()
            theirs.close()
            self._members.append((process, ours))
        meet(0, self.devices, meeting)

    def tell(self, call: str, *arguments: Any) -> None:
        """Tell all other parts to make a call; they answer by what they compute together with this one.

        Raises:
            PartsError: one of them has failed.
        """
        self.check()
        for rank, (_, connection) in enumerate(self._members, 1):
            try:
                connection.send((call, arguments))
            except OSError:
                raise self.failure(rank) from None

    def make(self, parts: Iterable[Any], latency: LatencyModel, admission: Admission, start_s: float) -> None:
        """Give each other part its factory, with its share of the weights, of which it makes an engine."""
        self.tell("make", latency, admission, start_s)
        for (_, connection), engines in zip(self._members, parts, strict=True):
            form, buffers = pack(engines)
            connection.send((form, [buffer.raw().nbytes for buffer in buffers]))
            for buffer in buffers:
                connection.send_bytes(buffer.raw())

    def check(self, within_s: float = 0.0) -> None:
        """Raise ``PartsError`` if a part has said that it failed, or has ended."""
        for rank, (_, connection) in enumerate(self._members, 1):
            if connection.poll(within_s):
                raise self.failure(rank)

    def failure(self, rank: int) -> PartsError:
        """Return the error for a part that has failed."""
        process, connection = self._members[rank - 1]
        try:
            said = connection.recv()
        except (EOFError, OSError):
            process.join(END_S)
            said = f"its process ended with exit code {process.exitcode}"
        return PartsError(f"part {rank} of {len(self.devices)} of a tensor-parallel actor failed: {said}")

    def close(self) -> None:
        """End the other parts. Idempotent."""
        for process, connection in self._members:
            process.kill()
            process.join(END_S)
            connection.close()
        self._members.clear()
        if dist.is_initialized():
            dist.destroy_process_group()
        self._folder.remove()


def meet(rank: int, devices: Sequence[str], meeting: Path) -> None:
    """Meet the other parts: afterwards sums over all of them work in this process."""
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = LOOPBACK
    compute_on(devices[rank])
    backend = "nccl" if torch.device(devices[rank]).type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=meeting.as_uri(), rank=rank, world_size=len(devices))


def main(connection: Connection, rank: int, devices: Sequence[str], meeting: str) -> None:
    """Run another part until the first one ends."""
    die_with_parent()
    try:
        meet(rank, devices, Path(meeting))
        follower = Follower(connection, devices[rank])
        while True:
            call, arguments = connection.recv()  # the first part may have none for hours; when it ends, the pipe does
            getattr(follower, call)(*arguments)
    except EOFError:
        os._exit(0)  # the first part is gone
    except Exception as error:
        with contextlib.suppress(OSError):
            connection.send(f"{type(error).__name__}: {error}")
        os._exit(1)  # at once: the others may wait for a sum with this part


class Follower:
    """The engine of another part: it makes the calls of the first one's, at the same times of its clock."""

    def __init__(self, connection: Connection, device: str) -> None:
        self._connection, self._device = connection, device
        self._engine: TorchEngine | None = None

    @property
    def engine(self) -> TorchEngine:
        """Return the engine of this step."""
        assert self._engine is not None, "the first part makes engines before it uses them"
        return self._engine

    def make(self, latency: LatencyModel, admission: Admission, start_s: float) -> None:
        """Make the engine of a step; the weights come after the call."""
        self._engine = None
        form, sizes = self._connection.recv()  # sent right after the call; when the first part ends, the pipe does
        buffers = [bytearray(size) for size in sizes]
        for buffer in buffers:
            self._connection.recv_bytes_into(buffer)
        self._engine = unpack(form, buffers, self._device).engine(latency, admission, start_s)

    def add(self, clock_s: float, requests: Sequence[Any]) -> None:
        """See ``TorchEngine``."""
        self.engine.wait_until(clock_s)
        self.engine.add(requests)

    def step(self, clock_s: float) -> None:
        """See ``TorchEngine``; how long it took is what the first part's clock says at the next call."""
        self.engine.step(clock_s, lambda: clock_s + TICK_S)

    def cut(self, clock_s: float, responses: Sequence[int] | None) -> None:
        """See ``TorchEngine``."""
        self.engine.wait_until(clock_s)
        self.engine.cut(clock_s, responses)

    def close(self) -> None:
        """Free the memory of weights and KV."""
        if self._engine is not None:
            self._engine.close()
            self._engine.model.free()
        self._engine = None
        free_memory(self._device)
