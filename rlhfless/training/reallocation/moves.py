"""Plans and executes a reallocation: every rank receives what it lacks of its new shards from the ranks that hold it.

Knows boxes of weights and ``torch.distributed``; nothing of models or training. PyTorch has no such operation:
``DTensor.redistribute`` to another device mesh raises ``NotImplementedError`` (torch 2.13), and ``full_tensor`` sends whole
weights to everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from rlhfless.errors import InputError
from rlhfless.training import missing_torch

try:
    import torch
    import torch.distributed as dist
    from torch import Tensor
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.config.errors import LearnerError
from rlhfless.training.reallocation.shards import Box, Shards, common, first_difference, lengths, within


class SentBox(NamedTuple):
    """A box of a weight, in indices of the whole weight, that one rank sends to another."""

    name: str
    box: Box
    sender: int
    receiver: int


@dataclass(frozen=True)
class Moves:
    """What is sent between ranks so that each has its shards of ``destination``, where ``source`` says what it has now.

    Attributes:
        pieces: in the order in which a pair of ranks has them in its buffer: the widest number format first.

    Example:
        >>> from rlhfless.training.reallocation.shards import Weight, fully_sharded, tensor_parallel
        >>> weights = {"up.weight": Weight((8, 4)), "down.weight": Weight((4, 8))}
        >>> dims = {"up.weight": 0, "down.weight": 1}
        >>> Moves.of(fully_sharded(weights, 4), tensor_parallel(weights, dims, dp=2, tp=2)).received_bytes
        (80, 112, 112, 80)
    """

    source: Shards
    destination: Shards
    pieces: tuple[SentBox, ...]

    @classmethod
    def of(cls, source: Shards, destination: Shards) -> Moves:
        """Return the moves, the same on every rank. Of several holders of a piece, the one that sends least sends it.

        Raises:
            InputError: the models differ in a weight's name or shape, or the layouts in their number of ranks.
        """
        if difference := first_difference(source, destination):
            raise InputError(f"weights cannot be moved: {difference}; source and destination have to be of one model")
        if source.ranks != destination.ranks:
            raise InputError(
                f"weights cannot be moved from {source.ranks} ranks to {destination.ranks}; both layouts need the same ranks"
            )
        missing = [
            (name, piece, part, rank)
            for name in source.weights
            for rank in range(source.ranks)
            for part in source.distinct(name)
            if not source.holds(name, part, rank)
            and (piece := common(destination.box(name, rank), source.part(name, part))) is not None
        ]
        size = {name: weight.item_bytes for name, weight in source.weights.items()}
        missing.sort(key=lambda each: -prod(lengths(each[1])) * size[each[0]])  # large ones first balance better
        sent = [0] * source.ranks
        pieces = []
        for name, box, part, receiver in missing:
            sender = min(source.ranks_of[part], key=lambda rank: (sent[rank], rank))
            sent[sender] += prod(lengths(box)) * size[name]
            pieces.append(SentBox(name, box, sender, receiver))
        pieces.sort(key=lambda piece: -size[piece.name])
        return cls(source, destination, tuple(pieces))

    def bytes_of(self, piece: SentBox) -> int:
        """Return the bytes of a piece."""
        return prod(lengths(piece.box)) * self.source.weights[piece.name].item_bytes

    @cached_property
    def received_bytes(self) -> tuple[int, ...]:
        """(ranks,) bytes that each rank receives."""
        received = [0] * self.source.ranks
        for piece in self.pieces:
            received[piece.receiver] += self.bytes_of(piece)
        return tuple(received)

    @cached_property
    def sent_bytes(self) -> tuple[int, ...]:
        """(ranks,) bytes that each rank sends."""
        sent = [0] * self.source.ranks
        for piece in self.pieces:
            sent[piece.sender] += self.bytes_of(piece)
        return tuple(sent)

    @torch.no_grad()
    def run(self, local: Mapping[str, Tensor], group: Any = None) -> dict[str, Tensor]:
        """Return this rank's shards of ``destination``, in new memory. All ranks must call it.

        One buffer is sent per pair of ranks, and the buffers of a rank need as much memory as it sends and receives. ``local``
        is only read, so weights are never in between two layouts. With NCCL, a group whose first operation this is has to have
        something to send on every rank.

        Args:
            local: this rank's shards of ``source``, by name. group: of processes; None: all.

        Raises:
            InputError: the group has another number of ranks, or a shard has another shape or number format.
            LearnerError: another process ended, or a connection broke.
        """
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        if ranks != self.source.ranks:
            raise InputError(f"weights are moved between {self.source.ranks} ranks, but the group of processes has {ranks}")
        self._check(local, rank)
        moved = {name: local[name].new_empty(lengths(self.destination.box(name, rank))) for name in self.source.weights}
        for name, new in moved.items():
            box, own = self.destination.box(name, rank), self.source.box(name, rank)
            if (kept := common(box, own)) is not None:
                new[within(kept, box)] = local[name][within(kept, own)]
        outgoing = {
            peer: [each for each in self.pieces if (each.sender, each.receiver) == (rank, peer)] for peer in range(ranks)
        }
        incoming = {
            peer: [each for each in self.pieces if (each.sender, each.receiver) == (peer, rank)] for peer in range(ranks)
        }
        device = next(iter(local.values())).device if local else None
        sent = {peer: self._packed(pieces, local, rank) for peer, pieces in outgoing.items() if pieces}
        received = {
            peer: torch.empty(sum(map(self.bytes_of, pieces)), dtype=torch.uint8, device=device)
            for peer, pieces in incoming.items()
            if pieces
        }
        _exchange(sent, received, group)
        for peer, flat in received.items():
            start = 0
            for piece in incoming[peer]:
                new, end = moved[piece.name], start + self.bytes_of(piece)
                place = within(piece.box, self.destination.box(piece.name, rank))
                new[place] = flat[start:end].view(new.dtype).view(lengths(piece.box))
                start = end
        return moved

    def _packed(self, pieces: list[SentBox], local: Mapping[str, Tensor], rank: int) -> Tensor:
        """Return pieces as one buffer of bytes. Wide numbers come first, so every number is aligned."""
        cut = [local[piece.name][within(piece.box, self.source.box(piece.name, rank))] for piece in pieces]
        return torch.cat([piece.contiguous().view(-1).view(torch.uint8) for piece in cut])

    def _check(self, local: Mapping[str, Tensor], rank: int) -> None:
        """Refuse shards that are not those of the source."""
        for name, weight in self.source.weights.items():
            if name not in local:
                raise InputError(
                    f"weight {name!r} is missing among the shards of rank {rank}; all weights of the source are needed"
                )
            given, needed = local[name], lengths(self.source.box(name, rank))
            if tuple(given.shape) != needed or given.element_size() != weight.item_bytes:
                raise InputError(
                    f"rank {rank} has weight {name!r} as {tuple(given.shape)} of {given.dtype}; "
                    f"{needed} with {weight.item_bytes} bytes per number is needed"
                )


def _exchange(sent: Mapping[int, Tensor], received: Mapping[int, Tensor], group: Any) -> None:
    """Send and receive one buffer per peer, all at the same time.

    Raises:
        LearnerError: a peer is gone.
    """
    operations = [dist.P2POp(dist.isend, flat, group=group, group_peer=peer) for peer, flat in sent.items()]
    operations += [dist.P2POp(dist.irecv, flat, group=group, group_peer=peer) for peer, flat in received.items()]
    if not operations:
        return
    try:
        for work in dist.batch_isend_irecv(operations):
            work.wait()  # at most as long as the group's own limit
    except RuntimeError as error:
        raise LearnerError(
            "weights were not moved, because a process of the group ended or a connection broke; nothing was changed, so start "
            "the processes again from their last checkpoint"
        ) from error
