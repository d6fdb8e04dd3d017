"""With how many threads the learner computes on the CPU: one, or the cores that actors do not use."""

from __future__ import annotations

from rlhfless.system.cpu_threads import usable_cores
from rlhfless.training.config import TrainConfig


def learner_threads(config: TrainConfig, *, beside_actors: int = 0, cores: int | None = None) -> int:
    """Return the threads of a learner process on the CPU.

    Args:
        beside_actors: actors that decode meanwhile on the same cores, each with ``actor_threads``.
        cores: that all may use; those of this process when None.

    Without the option it is 1 where weights are promised to be the same bit for bit on every machine (the torch engine), as
    kernels with several threads add in another order.
    """
    asked, hardware = config.cluster.learner_threads, config.cluster
    if asked is None:
        asked = 1 if hardware.engine == "torch" else "auto"
    if asked != "auto":
        return asked
    cores = usable_cores() if cores is None else cores
    return max(1, (cores - beside_actors * hardware.actor_threads) // hardware.learner_processes)
