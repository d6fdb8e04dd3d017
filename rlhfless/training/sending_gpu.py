"""Which GPU the learner has where it sends weights to vLLM by NCCL, which sends between GPUs only."""

from __future__ import annotations

import torch

from rlhfless.engine.torch.devices import cuda_devices
from rlhfless.executor.distributed.ray.cluster import import_ray
from rlhfless.training.config import ClusterConfig, TrainError
from solver.model.plurals import counted

THIS_MACHINE = "127.0.0.1"


def sending_device(config: ClusterConfig) -> torch.device:
    """Return the last GPU of this machine, which actors leave to the learner.

    Raises:
        TrainError: actors on this machine use all GPUs.
    """
    count = len(cuda_devices())
    needed = config.gpus + 1 if config.executor == "local" else 1
    if count < needed:
        raise TrainError(
            f"weight_sync is 'nccl' with {counted(config.gpus, 'GPU')} for actors, but this machine has "
            f"{counted(count, 'GPU')} and the learner needs one of its own; give fewer gpus, or weight_sync 'folder'"
        )
    return torch.device("cuda", count - 1)


def gpus_for_ray(config: ClusterConfig) -> int | None:
    """Return the GPUs that a Ray cluster started here offers; None: all CUDA devices of this machine."""
    count = len(cuda_devices())
    if not count:
        return config.gpus  # logical ones, actors compute on the CPU
    return count - 1 if config.weight_sync == "nccl" else None


def sending_host(config: ClusterConfig, device: torch.device) -> str:
    """Return the address of this machine at which actors find the learner.

    Args:
        device: of the learner's model.

    Raises:
        TrainError: the model is not on a GPU.
    """
    if device.type != "cuda":
        raise TrainError(
            f"weight_sync is 'nccl', but the model is on device {str(device)!r} and NCCL sends between GPUs; put it on a GPU, "
            "or choose weight_sync 'folder'"
        )
    return str(import_ray().util.get_node_ip_address()) if config.executor == "ray" else THIS_MACHINE
