"""How weights are cut over ranks: the part of every weight that each rank holds, as a box of indices.

Knows names, shapes and numbers of ranks only; neither torch nor processes. A weight is cut along one dimension as
``torch.chunk`` cuts it, or it is whole on every rank. So the first parts may be larger, and the last ones empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

from rlhfless.errors import InputError
from solver.model.plurals import counted

Box = tuple[tuple[int, int], ...]
"""First index and the one after the last, along every dimension of a weight."""


class Weight(NamedTuple):
    """A whole weight: its shape, and the bytes of one of its numbers."""

    shape: tuple[int, ...]
    item_bytes: int = 4

    @property
    def total_bytes(self) -> int:
        """Bytes of all its numbers."""
        return prod(self.shape) * self.item_bytes


@dataclass(frozen=True)
class Shards:
    """Weights of a model, cut over ranks.

    Attributes:
        weights: by name. Weights that share memory (tied embeddings) have one name.
        dims: dimension along which a weight is cut, by name. Names that are missing here are whole on every rank.
        part_of: (ranks,) the part that each rank holds of every weight that is cut.

    Raises:
        InputError: a weight is cut along a dimension that it does not have, or a part has no rank.

    Example:
        >>> weights = {"up.weight": Weight((5, 4)), "norm.weight": Weight((4,))}
        >>> tensor_parallel(weights, {"up.weight": 0}, dp=2, tp=2).box("up.weight", 3)
        ((3, 5), (0, 4))
    """

    weights: Mapping[str, Weight]
    dims: Mapping[str, int]
    part_of: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.part_of or set(self.part_of) != set(range(self.parts)):
            raise InputError(f"part_of is {self.part_of}; every part from 0 on needs a rank that holds it")
        for name, dim in self.dims.items():
            if name not in self.weights:
                raise InputError(f"weight {name!r} is cut along dimension {dim}, but it is not among the weights; leave it out")
            if not 0 <= dim < (had := len(self.weights[name].shape)):
                raise InputError(
                    f"weight {name!r} is cut along dimension {dim}, but it has {counted(had, 'dimension')}, from 0 on"
                )

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.part_of)

    @property
    def parts(self) -> int:
        """Number of parts of a weight that is cut."""
        return max(self.part_of, default=-1) + 1

    def box(self, name: str, rank: int) -> Box:
        """Return the box of a weight that a rank holds."""
        return self.part(name, self.part_of[rank])

    def part(self, name: str, part: int) -> Box:
        """Return the box of one part of a weight; of a whole weight all of it."""
        cut = self.dims.get(name)
        shape = self.weights[name].shape
        return tuple(chunk(size, self.parts, part) if dim == cut else (0, size) for dim, size in enumerate(shape))

    def distinct(self, name: str) -> range:
        """Return the parts of a weight that differ: all of them, or one if it is whole."""
        return range(self.parts if name in self.dims else 1)

    def holds(self, name: str, part: int, rank: int) -> bool:
        """Return whether a rank holds a part of a weight."""
        return name not in self.dims or self.part_of[rank] == part

    @cached_property
    def ranks_of(self) -> tuple[tuple[int, ...], ...]:
        """(parts,) the ranks that hold each part of a weight that is cut."""
        return tuple(tuple(rank for rank, own in enumerate(self.part_of) if own == part) for part in range(self.parts))


def fully_sharded(weights: Mapping[str, Weight], ranks: int) -> Shards:
    """Return the shards of FSDP2: every weight is cut along its first dimension, over all ranks."""
    return Shards(weights, {name: 0 for name, weight in weights.items() if weight.shape}, tuple(range(ranks)))


def tensor_parallel(weights: Mapping[str, Weight], dims: Mapping[str, int], dp: int, tp: int) -> Shards:
    """Return the shards of ``dp`` copies of a model, each in ``tp`` parts; rank r has part r % tp, as in ``solver.dataflow``.

    Args:
        dims: dimension along which a weight is cut, by name; the others are whole.
    """
    return Shards(weights, dims, tuple(rank % tp for rank in range(dp * tp)))


def chunk(size: int, parts: int, part: int) -> tuple[int, int]:
    """Return first index and the one after the last of a part, as ``torch.chunk`` cuts a dimension.

    Example:
        >>> [chunk(5, 4, part) for part in range(4)]
        [(0, 2), (2, 4), (4, 5), (5, 5)]
    """
    length = -(-size // parts)
    return min(part * length, size), min((part + 1) * length, size)


def common(box: Box, other: Box) -> Box | None:
    """Return what two boxes of a weight have in common; None if it is nothing."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, other, strict=True))
    return both if all(start < stop for start, stop in both) else None


def lengths(box: Box) -> tuple[int, ...]:
    """Return the length of a box along every dimension."""
    return tuple(stop - start for start, stop in box)


def within(inner: Box, outer: Box) -> tuple[slice, ...]:
    """Return where a box is in one that holds all of it."""
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(inner, outer, strict=True))


def first_difference(source: Shards, destination: Shards) -> str | None:
    """Return the first difference in names, shapes or number formats of two models, as a clause; None if they agree."""
    ours, theirs = source.weights, destination.weights
    for name in [*ours, *theirs]:
        if name not in theirs:
            return f"weight {name!r} is in the source only"
        if name not in ours:
            return f"weight {name!r} is in the destination only"
        for what, of in (("shape", ours[name].shape), ("bytes per number", ours[name].item_bytes)):
            there: Sequence[int] | int = theirs[name].shape if what == "shape" else theirs[name].item_bytes
            if of != there:
                return f"weight {name!r} has {what} {of} in the source and {there} in the destination"
    return None
