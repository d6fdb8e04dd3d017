"""Runs one function in several processes of this machine that exchange tensors through ``torch.distributed`` (gloo, CPU)."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rlhfless.training import missing_torch

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.system.child import HeartbeatConnection, serve
from rlhfless.training.worker_group import LOOPBACK, WorkerGroup


def run_on_ranks(name: str, count: int, function: Callable[[int, Any], Any], argument: Any) -> list[Any]:
    """Return ``function(rank, argument)`` of every rank. The processes end with this call, however it ends.

    Args:
        name: of what they are, in error messages. function: of a module; ranks may call collective operations in it.
        argument: is pickled, and so is each result: tensors are copied.

    Raises:
        LearnerError: a process died or hangs; the others were killed. Any other exception is that of a process.
    """
    group = WorkerGroup(name, advice="run the demonstration again")
    try:
        with tempfile.TemporaryDirectory(prefix=f"rlhfless-{name}-") as folder:
            group.start(_main, [(rank, count, Path(folder, "meeting").as_uri()) for rank in range(count)])
            return [pickle.loads(answer) for answer in group.order("run", pickle.dumps((function, argument)))]
    finally:
        group.end()


class _Rank:
    """Connects to the other ranks, and runs functions."""

    def __init__(self, rank: int, count: int, meeting: str) -> None:
        self._rank = rank
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=count)

    def execute(self, order: str, given: bytes) -> bytes:
        """Return the pickled result of a pickled function and its argument."""
        function, argument = pickle.loads(given)
        return pickle.dumps(function(self._rank, argument))


def _main(pipe: Connection, rank: int, count: int, meeting: str) -> None:
    """Run a rank until its pipe ends."""
    serve(HeartbeatConnection(pipe), lambda: _Rank(rank, count, meeting))
