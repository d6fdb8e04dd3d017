"""Controls a learner of several processes from the trainer: sends orders, receives numbers, takes over the new weights.

The processes share weights, gradients and the optimizer's state (``algorithms/ranks.py``). They start with the first order. Any
failure or interrupt during an order ends all of them; ``read`` starts new ones.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhfless.errors import InputError
from rlhfless.training import missing_torch

try:
    import torch
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.system.child import HEARTBEAT_TIMEOUT_S
from rlhfless.system.scratch_folders import OwnFolder, in_memory
from rlhfless.training.algorithms.batch import Batch
from rlhfless.training.config import LearnerError
from rlhfless.training.config.algorithm import algorithm_named
from rlhfless.training.config.learning import check_sharded
from rlhfless.training.learner import worker
from rlhfless.training.learner.first_weights import SharedWeights
from rlhfless.training.learner.learner import Learner, LocalLearner
from rlhfless.training.learner.worker import LearnerStart
from rlhfless.training.worker_group import WorkerGroup
from solver.model.plurals import counted

if TYPE_CHECKING:
    from rlhfless.training.learner.ray_ranks import RayRanks


def make_learner(
    name: str,
    model: Any,
    *,
    processes: int = 1,
    placement: str = "local",
    threads: int = 1,
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    **options: Any,
) -> Learner:
    """Return a learner in this process, or one of several other processes; arguments as for ``LocalLearner.make``.

    Args:
        placement, threads: see ``LearnerProcesses``.
        heartbeat_timeout_s: after so many seconds without a heartbeat a process counts as lost.

    Raises:
        InputError: see ``LearnerProcesses`` and ``LocalLearner.make``.
    """
    if processes > 1:
        return LearnerProcesses(
            processes, name, model, placement=placement, threads=threads, heartbeat_timeout_s=heartbeat_timeout_s, **options
        )  # fmt: skip
    return LocalLearner.make(name, model, **options)


class LearnerProcesses:
    """Processes that learn together: one GPU each if the model is on one, else on the CPU.

    Args:
        count: of processes. name, options: see ``LocalLearner.make``.
        model: keeps no weights of its own: from here on its parameters are on the CPU, in memory that it shares with the first
            process. ``learn`` and ``read`` replace them.
        placement: ``local`` starts them on this machine, ``ray`` where the Ray cluster that this program has joined has room;
            the first one is on this machine then, too.
        threads: of each process on the CPU.
        heartbeat_timeout_s: see ``make_learner``.

    Raises:
        InputError: there are fewer GPUs than processes, or the optimizer cannot be sharded.
    """

    def __init__(
        self,
        count: int,
        name: str,
        model: Any,
        *,
        placement: str = "local",
        threads: int = 1,
        heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
        **options: Any,
    ) -> None:
        device = model.device.type
        if device == "cuda" and placement == "local" and (gpu_count := torch.cuda.device_count()) < count:
            raise InputError(
                f"learner_processes is {count}, but torch finds {counted(gpu_count, 'GPU')}; each needs one, or device 'cpu'"
            )
        check_sharded(options.get("optimizer", "adamw"), count)
        self.count, self.model, self._device, self._options = count, model, device, options
        self._algorithm = algorithm_named(name)  # processes that unpickle it import its module, which registers it
        self._threads = threads
        self._folder = OwnFolder("rlhfless-learner-", in_memory())
        self._board = SharedWeights.of(model, self._folder.path / "weights")
        model.to("cpu")
        self._board.into(model)
        if device == "cuda":
            torch.cuda.empty_cache()  # the first process needs it
        # processes that start anew need the first weights again, for a reference; without one a checkpoint has all of them
        self._first = SharedWeights.of(model, self._folder.path / "first") if options.get("kl_coef") else self._board
        self._group: WorkerGroup | RayRanks = WorkerGroup("learner", heartbeat_timeout_s)
        if placement == "ray":
            from rlhfless.training.learner.ray_ranks import RayRanks

            self._group = RayRanks(count, int(device == "cuda"), heartbeat_timeout_s)
        self._began = False  # processes have started once, so new ones know nothing of what was learned since

    @property
    def pids(self) -> list[int]:
        """Process ids by rank; empty before the first order and after the processes ended."""
        return self._group.pids

    def learn(self, batch: Batch) -> dict[str, float]:
        """See ``Learner``; ``seconds`` are from the order until the model in this process has its new weights.

        Dropout in the processes is determined by torch's random stream of this process and by the rank.

        Raises:
            InputError: the algorithm refused the batch.
            LearnerError: a process died or failed.
        """
        began = time.perf_counter()
        seed = int(torch.randint(2**63 - 1, ()))
        numbers: dict[str, float] = self._order("learn", batch, seed)
        self._take_weights()
        return {**numbers, "seconds": time.perf_counter() - began}

    def so_far(self) -> dict[str, float]:
        """See ``Learner``: the sums over all processes; unknown on Ray, where only the wall clock is, which needs no tokens."""
        said = self._group.so_far() if isinstance(self._group, WorkerGroup) else []
        return {name: math.fsum(one[name] for one in said) for name in (said[0] if said else ())}

    def begin(self) -> None:
        """See ``Learner``."""
        self._order("begin")

    def add(self, batch: Batch) -> None:
        """See ``Learner``; every process computes its share of the piece. Errors are those of ``learn``."""
        self._order("add", batch, int(torch.randint(2**63 - 1, ())))

    def update(self) -> None:
        """See ``Learner``; the model in this process keeps its weights. Errors are those of ``learn``."""
        self._order("update", seed=int(torch.randint(2**63 - 1, ())))

    def finish(self) -> dict[str, float]:
        """See ``Learner``; errors are those of ``learn``."""
        numbers: dict[str, float] = self._order("finish", seed=int(torch.randint(2**63 - 1, ())))
        self._take_weights()
        return numbers

    def write(self, folder: Path) -> None:
        """See ``Learner``."""
        self._order("write", folder)

    def read(self, folder: Path) -> None:
        """See ``Learner``."""
        self._order("read", folder)
        self._take_weights()

    def close(self) -> None:
        """Stop the processes."""
        self._group.end()

    def _order(self, order: str, argument: Any = None, seed: int = 0) -> Any:
        """Send all processes an order and wait for them; return the answer of the first one.

        Args:
            argument: of the learner's method of that name. seed: of the random streams in which they execute it.
        """
        if not self._group:
            if self._began and order != "read":
                raise LearnerError("the learner's processes have ended and their weights are lost; read a checkpoint first")
            self._start()
        return self._group.order(order, argument, seed)[0]

    def _start(self) -> None:
        """Start new processes, with the weights from the start of training."""
        meeting = self._folder.path / "meeting"
        meeting.unlink(missing_ok=True)
        startup = LearnerStart(
            self.count, meeting.as_uri(), self._device, self.model.config, self._first, self._board, self._algorithm,
            self._options, self._threads,
        )  # fmt: skip
        if isinstance(self._group, WorkerGroup):
            self._group.start(worker.main, [(rank, startup) for rank in range(self.count)])
        else:
            self._group.start(startup)
        self._began = True

    def _take_weights(self) -> None:
        self._board.into(self.model)
