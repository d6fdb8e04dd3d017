"""Shards models over the learner's processes (FSDP2) and sums numbers over them; without a device mesh there is one process.

Every process runs the same ``learn`` on the same whole batch. Weights of responses and divisors come from the batch. Gradients
are summed over the processes by ``fully_shard``, numbers by ``sums``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from rlhfless.training import missing_torch

try:
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import DTensor, distribute_tensor
except ImportError as error:
    raise missing_torch(error) from None

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Ranks:
    """This learner process: ``rank`` of ``count``; ``mesh`` is the device mesh of all of them.

    ``before_sharding``, if there is one, is called with every module that is about to be sharded.
    """

    rank: int = 0
    count: int = 1
    mesh: Any = None
    before_sharding: Callable[[Any], None] | None = None

    def shard(self, module: M, dtype: str = "float32", *, offloads: bool = False) -> M:
        """Shard the module's weights and gradients over the processes, block by block (FSDP2); returns the same object.

        Blocks are what transformers keeps on one device (``_no_split_modules``). Gradients are summed, not averaged, in float32.

        Args:
            dtype: name of the number format in which weights are gathered and computed with; shards stay float32.
            offloads: keep the shards in CPU memory, and copy them to the GPU where they are gathered.
        """
        if self.mesh is None:
            return module
        if self.before_sharding is not None:
            self.before_sharding(module)
        parts = list(module.modules())
        blocks = {name for part in parts for name in getattr(part, "_no_split_modules", None) or ()}
        mixed = None if dtype == "float32" else getattr(torch, dtype)
        how: dict[str, Any] = {
            "mesh": self.mesh,
            "reshard_after_forward": True,
            "mp_policy": MixedPrecisionPolicy(param_dtype=mixed, reduce_dtype=None if mixed is None else torch.float32),
        }
        if offloads and self.mesh.device_type != "cpu":
            how["offload_policy"] = CPUOffloadPolicy()
        for part in [part for part in parts if type(part).__name__ in blocks]:
            fully_shard(part, **how)
        fully_shard(module, **how)
        for part in module.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)  # gloo has no other
        return module

    def sums(self, numbers: dict[str, float]) -> dict[str, float]:
        """Return every number summed over the processes."""
        if self.mesh is None:
            return numbers
        total = torch.tensor(list(numbers.values()), dtype=torch.float64, device=self.mesh.device_type)
        dist.all_reduce(total)
        return dict(zip(numbers, total.tolist(), strict=True))

    def of_all(self, values: Tensor) -> list[Tensor]:
        """Return the (N,) values of every process, in the order of ranks; lengths may differ."""
        if self.mesh is None:
            return [values]
        gathered: list[Any] = [None] * self.count
        dist.all_gather_object(gathered, values.cpu())
        return [values_of_rank.to(values.device) for values_of_rank in gathered]


ONE = Ranks()
"""The only process."""


@torch.no_grad()
def whole(value: Tensor) -> Tensor:
    """Return the full tensor, gathered from the shards of all processes; every process must call it."""
    return value.full_tensor() if isinstance(value, DTensor) else value


@torch.no_grad()
def spread_like(value: Tensor, like: Tensor) -> Tensor:
    """Return the full ``value``, which every process has, sharded like ``like``; a value of another shape is not sharded."""
    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value.to(like.device)
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
