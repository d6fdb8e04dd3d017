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
    from torch.distributed.tensor import DTensor
except ImportError as error:
    raise missing_torch(error) from None

M = TypeVar("M", bound=nn.Module)
V = TypeVar("V")


@dataclass(frozen=True)
class Ranks:
    """This learner process: ``rank`` of ``count``; ``mesh`` is the device mesh of all of them.

    ``after_sharding``, if there is one, is called with every module that was sharded, and the device of its shards.
    """

    rank: int = 0
    count: int = 1
    mesh: Any = None
    after_sharding: Callable[[Any, str], None] | None = None

    def shard(self, module: M, dtype: str = "float32", *, offloads: bool = False) -> M:
        """Shard the module's weights and gradients over the processes, block by block (FSDP2); returns the same object.

        Blocks are what transformers keeps on one device (``_no_split_modules``). Gradients are summed in float32, not averaged.

        Args:
            dtype: name of the number format in which weights are gathered and computed with; shards stay float32.
            offloads: keep the shards in CPU memory, and copy them to the GPU where they are gathered.
        """
        if self.mesh is None:
            return module
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
        if self.after_sharding is not None:
            self.after_sharding(module, "cpu" if offloads else self.mesh.device_type)
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

    def broadcast(self, value: V) -> V:
        """Return the value of rank 0 on every rank (broadcast); the values of the others are ignored."""
        if self.mesh is None:
            return value
        sent: list[Any] = [value]
        dist.broadcast_object_list(sent, src=0)
        first: V = sent[0]
        return first

    def all_gather(self, values: Tensor) -> list[Tensor]:
        """Return the (N,) values of every rank, in the order of ranks (all-gather); lengths may differ."""
        if self.mesh is None:
            return [values]
        gathered: list[Any] = [None] * self.count
        dist.all_gather_object(gathered, values.cpu())
        return [values_of_rank.to(values.device) for values_of_rank in gathered]


ONE = Ranks()
"""The only process."""


@torch.no_grad()
def full_tensor(value: Tensor) -> Tensor:
    """Return the full tensor, gathered from the shards of all processes; every process must call it."""
    return value.full_tensor() if isinstance(value, DTensor) else value


@torch.no_grad()
def scatter(value: Tensor | None, into: Tensor, ranks: Ranks) -> None:
    """Scatter the full tensor of rank 0 into ``into``, which is a shard of it on each rank; all ranks must call it.

    A rank receives its shard only. Shards are cut along the first dimension, as ``torch.chunk`` cuts, which FSDP2 does.

    Args:
        value: the full tensor on rank 0; None on the others.
    """
    shard = into.to_local() if isinstance(into, DTensor) else into
    if ranks.mesh is None:
        assert value is not None
        shard.copy_(value)
        return
    through = ranks.mesh.device_type
    if ranks.rank > 0:
        if shard.numel():
            received = torch.empty_like(shard, device=through)
            dist.recv(received, 0)
            shard.copy_(received)
        return
    assert value is not None
    pieces = value.chunk(ranks.count) if isinstance(into, DTensor) else (value,) * ranks.count
    shard.copy_(pieces[0])
    for rank, piece in enumerate(pieces[1:], 1):
        if piece.numel():
            dist.send(piece.to(through, into.dtype).contiguous(), rank)
