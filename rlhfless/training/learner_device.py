"""Where the learner computes on the wall clock: its device beside actors, and which GPUs the trace bills for it."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any

from rlhfless.executor import Gpus, ProcessPool, RayPool
from rlhfless.training import missing_torch

try:
    import torch
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.engine.torch.devices import cuda_devices
from rlhfless.engine.torch.pretrained import choose_device
from rlhfless.training.config import ClusterConfig
from solver.model.cluster import Cluster
from solver.model.plurals import counted


def learner_device(config: ClusterConfig, pool: ProcessPool | RayPool | None) -> torch.device:
    """Return the device of a run's learner: with ``device`` auto or cuda a GPU that no actor holds, else the first one.

    Args:
        pool: that the caller has passed; None: the options say where actors run.

    Raises:
        TrainError, InputError: the device that is asked for is not there.
    """
    if pool is None and config.executor == "virtual":
        return choose_device(config.device)
    count, needed = len(cuda_devices()), _local_processes(config)
    if config.device == "auto" and 0 < count < needed:
        warnings.warn(
            f"the learner computes on the CPU, because its {needed} processes need a GPU each and this machine has "
            f"{counted(count, 'GPU')}; take fewer learner_processes to learn on GPUs",
            stacklevel=2,
        )
        return torch.device("cpu")
    return choose_device(config.device, held=held_gpus(config, pool))


def held_gpus(config: ClusterConfig, pool: ProcessPool | RayPool | None) -> Collection[int]:
    """Return which CUDA devices of this machine the actors of a run on the wall clock use, by index.

    Ray gives the first free ones to its actors, and does not say which it will take.
    """
    if isinstance(pool, ProcessPool):
        devices = [torch.device(one) for one in pool.devices[: config.gpus]]
        return {one.index or 0 for one in devices if one.type == "cuda"}
    return range(min(config.gpu_count, len(cuda_devices())))


def wall_gpus(device: torch.device, cluster: Cluster, config: ClusterConfig, pool: Any, *, beside_actors: bool = False) -> Gpus:
    """Return the GPUs that the trace bills for the learner on the wall clock; none for one that computes on the CPU.

    GPUs of the pool have its ids. Others of the trainer's machine are counted behind the cluster's.

    Args:
        device: of the model. beside_actors: it learns while actors decode, whose GPUs are billed as theirs.
    """
    joined = isinstance(pool, RayPool) and not pool.cluster.started_here
    node = cluster.nodes if joined else 0  # a trainer that has joined a cluster of Ray is a machine beside its nodes
    if device.type != "cuda":
        return Gpus("learner", (), node=node)
    count = config.learner_processes if config.learner_placement == "ray" else _local_processes(config)
    if config.learner_placement == "ray":
        return Gpus("learner", tuple(range(cluster.gpus, cluster.gpus + count)), node=node)
    indices = range(count) if count > 1 else [device.index or 0]
    ids = _ids_of_pool(pool)
    held = [index for index in indices if index in held_gpus(config, pool)]
    shared = [ids.get(index, index) for index in held]
    own = tuple(cluster.gpus + number for number in range(len(indices) - len(shared)))
    return Gpus("learner", own if beside_actors else (*shared, *own), node=node)


def _ids_of_pool(pool: Any) -> dict[int, int]:
    """Return the GPU ids of a pool's CUDA devices, by index."""
    devices = [torch.device(one) for one in pool.devices] if isinstance(pool, ProcessPool) else []
    return {one.index or 0: number for number, one in enumerate(devices) if one.type == "cuda"}


def _local_processes(config: ClusterConfig) -> int:
    """Return the processes of this machine that learn with a GPU each."""
    return config.learner_processes if config.learner_placement == "local" else 1
