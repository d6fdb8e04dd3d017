"""A process that lets the pipeline runtime of torch itself execute an order; imports torch only, so that it starts quickly."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

WIDTH, ROWS = 8, 4


def blocks(stages: int) -> list[nn.Module]:
    """Stages of a small network, always the same."""
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(stages)]


def data(micro_batches: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of all micro-batches."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, ROWS * micro_batches, WIDTH, generator=generator)
    return x, y


def loss(output: Tensor, target: Tensor) -> Tensor:
    """A sum over rows."""
    return (output - target).square().sum()


def main(rank: int, folder: str, file: str, route: tuple[int, ...], micro_batches: int) -> None:
    """Run the order in ``file`` with the other ranks, and store the gradients of this rank's stages."""
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining import schedules as torch_schedules

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=1 + max(route))
    every = blocks(len(route))
    own = {stage: every[stage] for stage, device in enumerate(route) if device == rank}
    stages = [PipelineStage(module, stage, len(route), torch.device("cpu")) for stage, module in own.items()]
    runtime: Any = torch_schedules._PipelineScheduleRuntime(stages, micro_batches, loss_fn=loss, scale_grads=False)
    runtime._load_csv(file)
    x, y = data(micro_batches)
    given = (x,) if 0 in own else ()
    target = {"target": y} if len(route) - 1 in own else {}
    runtime.step(*given, **target)
    torch.save({stage: [p.grad for p in module.parameters()] for stage, module in own.items()}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()
