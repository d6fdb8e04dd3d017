"""Moves a model's weights between layouts on processes of this machine, as ReaL does between calls (arXiv:2406.14088).

A layout is ``dp`` copies of a model, each in ``tp`` tensor-parallel parts; rank r holds part r % tp, as in ``solver.layouts``.
Every process receives just what it lacks of its new parts, from a process that holds it. Which weights are cut, and along which
dimension, is transformers' own plan for the model. Its forward pass then runs in the new layout on the weights that arrived.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from math import prod
from typing import Any, NamedTuple

from rlhfless.errors import InputError
from rlhfless.training import missing_torch

try:
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.training.demonstrations.processes import run_on_ranks
from rlhfless.training.models.tiny_model import tiny_qwen2
from solver.layouts import Layout, Mesh, Strategy, missing_share

BATCH = (2, 16)  # rows and tokens of the forward pass


@dataclass(frozen=True)
class Reallocation:
    """A move of a model's weights between layouts, as processes have executed it.

    Attributes:
        source, destination: the layouts.
        received_bytes: (ranks,) counted in the buffers that each rank received.
        planned_bytes: (ranks,) by ``solver.layouts.missing_share``, for the weights that transformers' plan cuts. Norms are on
            every rank, and are not sent.
        seconds: of the slowest rank, from packing its buffers until its new parts are complete.
        bit_equal: whether every rank has exactly its part of every weight.
        logits_difference: largest difference of the logits of a forward pass in the new layout to those of the whole model,
            relative to their standard deviation.
    """

    source: Strategy
    destination: Strategy
    received_bytes: tuple[int, ...]
    planned_bytes: tuple[int, ...]
    seconds: float
    bit_equal: bool
    logits_difference: float


def reallocate(path: Sequence[Strategy], model: Any = None) -> list[Reallocation]:
    """Move a model's weights from each layout of a path to the next, and from the last back to the first.

    Args:
        path: layouts on the same number of ranks, a process each, with one pipeline stage.
        model: a causal language model of transformers, on the CPU. None: a tiny Qwen2 in float32.

    Returns:
        One move for each layout of the path; the last one goes back to the first layout.

    Raises:
        InputError: there are fewer than two layouts, they need different numbers of ranks or pipeline stages, or the model
            cannot be cut into so many parts.
        LearnerError: a process died, and the others were ended.

    Example:
        >>> there, back = reallocate([Strategy(dp=2, tp=1, pp=1), Strategy(dp=1, tp=2, pp=1)])
        >>> there.received_bytes, back.bit_equal  # each rank had all weights already
        ((0, 0), True)
        >>> back.received_bytes == back.planned_bytes
        True
    """
    if len(path) < 2:
        raise InputError(f"path has {len(path)} layouts; at least two are needed")
    ranks = path[0].gpus
    for strategy in path:
        if strategy.pp != 1 or strategy.gpus != ranks:
            raise InputError(
                f"layout {strategy} has {strategy.pp} pipeline stages on {strategy.gpus} ranks; 1 stage on {ranks} ranks, "
                "as the first layout has, is needed"
            )
    if model is None:
        model = tiny_qwen2(CharTokenizer(), heads=2 * ranks, kv_heads=ranks)
    for strategy in path:
        check_tensor_parallel(model, strategy.tp)
    found = run_on_ranks("reallocation", ranks, _run, (model, list(path)))
    mesh = Mesh(0, ranks)
    moves = []
    for number, source in enumerate(path):
        destination = path[(number + 1) % len(path)]
        of_ranks = [moved[number] for moved in found]
        near, far = missing_share(Layout(mesh, source), Layout(mesh, destination), ranks)
        moves.append(
            Reallocation(
                source,
                destination,
                tuple(each.received_bytes for each in of_ranks),
                tuple(round(share * of_ranks[0].cut_bytes) for share in (near + far).tolist()),
                max(each.seconds for each in of_ranks),
                all(each.bit_equal for each in of_ranks),
                max(each.logits_difference for each in of_ranks),
            )
        )
    return moves


def check_tensor_parallel(model: Any, tp: int) -> None:
    """Check that a model of transformers can be cut into ``tp`` parts.

    Raises:
        InputError: transformers has no plan for it, a part would not have whole attention heads, or transformers is too old.
    """
    kind, config = model.config.model_type, model.config.get_text_config()
    if tp == 1:
        return
    if not getattr(model, "tp_plan", None):
        raise InputError(f"transformers has no tensor-parallel plan for model type {kind!r}; give layouts with tp 1")
    for name, what in (("num_key_value_heads", "key-value heads"), ("num_attention_heads", "attention heads")):
        heads = getattr(config, name, None)
        if heads is not None and heads % tp:
            raise InputError(f"tp is {tp}, which does not divide the {heads} {what} of model type {kind!r}; give a divisor")
    _apply_tensor_parallelism()


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
        dims: dimension along which a weight is cut, by name, as ``torch.chunk`` cuts. Others are whole on every rank.
        dp, tp: copies of the model, and parts of each.

    Example:
        >>> weights = {"up.weight": Weight((5, 4)), "norm.weight": Weight((4,))}
        >>> shards = Shards(weights, {"up.weight": 0}, dp=2, tp=2)
        >>> shards.interval("up.weight", 3, dim=0), shards.interval("norm.weight", 3, dim=0)
        ((3, 5), (0, 4))
    """

    weights: Mapping[str, Weight]
    dims: Mapping[str, int]
    dp: int
    tp: int

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.dp * self.tp

    def interval(self, name: str, rank: int, dim: int) -> tuple[int, int]:
        """Return the first index that a rank holds of a weight along a dimension, and the one after the last.

        The first parts of a weight that is cut may be larger, and the last ones empty.
        """
        size = self.weights[name].shape[dim]
        if self.dims.get(name) != dim:
            return 0, size
        length, part = -(-size // self.tp), rank % self.tp
        return min(part * length, size), min((part + 1) * length, size)

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        """Return the shape of what a rank holds of a weight."""
        found = (self.interval(name, rank, dim) for dim in range(len(self.weights[name].shape)))
        return tuple(stop - start for start, stop in found)


class Piece(NamedTuple):
    """An interval of a weight, in indices of the whole weight along dimension ``dim``, that one rank sends to another."""

    name: str
    dim: int
    start: int
    stop: int
    sender: int
    receiver: int


@dataclass(frozen=True)
class Moves:
    """What ranks send each other so that each has its shards of ``destination``, where ``source`` says what it has now.

    Attributes:
        pieces: in the order in which a pair of ranks has them in its buffer.

    Example:
        >>> weights = {"up.weight": Weight((8, 4)), "down.weight": Weight((4, 8))}
        >>> dims = {"up.weight": 0, "down.weight": 1}
        >>> Moves.of(Shards(weights, dims, dp=1, tp=4), Shards(weights, dims, dp=2, tp=2)).received_bytes
        (64, 128, 128, 64)
    """

    source: Shards
    destination: Shards
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, source: Shards, destination: Shards) -> Moves:
        """Return the moves, the same on every rank. Of several holders of a piece, the one that sends least sends it.

        A weight has to be cut along the same dimension in both layouts, or be whole in one.
        """
        weights = source.weights
        needed = []
        for name, dim in source.dims.items():  # a weight that is whole at the source is on every rank already
            assert destination.dims.get(name, dim) == dim
            for rank in range(source.ranks):
                begin, end = destination.interval(name, rank, dim)
                for part in range(source.tp):
                    first, after = source.interval(name, part, dim)
                    start, stop = max(begin, first), min(end, after)
                    if part != rank % source.tp and start < stop:
                        needed.append((name, dim, start, stop, part, rank))
        per_index = {name: weights[name].total_bytes // max(1, weights[name].shape[dim]) for name, dim in source.dims.items()}
        needed.sort(key=lambda each: -(each[3] - each[2]) * per_index[each[0]])  # large ones first balance better
        sent, pieces = [0] * source.ranks, []
        for name, dim, start, stop, part, receiver in needed:
            sender = min(range(part, source.ranks, source.tp), key=lambda rank: (sent[rank], rank))
            sent[sender] += (stop - start) * per_index[name]
            pieces.append(Piece(name, dim, start, stop, sender, receiver))
        return cls(source, destination, tuple(pieces))

    def bytes_of(self, piece: Piece) -> int:
        """Return the bytes of a piece."""
        weight = self.source.weights[piece.name]
        return weight.total_bytes // weight.shape[piece.dim] * (piece.stop - piece.start)

    @cached_property
    def received_bytes(self) -> tuple[int, ...]:
        """(ranks,) bytes that each rank receives."""
        return self._bytes("receiver")

    @cached_property
    def sent_bytes(self) -> tuple[int, ...]:
        """(ranks,) bytes that each rank sends."""
        return self._bytes("sender")

    def _bytes(self, end: str) -> tuple[int, ...]:
        found = [0] * self.source.ranks
        for piece in self.pieces:
            found[getattr(piece, end)] += self.bytes_of(piece)
        return tuple(found)

    @torch.no_grad()
    def run(self, local: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], int]:
        """Return this rank's shards of ``destination`` in new memory, and the bytes that it received. All ranks must call it.

        One buffer is sent per pair of ranks. ``local`` is only read, so weights are never in between two layouts.

        Args:
            local: this rank's shards of ``source``, by name.
        """
        rank = dist.get_rank()
        moved = {}
        for name, held in local.items():
            new = moved[name] = held.new_empty(self.destination.shape(name, rank))
            dim = self.source.dims.get(name, self.destination.dims.get(name))
            if dim is None:
                new.copy_(held)
                continue
            first, after = self.source.interval(name, rank, dim)
            begin, end = self.destination.interval(name, rank, dim)
            start, stop = max(first, begin), min(after, end)
            if start < stop:
                new.narrow(dim, start - begin, stop - start).copy_(held.narrow(dim, start - first, stop - start))
        outgoing, incoming = self._by_peer("sender", "receiver", rank), self._by_peer("receiver", "sender", rank)
        sent = {peer: torch.cat([self._packed(piece, local, rank) for piece in pieces]) for peer, pieces in outgoing.items()}
        received = {peer: torch.empty(sum(map(self.bytes_of, pieces)), dtype=torch.uint8) for peer, pieces in incoming.items()}
        operations = [dist.P2POp(dist.isend, flat, peer) for peer, flat in sent.items()]
        operations += [dist.P2POp(dist.irecv, flat, peer) for peer, flat in received.items()]
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()
        for peer, flat in received.items():
            sizes = [self.bytes_of(piece) for piece in incoming[peer]]
            parts = flat.split(sizes)  # type: ignore[no-untyped-call]
            for piece, of_piece in zip(incoming[peer], parts, strict=True):
                begin, _ = self.destination.interval(piece.name, rank, piece.dim)
                place = moved[piece.name].narrow(piece.dim, piece.start - begin, piece.stop - piece.start)
                place.copy_(of_piece.clone().view(place.dtype).view(place.shape))  # a copy is aligned
        return moved, sum(flat.nbytes for flat in received.values())

    def _by_peer(self, own: str, other: str, rank: int) -> dict[int, list[Piece]]:
        """Return the pieces whose end ``own`` is this rank, by the rank at the other end."""
        found: dict[int, list[Piece]] = {}
        for piece in self.pieces:
            if getattr(piece, own) == rank:
                found.setdefault(getattr(piece, other), []).append(piece)
        return found

    def _packed(self, piece: Piece, local: Mapping[str, Tensor], rank: int) -> Tensor:
        """Return a piece as bytes."""
        first, _ = self.source.interval(piece.name, rank, piece.dim)
        values = local[piece.name].narrow(piece.dim, piece.start - first, piece.stop - piece.start)
        return values.contiguous().view(-1).view(torch.uint8)


# What follows runs in the processes.


class _Moved(NamedTuple):
    """What one rank reports of a move."""

    received_bytes: int
    cut_bytes: int
    seconds: float
    bit_equal: bool
    logits_difference: float


@torch.no_grad()
def _run(rank: int, work: tuple[Any, list[Strategy]]) -> list[_Moved]:
    """Start with this rank's shards of the first layout, and move them along the path and back."""
    model, path = work
    whole = {name: value.detach() for name, value in model.named_parameters()}
    copies = [_ParallelCopy(model, strategy) for strategy in path]
    cut = {name for each in copies for name in each.shards.dims}
    cut_bytes = sum(whole[name].nbytes for name in cut)
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.randint(0, vocabulary, BATCH, generator=torch.Generator().manual_seed(0))
    expected = model(input_ids=ids, use_cache=False).logits
    local = _part(whole, copies[0].shards, rank)
    found = []
    for number, here in enumerate(copies):
        there = copies[(number + 1) % len(copies)]
        moves = Moves.of(here.shards, there.shards)
        dist.barrier()
        began = time.perf_counter()
        local, received = moves.run(local)
        seconds = time.perf_counter() - began
        wanted = _part(whole, there.shards, rank)
        equal = all(torch.equal(local[name], value) for name, value in wanted.items())
        difference = (there.logits(local, ids) - expected).abs().max() / expected.std()
        found.append(_Moved(received, cut_bytes, seconds, equal, float(difference)))
    return found


def _part(whole: Mapping[str, Tensor], shards: Shards, rank: int) -> dict[str, Tensor]:
    """Return a rank's shards, cut by torch itself."""
    found = {}
    for name, value in whole.items():
        found[name] = value
        if name in shards.dims:
            parts = value.chunk(shards.tp, shards.dims[name])
            part = rank % shards.tp
            found[name] = parts[part] if part < len(parts) else value.narrow(shards.dims[name], 0, 0)
    return found


class _ParallelCopy:
    """A copy of a model in tensor-parallel parts by transformers' plan, without weights of its own.

    Attributes:
        shards: what each rank needs of the weights.
    """

    def __init__(self, model: Any, strategy: Strategy) -> None:
        mesh = init_device_mesh("cpu", (strategy.dp, strategy.tp), mesh_dim_names=("dp", "tp"))
        self._mesh = mesh["tp"]
        empty = {
            id(value): nn.Parameter(torch.empty_like(value, device="meta"), requires_grad=False) for value in model.parameters()
        }
        self._model: Any = copy.deepcopy(model, dict(empty)).eval()
        names = {id(value): name for name, value in self._model.named_parameters()}
        places = [
            (names[id(value)], part, own)
            for part in self._model.modules()
            for own, value in part._parameters.items()
            if value is not None
        ]
        if strategy.tp > 1:
            _apply_tensor_parallelism()(self._model, self._mesh, _plan(self._model, strategy.tp))
        self._places = [(name, part, own, part._parameters[own]) for name, part, own in places]
        dims = {name: dim for name, _, _, value in self._places if (dim := _dimension(name, value)) is not None}
        weights = {name: Weight(tuple(value.shape), value.element_size()) for name, value in model.named_parameters()}
        self.shards = Shards(weights, dims, strategy.dp, strategy.tp)
        for name, _, own, value in self._places:
            if _dimension(name, value) != dims.get(name):
                raise InputError(f"weight {name!r} is shared, but {own!r} is sharded differently; give layouts with tp 1")

    def logits(self, local: Mapping[str, Tensor], ids: Tensor) -> Tensor:
        """Return the (B, T, V) logits of tokens, computed on this rank's shards together with the other parts of its copy."""
        for name, part, own, empty in self._places:
            values: Tensor = local[name]
            if isinstance(empty, DTensor):
                values = DTensor.from_local(
                    values, self._mesh, empty.placements, run_check=False, shape=empty.shape, stride=empty.stride()
                )
            part._parameters[own] = nn.Parameter(values, requires_grad=False)
        found: Tensor = self._model(input_ids=ids, use_cache=False).logits
        return found


def _plan(model: Any, tp: int) -> dict[str, str]:
    """Return transformers' plan for a model. A vocabulary that is not divisible stays whole, in and out."""
    plan = dict(model.tp_plan)
    if model.config.get_text_config().vocab_size % tp:
        ends = [model.get_input_embeddings(), model.get_output_embeddings()]
        whole = {name for name, part in model.named_modules() if any(part is end for end in ends)}
        plan = {name: style for name, style in plan.items() if name not in whole}
    return plan


def _dimension(name: str, value: Tensor) -> int | None:
    """Return along which dimension a parameter is cut; None if it is whole."""
    if not isinstance(value, DTensor) or isinstance(value.placements[0], Replicate):
        return None
    (placement,) = value.placements
    if type(placement) is not Shard:
        raise InputError(f"weight {name!r} is cut as {placement}, which is more than one interval; give layouts with tp 1")
    return placement.dim % value.dim()


def _apply_tensor_parallelism() -> Any:
    """Return the function of transformers that cuts a model."""
    try:
        from transformers.distributed.tensor_parallel import apply_tensor_parallelism
    except ImportError:
        raise InputError(
            f"tensor parallelism needs a newer transformers than {version('transformers')}; install 5.19, or give layouts with "
            "tp 1"
        ) from None
    return apply_tensor_parallelism
