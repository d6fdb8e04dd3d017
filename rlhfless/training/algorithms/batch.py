"""The responses of one step as training data (``Batch``), and its padded micro-batches (``Part``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rlhfless.errors import InputError
from rlhfless.training import missing_torch

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.algorithms.ranks import ONE, Ranks
from rlhfless.training.micro_batches import PAD_MULTIPLE, micro_batches_by_rank, right_padded


@dataclass(frozen=True, eq=False)
class Batch:
    """The responses of one step; every sequence has one entry per response.

    Attributes:
        rewards: reward per response; NaN if it could not be scored, which leaves it out of learning.
        group_of: the prompt's group, any integers or strings.
        engine_logprobs: the engine's log-probabilities of the response tokens, at the temperature of learning; None if it gave
            none, NaN for single tokens without one.
        truncated: True if the response limit ended the response; None: no response was truncated.
        recomputed_logprobs: log-probabilities of the response tokens under the weights that generated, recomputed by the
            learner; None: the current weights are still those, and the first update computes them.

    Raises:
        InputError: a sequence has another number of entries, or a response is empty, or a number is NaN or infinite.
    """

    prompt_ids: Sequence[Sequence[int]]
    response_ids: Sequence[Sequence[int]]
    rewards: ArrayLike
    group_of: ArrayLike
    engine_logprobs: Sequence[Sequence[float] | np.ndarray] | None = None
    truncated: ArrayLike | None = None
    recomputed_logprobs: Sequence[np.ndarray] | None = None

    def __post_init__(self) -> None:
        responses = len(self.response_ids)
        for name in ("prompt_ids", "rewards", "group_of", "engine_logprobs", "truncated", "recomputed_logprobs"):
            column: Any = getattr(self, name)
            if column is not None and len(column) != responses:
                raise InputError(f"{name} has {len(column)} entries for {responses} responses; it needs one entry per response")
        if np.isinf(np.asarray(self.rewards, dtype=float)).any():
            raise InputError("a reward is infinite; finite numbers are needed, or NaN for a response that could not be judged")
        for row, (prompt, response) in enumerate(zip(self.prompt_ids, self.response_ids, strict=True)):
            if len(prompt) == 0 or len(response) == 0:
                raise InputError(f"row {row} has an empty prompt or response; each needs at least 1 token")
            if self.engine_logprobs is not None and len(self.engine_logprobs[row]) != len(response):
                raise InputError(
                    f"row {row} has {len(self.engine_logprobs[row])} engine_logprobs for {len(response)} response tokens"
                )

    @property
    def response_tokens(self) -> list[int]:
        """Tokens of each response."""
        return [len(response) for response in self.response_ids]

    @property
    def tokens(self) -> list[int]:
        """Tokens of each response with its prompt."""
        return [len(prompt) + len(response) for prompt, response in zip(self.prompt_ids, self.response_ids, strict=True)]

    @property
    def judged(self) -> np.ndarray:
        """(R,) True if the reward is a number."""
        unknown: np.ndarray = np.isnan(np.asarray(self.rewards, dtype=float))
        return ~unknown

    def take(self, rows: ArrayLike) -> Batch:
        """Return the given rows as a batch."""
        index = np.asarray(rows, dtype=np.int64)
        columns = {name: np.asarray(getattr(self, name))[index] for name in ("rewards", "group_of")}
        engine, recomputed, kept = self.engine_logprobs, self.recomputed_logprobs, index.tolist()
        return Batch(
            [self.prompt_ids[i] for i in kept],
            [self.response_ids[i] for i in kept],
            **columns,
            engine_logprobs=None if engine is None else [engine[i] for i in kept],
            truncated=None if self.truncated is None else np.asarray(self.truncated)[index],
            recomputed_logprobs=None if recomputed is None else [recomputed[i] for i in kept],
        )

    def counted(self, mask_truncated: bool) -> np.ndarray:
        """Return (R,) True where a response's tokens count in the loss: it was judged and, with ``mask_truncated``, not
        truncated."""
        counted = self.judged
        if mask_truncated and self.truncated is not None:
            counted &= ~np.asarray(self.truncated, dtype=bool)
        return counted

    def parts(self, rows: np.ndarray, max_tokens_per_micro_batch: int, device: Any, ranks: Ranks = ONE) -> list[Part]:
        """Return this rank's share of the given rows as padded micro-batches of similar length; every rank gets the same
        number.
        """
        index = rows.tolist()
        shares = micro_batches_by_rank(self._lengths(index), max_tokens_per_micro_batch, ranks.count)[ranks.rank]
        return [self._part([index[i] for i in chosen], index, device) for chosen in shares]

    def _lengths(self, index: list[int]) -> list[int]:
        return [len(self.prompt_ids[i]) + len(self.response_ids[i]) for i in index]

    def _part(self, kept: list[int], index: list[int], device: Any) -> Part:
        """Return the rows ``kept`` as a part; without any, a row of ``index`` none of whose tokens count, so that this process
        computes when the others do.
        """
        if kept:
            ids, mask = right_padded([self.prompt_ids[i] for i in kept], [self.response_ids[i] for i in kept])
        else:
            kept, ids = index[:1], torch.zeros((1, PAD_MULTIPLE), dtype=torch.long)
            mask = torch.zeros((1, PAD_MULTIPLE - 1), dtype=torch.bool)
        part = Part(kept, ids.to(device), mask.to(device))
        if self.engine_logprobs is not None:
            part.tokens["engine"] = part.aligned([self.engine_logprobs[i] for i in kept])
        if self.recomputed_logprobs is not None:
            part.tokens["recomputed"] = part.aligned([self.recomputed_logprobs[i] for i in kept])
        return part


@dataclass(eq=False)
class Part:
    """Some rows of a batch, right-padded: (B, T) ids and (B, T - 1) mask in the alignment of ``token_logprobs``.

    ``tokens`` are further values by name, per token in the same alignment, or (B, 1) per row.
    """

    rows: list[int]
    input_ids: Tensor
    mask: Tensor
    tokens: dict[str, Tensor] = field(default_factory=dict)

    def to(self, device: Any) -> Part:
        """Return the part on a device."""
        tokens = {name: values.to(device) for name, values in self.tokens.items()}
        return Part(self.rows, self.input_ids.to(device), self.mask.to(device), tokens)

    def aligned(self, values: Sequence[Sequence[float] | np.ndarray]) -> Tensor:
        """Place per-response arrays where ``mask`` is True, row by row; zeros elsewhere."""
        flat = torch.as_tensor(np.concatenate([np.asarray(value, dtype=np.float32) for value in values]))
        return torch.zeros(self.mask.shape, device=self.mask.device).masked_scatter(self.mask, flat.to(self.mask.device))
