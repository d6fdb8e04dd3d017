"""One of the processes that learn together: which share of a batch it computes, and what it tells the others.

Knows ``torch.distributed`` and FSDP2; nothing of losses. Every process runs the same ``learn`` on the same whole batch: weights
of responses and divisors come from the batch, gradients are summed over the processes by ``fully_shard``, numbers by ``sums``.
Without a mesh there is one process, and nothing is said to anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from rlhfless.training import missing_torch

try:
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.distributed.fsdp import FSDPModule, fully_shard
    from torch.distributed.tensor import DTensor, distribute_tensor
except ImportError as error:
    raise missing_torch(error) from None

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Ranks:
    """``rank`` of ``count`` processes; ``mesh`` is the device mesh of all of them."""

    rank: int = 0
    count: int = 1
    mesh: Any = None

    def shard(self, module: M) -> M:
        """The module with its weights and gradients spread over the processes, block by block (FSDP2); the same object.

        Blocks are what transformers keeps on one device (``_no_split_modules``). Gradients are summed, not averaged.
        """
        if self.mesh is None:
            return module
        parts = list(module.modules())
        blocks = {name for part in parts for name in getattr(part, "_no_split_modules", None) or ()}
        for part in [part for part in parts if type(part).__name__ in blocks]:
            fully_shard(part, mesh=self.mesh, reshard_after_forward=True)
        fully_shard(module, mesh=self.mesh, reshard_after_forward=True)
        for part in module.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)  # gloo has no other
        return module

    def sums(self, numbers: dict[str, float]) -> dict[str, float]:
        """Every number summed over the processes."""
        if self.mesh is None:
            return numbers
        total = torch.tensor(list(numbers.values()), dtype=torch.float64, device=self.mesh.device_type)
        dist.all_reduce(total)
        return dict(zip(numbers, total.tolist(), strict=True))

    def of_all(self, values: Tensor) -> list[Tensor]:
        """(N,) values of every process, in the order of ranks; lengths may differ."""
        if self.mesh is None:
            return [values]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, values.cpu())
        return [other.to(values.device) for other in found]


ONE = Ranks()
"""The only process."""


@torch.no_grad()
def whole(value: Tensor) -> Tensor:
    """A tensor with what the other processes hold of it; all of them have to ask."""
    return value.full_tensor() if isinstance(value, DTensor) else value


@torch.no_grad()
def spread_like(value: Tensor, like: Tensor) -> Tensor:
    """The whole ``value``, which every process has, held as ``like`` is; what has another shape stays whole."""
    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value.to(like.device)
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
