"""Runs the models of an algorithm over micro-batches: forward passes alone, and forward with backward passes.

Losses are functions of a model's output, so ``rlhfless.training.demonstrations.pipeline`` uses the same ones.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from rlhfless.training import missing_torch

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.algorithms.base import autocast
from rlhfless.training.algorithms.batch import Batch, Part
from rlhfless.training.algorithms.critic import PolicyAndCritic
from rlhfless.training.algorithms.ranks import Ranks
from rlhfless.training.algorithms.token_counts import counted_seconds, pass_tokens, whole_tokens
from rlhfless.training.logprobs import token_logprobs
from rlhfless.training.offload import copied_to

Loss = Callable[[Part, Tensor], tuple[Tensor, dict[str, float]]]
"""A loss of a micro-batch, from the log-probabilities or values of its tokens, and numbers to be summed."""


class ForwardResult(NamedTuple):
    """(B, T - 1) log-probabilities of a part's tokens, values where there is a critic, and the reference's log-probabilities
    where there is one.
    """

    logprobs: Tensor
    values: Tensor | None
    reference: Tensor | None


class Models(Protocol):
    """What passes need of an algorithm: a causal language model of transformers or ``PolicyAndCritic``; a frozen model or None;
    options; the learner processes.
    """

    trained: Any
    reference: Any
    options: Any
    ranks: Ranks


class Passes:
    """Runs an algorithm's models in this process, whole or this process's shards of them.

    Attributes:
        tokens: of the passes that have ended since ``count_anew``, named as in ``pass_tokens``.
        on_count: called with ``tokens`` after every pass; None for no callback.
    """

    def __init__(self, algorithm: Models) -> None:
        self._algorithm = algorithm
        self.on_count: Callable[[dict[str, float]], object] | None = None
        self.count_anew()

    def count_anew(self) -> None:
        """Begin to count the tokens of passes."""
        self.tokens = dict.fromkeys(pass_tokens(0.0, 0, 0), 0.0)

    def _count(self, part: Part, prepare: int = 0, learn: int = 0) -> None:
        add_to(self.tokens, pass_tokens(whole_tokens([part]), prepare, learn))
        if self.on_count is not None:
            self.on_count(self.tokens)

    @property
    def models(self) -> int:
        """Number of models that are trained."""
        trained = self._algorithm.trained
        return 1 + (isinstance(trained, PolicyAndCritic) and trained.critic.backbone is not None)

    def parts(self, batch: Batch, rows: np.ndarray) -> list[Part]:
        """Return rows of a batch as the micro-batches of this process."""
        trained, ranks = self._algorithm.trained, self._algorithm.ranks
        policy = trained.policy if isinstance(trained, PolicyAndCritic) else trained
        return batch.parts(rows, self._algorithm.options.max_tokens_per_micro_batch, policy.device, ranks)

    @torch.no_grad()
    def forward_only(self, parts: Sequence[Part], sums: dict[str, float]) -> list[ForwardResult]:
        """Run forward passes of all models; add their seconds to ``prepare_seconds`` of ``sums``."""
        references = [None] * len(parts) if self._algorithm.reference is None else self.reference(parts, sums)
        found = []
        for part, reference in zip(parts, references, strict=True):
            with autocast(self._algorithm.options, part.mask.device), counted_seconds(sums, part):
                outputs = self.outputs(part)
            self._count(part, prepare=self.models)
            found.append(ForwardResult(outputs[0], outputs[1] if len(outputs) > 1 else None, reference))
        return found

    @torch.no_grad()
    def reference(self, parts: Sequence[Part], sums: dict[str, float]) -> list[Tensor]:
        """Return the reference's log-probabilities; seconds as for ``forward_only``."""
        algorithm, found = self._algorithm, []
        alone = algorithm.options.offload_reference and algorithm.ranks.mesh is None  # else FSDP2 copies what it gathers
        reference = copied_to(algorithm.reference, parts[0].mask.device) if alone and parts else algorithm.reference
        for part in parts:
            with autocast(algorithm.options, part.mask.device), counted_seconds(sums, part):
                found.append(token_logprobs(reference, part.input_ids, temperature=algorithm.options.temperature))
            self._count(part, prepare=1)
        return found

    @torch.no_grad()
    def logprobs(self, batch: Batch, sums: dict[str, float]) -> list[np.ndarray]:
        """Return the log-probabilities of the tokens of every response of a batch under the current weights, on every rank.

        Seconds count as for ``forward_only``; prompt and response tokens of the passes in ``prepare_pass_tokens`` of ``sums``.
        """
        rows, found = [], []
        for part in self.parts(batch, np.arange(len(batch.response_ids))):
            with autocast(self._algorithm.options, part.mask.device), counted_seconds(sums, part):
                outputs = self.outputs(part)[0]
            self._count(part, prepare=self.models)
            add_to(sums, {"prepare_pass_tokens": self.models * whole_tokens([part])})
            rows += part.rows if part.mask.any() else []  # a part without a counted token only keeps processes in lockstep
            found.append(outputs[part.mask].float())
        every: dict[int, np.ndarray] = {}
        gather = self._algorithm.ranks.all_gather
        for chosen, flat in zip(gather(torch.tensor(rows, dtype=torch.long)), gather(torch.cat(found)), strict=True):
            tokens = [len(batch.response_ids[row]) for row in chosen.tolist()]
            every |= dict(zip(chosen.tolist(), (x.cpu().numpy() for x in torch.split(flat, tokens)), strict=True))
        return [every[row] for row in range(len(batch.response_ids))]

    def accumulate(self, parts: Sequence[Part], losses: Sequence[Loss], sums: dict[str, float]) -> None:
        """Add the gradient of the losses of all parts, and their numbers to ``sums``.

        Args:
            losses: of the policy and, with a critic, of the critic.
        """
        for part in parts:
            with autocast(self._algorithm.options, part.mask.device):
                outputs = self.outputs(part)
            found = [loss(part, output) for loss, output in zip(losses, outputs, strict=True)]
            functools.reduce(operator.add, [loss for loss, _ in found]).backward()  # type: ignore[no-untyped-call]
            for _, numbers in found:
                add_to(sums, numbers)
            self._count(part, learn=self.models)

    def outputs(self, part: Part) -> tuple[Tensor, ...]:
        """Return the (B, T - 1) log-probabilities of a part's tokens and, with a critic, their values."""
        trained, temperature = self._algorithm.trained, self._algorithm.options.temperature
        if isinstance(trained, PolicyAndCritic):
            found: tuple[Tensor, Tensor] = trained(part.input_ids, temperature)
            return found
        return (token_logprobs(trained, part.input_ids, temperature=temperature),)


def add_to(sums: dict[str, float], numbers: dict[str, float]) -> None:
    """Add numbers to those of the same name."""
    for name, value in numbers.items():
        sums[name] += value
