"""Runs the passes before an update (reference, old log-probabilities, values) in another layout than the update.

In updates the weights are sharded over all processes (FSDP2). These passes run in ``dp`` copies of ``tp`` parts: the weights
are sent there (``Moves``), used, and released. The processes of a copy run the micro-batches of all of them in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlhfless.training import missing_torch

try:
    import torch
    import torch.distributed as dist
    from torch import Tensor
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.algorithms.base import autocast
from rlhfless.training.algorithms.batch import Batch, Part
from rlhfless.training.algorithms.passes import Looked, Loss, LossPart, Models, WholePasses, outputs_of
from rlhfless.training.algorithms.ranks import Ranks
from rlhfless.training.algorithms.token_counts import counted_seconds
from rlhfless.training.logprobs import token_logprobs
from rlhfless.training.reallocation.moves import Moves
from rlhfless.training.reallocation.tensor_parallel import TensorParallelModel, local_shards, shards_of

Forward = Callable[[Any, Tensor], tuple[Tensor, ...]]
"""What a pass computes of a model and (B, T) tokens: (B, T - 1) numbers of each token."""


@dataclass(frozen=True, eq=False)
class Reallocated:
    """A model that is sharded over all processes, its tensor-parallel copy, and the moves of its weights there."""

    model: Any
    copy: TensorParallelModel
    moves: Moves


def with_reallocated_passes(make: Callable[[Ranks], Any], ranks: Ranks, mesh: Any) -> Any:
    """Return the algorithm that ``make`` returns, with ``ReallocatedPasses``.

    Args:
        make: makes an algorithm whose models are sharded over the given ranks. ranks: the learner processes.
        mesh: device mesh of all of them, of the names ``dp`` and ``tp``.

    Raises:
        InputError: a model cannot be cut into so many parts.
    """
    copies: dict[int, TensorParallelModel] = {}

    def copied(module: Any) -> None:
        copies[id(module)] = TensorParallelModel(module, mesh)

    algorithm = make(replace(ranks, before_sharding=copied))
    algorithm.passes = ReallocatedPasses(algorithm, copies[id(algorithm.trained)], copies.get(id(algorithm.reference)))
    return algorithm


class ReallocatedPasses:
    """Runs updates as ``WholePasses`` does, and the passes before them in a (dp, tp) layout; see ``Passes``.

    Dropout is off in these passes. GRPO takes its old log-probabilities from the first update, so of GRPO only the reference is
    reallocated.

    Args:
        algorithm: its models are sharded over all processes already.
        trained, reference: tensor-parallel copies, made before the weights were sharded.

    Raises:
        InputError: a model and its copy differ.
    """

    def __init__(self, algorithm: Models, trained: TensorParallelModel, reference: TensorParallelModel | None) -> None:
        self._algorithm, self._whole = algorithm, WholePasses(algorithm)
        self._group = trained.mesh.get_group()
        self._trained = self._reallocated(algorithm.trained, trained)
        self._reference = None if reference is None else self._reallocated(algorithm.reference, reference)

    def _reallocated(self, model: Any, copy: TensorParallelModel) -> Reallocated:
        """Plan the moves of a model, once."""
        source = shards_of(dict(model.named_parameters()), tuple(range(self._algorithm.ranks.count)))
        return Reallocated(model, copy, Moves.of(source, copy.shards))

    def parts(self, batch: Batch, rows: np.ndarray) -> list[Part]:
        """See ``Passes``."""
        return self._whole.parts(batch, rows)

    @torch.no_grad()
    def look(self, parts: Sequence[Part], sums: dict[str, float]) -> list[Looked]:
        """See ``Passes``; adds the seconds and received bytes of moves to ``reallocate_seconds`` and ``reallocated_bytes``."""
        temperature = self._algorithm.options.temperature
        found = self._run(self._trained, lambda model, ids: outputs_of(model, ids, temperature), parts, sums)
        references = [None] * len(parts) if self._reference is None else self.reference(parts, sums)
        return [
            Looked(outputs[0], outputs[1] if len(outputs) > 1 else None, reference)
            for outputs, reference in zip(found, references, strict=True)
        ]

    @torch.no_grad()
    def reference(self, parts: Sequence[Part], sums: dict[str, float]) -> list[Tensor]:
        """See ``look``."""
        assert self._reference is not None
        temperature = self._algorithm.options.temperature

        def logprobs(model: Any, ids: Tensor) -> tuple[Tensor, ...]:
            return (token_logprobs(model, ids, temperature=temperature),)

        return [outputs[0] for outputs in self._run(self._reference, logprobs, parts, sums)]

    def accumulate(self, micro_batches: Sequence[LossPart], losses: Sequence[Loss], sums: dict[str, float]) -> list[Tensor]:
        """See ``Passes``."""
        return self._whole.accumulate(micro_batches, losses, sums)

    def close(self) -> None:
        """See ``Passes``; there is nothing to release."""

    def _run(
        self, role: Reallocated, forward: Forward, parts: Sequence[Part], sums: dict[str, float]
    ) -> list[tuple[Tensor, ...]]:
        """Return what ``forward`` gives for this process's parts, of which every process has equally many."""
        if not parts:
            return []
        with self._weights_in(role, sums, parts[0].input_ids.is_cuda):
            own, peers = dist.get_rank(self._group), dist.get_world_size(self._group)
            ids: list[Any] = [None] * peers
            dist.all_gather_object(ids, [part.input_ids.cpu() for part in parts], group=self._group)
            found = []
            for number, part in enumerate(parts):
                for peer in range(peers):
                    given = ids[peer][number].to(part.input_ids.device)
                    with autocast(self._algorithm.options, given.device), counted_seconds(sums, part):
                        outputs = forward(role.copy.module, given)
                    if peer == own:
                        found.append(outputs)
        return found

    @contextmanager
    def _weights_in(self, role: Reallocated, sums: dict[str, float], on_gpu: bool) -> Iterator[None]:
        """Context in which the copy of a model has its weights; adds the move to ``sums``."""
        began = time.perf_counter()
        role.copy.fill(role.moves.run(local_shards(dict(role.model.named_parameters()))))
        if on_gpu:
            torch.cuda.synchronize()
        seconds, received = time.perf_counter() - began, role.moves.received_bytes[self._algorithm.ranks.rank]
        for name, value in (("prepare_seconds", seconds), ("reallocate_seconds", seconds), ("reallocated_bytes", received)):
            sums[name] = sums.get(name, 0.0) + value
        try:
            yield
        finally:
            role.copy.empty()
