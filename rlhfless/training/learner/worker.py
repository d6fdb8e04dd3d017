"""A learner process: executes the trainer's orders together with the other learner processes.

It has one ``LocalLearner``; the first process writes the file in memory that holds the trainer's weights. ``main`` is that of a
process of this machine, with a pipe to the trainer. It listens on the loopback interface only, and ends when the trainer ends.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from rlhfless.system.child import Heartbeat, HeartbeatConnection, serve
from rlhfless.training.algorithms.ranks import Ranks, full_tensor
from rlhfless.training.config.algorithm import AlgorithmConfig
from rlhfless.training.learner.first_weights import FirstWeights, SharedWeights, empty_model
from rlhfless.training.learner.learner import LocalLearner
from rlhfless.training.random_state import streams_of
from rlhfless.training.worker_group import LOOPBACK

LEARNING = ("learn", "add", "update", "finish")  # orders whose dropout is determined by the seed


@dataclass(frozen=True)
class LearnerStart:
    """Arguments of a learner process at its start.

    Attributes:
        count: of processes. meeting: URL at which the processes meet, of a file or a TCP address.
        device: ``cuda`` for one GPU each, or ``cpu``.
        config: of the transformers model. first: its weights at the start of training.
        board: which the first process replaces by new weights; it may be ``first``.
        algorithm, options: of ``LocalLearner.make``.
        threads: of each process on the CPU.
        interface: of the network, through which the processes speak; None: torch finds one.
        own_gpu: a process sees its own GPU only, as Ray gives it.
    """

    count: int
    meeting: str
    device: str
    config: Any
    first: SharedWeights
    board: SharedWeights
    algorithm: type[AlgorithmConfig]
    options: dict[str, Any]
    threads: int = 1
    interface: str | None = LOOPBACK
    own_gpu: bool = False


class LearnerRank:
    """The learner of one process.

    Args:
        rank: of the process.
        report: called with ``Learner.so_far`` of this process after every pass of a model; None for no callback.
    """

    def __init__(self, rank: int, startup: LearnerStart, report: Callable[[dict[str, float]], object] | None = None) -> None:
        self._rank = rank
        self._learner, self._model = _learner(rank, startup)
        self._board = startup.board
        if (passes := getattr(self._learner.algorithm, "passes", None)) is not None:
            passes.on_count = report

    def execute(self, order: str, argument: Any, seed: int) -> Any:
        """Execute an order, a method of ``Learner``, together with the others; return its result."""
        with streams_of(seed, self._rank) if order in LEARNING else contextlib.nullcontext():
            numbers: Any = getattr(self._learner, order)(*() if argument is None else (argument,))
        if order in ("learn", "finish", "read"):
            publish(self._model, self._board, self._rank)
        return numbers


def main(pipe: Connection, rank: int, startup: LearnerStart) -> None:
    """Run the process until its pipe ends."""
    connection = HeartbeatConnection(pipe)
    serve(connection, lambda: LearnerRank(rank, startup, lambda so_far: connection.send(Heartbeat(so_far))))


def _learner(rank: int, startup: LearnerStart) -> tuple[LocalLearner, Any]:
    """Connect to the other processes and shard the model over them; return the learner and its model."""
    on_gpu = startup.device == "cuda"
    if startup.interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = startup.interface
    if on_gpu:
        torch.cuda.set_device(0 if startup.own_gpu else rank)
    else:
        torch.set_num_threads(startup.threads)
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=startup.meeting, rank=rank, world_size=startup.count)
    ranks = Ranks(rank, startup.count, init_device_mesh(startup.device, (startup.count,)))
    model = empty_model(startup.config)
    first = FirstWeights(ranks, model, startup.first)
    ranks = replace(ranks, after_sharding=first.fill)
    return LocalLearner.make(startup.algorithm, model, ranks=ranks, **startup.options), model


def publish(model: Any, board: SharedWeights, rank: int) -> None:
    """Replace the weights of ``board`` by the model's; all ranks must call it, the first one writes."""
    gathered = (full_tensor(parameter.detach()) for parameter in model.parameters())
    if rank == 0:
        board.replace(gathered)
    else:
        for _ in gathered:
            pass
