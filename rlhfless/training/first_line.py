"""The first lines of a run: where it learns, on which GPUs it generates, what decides most of its cost, and what it chose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhfless.executor import ProcessPool, RayPool
from rlhfless.executor.distributed.ray.placement import RayNode
from rlhfless.training import missing_torch

try:
    import torch
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.chosen import vllm_is_installed
from rlhfless.training.config import TrainConfig
from rlhfless.training.learner_threads import learner_threads
from solver.model.plurals import counted


def first_line(
    config: TrainConfig,
    device: torch.device,
    pool: ProcessPool | RayPool | None,
    chosen: Sequence[str] = (),
    *,
    given: bool = False,
) -> str:
    """Return the line that a run begins with, and further ones where it chose options, or has another engine to choose.

    Args:
        device: of the learner's model. pool: of actors on the wall clock; None: they are emulated.
        chosen: what the run chose, see ``choose``.
        given: the caller has passed an algorithm, which has a learning rate of its own.
    """
    rate = "learning rate of the given algorithm" if given else f"learning rate {config.optimizer.learning_rate:g}"
    hardware = config.cluster
    lines = [
        f"train: learner on {_learner(config, device)}; {_actors(hardware.gpu_count, pool)}; engine {hardware.engine}, profile "
        f"{hardware.profile}, {rate}"
    ]
    if chosen:
        lines.append(f"train: chosen, as no option says otherwise: {', '.join(chosen)}")
        if hardware.engine != "vllm" and vllm_is_installed():
            lines.append("train: vLLM is installed here; engine='vllm' (cluster.engine=vllm) generates with it")
    return "\n".join(lines)


def _learner(config: TrainConfig, device: torch.device) -> str:
    hardware = config.cluster
    count = hardware.learner_processes
    if device.type == "cpu":
        threads = counted(learner_threads(config), "thread")
        return f"the CPU with {threads}" if count == 1 else f"the CPU in {count} processes with {threads} each"
    if count > 1:
        return f"{count} GPUs in {count} processes"
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    return f"{device}{name}"


def _actors(gpus: int, pool: Any) -> str:
    """Return where responses are generated: on emulated GPUs, on real ones, or on the CPU in place of GPUs."""
    if pool is None:
        return f"generation on {counted(gpus, 'emulated GPU')}"
    if isinstance(pool, RayPool):
        real, where = any(node.kinds for node in RayNode.listed(pool.cluster.ray.nodes())), "of the Ray cluster"
    else:
        real, where = any(device != "cpu" for device in pool.devices), "of this machine"
    return (
        f"generation on {counted(gpus, 'GPU')} {where}" if real else f"generation on the CPU in place of {counted(gpus, 'GPU')}"
    )
