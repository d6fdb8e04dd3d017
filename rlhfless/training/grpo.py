"""GRPO: advantages relative to a prompt's group, the clipped loss, and the update.

Equation numbers refer to DeepSeekMath (Shao et al. 2024, arXiv:2402.03300) unless another paper is named. Knows nothing of
generation: a batch arrives as tokens, rewards and the log-probabilities under the weights that generated.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rlhfless.training import missing_torch

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.batching import micro_batches, right_padded
from rlhfless.training.logprobs import response_logprobs, token_logprobs


@dataclass(frozen=True, eq=False)
class GrpoBatch:
    """The responses of one step; every sequence has one entry per response.

    ``old_logprobs`` are those of the response tokens at the weights that generated them; None lets ``learn`` compute them
    with the weights it starts from. Truncated responses stay in the batch with their reward.
    """

    prompt_ids: Sequence[Sequence[int]]
    response_ids: Sequence[Sequence[int]]
    rewards: ArrayLike
    group_of: ArrayLike
    old_logprobs: Sequence[Sequence[float] | np.ndarray] | None = None

    def __post_init__(self) -> None:
        responses = len(self.response_ids)
        columns: dict[str, Any] = {"prompt_ids": self.prompt_ids, "rewards": self.rewards, "group_of": self.group_of}
        if self.old_logprobs is not None:
            columns["old_logprobs"] = self.old_logprobs
        for name, column in columns.items():
            if len(column) != responses:
                raise ValueError(f"{name} has {len(column)} entries for {responses} responses; it needs one entry per response")
        for row, (prompt, response) in enumerate(zip(self.prompt_ids, self.response_ids, strict=True)):
            if len(prompt) == 0 or len(response) == 0:
                raise ValueError(f"row {row} has an empty prompt or response; each needs at least 1 token")
            if self.old_logprobs is not None and len(self.old_logprobs[row]) != len(response):
                raise ValueError(
                    f"row {row} has {len(self.old_logprobs[row])} old_logprobs for {len(response)} response tokens"
                )


def group_advantages(rewards: ArrayLike, group_of: ArrayLike, normalise_std: bool = True, eps: float = 1e-6) -> np.ndarray:
    """Advantage of each response relative to its group (section 4.1.2): (r - mean(r)) / std(r), the same for all its tokens.

    Args:
        rewards: (R,) rewards.
        group_of: (R,) group (prompt) of each response, any integers or strings; groups may be ragged.
        normalise_std: divide by the group's standard deviation; without it this is Dr. GRPO (Liu et al. 2025).
        eps: keeps the division finite; a group of equal rewards has advantage exactly 0.
    """
    reward = np.asarray(rewards, dtype=float)
    groups, group = np.unique(np.asarray(group_of), return_inverse=True)
    count = np.bincount(group, minlength=len(groups))
    centred = reward - (np.bincount(group, reward, len(groups)) / count)[group]
    # The mean of equal numbers can differ from them in the last bit; that is no advantage.
    lowest, highest = np.full(len(groups), np.inf), np.full(len(groups), -np.inf)
    np.minimum.at(lowest, group, reward)
    np.maximum.at(highest, group, reward)
    centred[(lowest == highest)[group]] = 0.0
    if not normalise_std:
        return centred
    std = np.sqrt(np.bincount(group, centred**2, len(groups)) / count)
    return centred / (std[group] + eps)


def grpo_loss(
    new_logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    *,
    ref_logprobs: Tensor | None = None,
    kl_weight: float = 0.0,
    total_tokens: float | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The clipped loss of eq. (3), averaged over tokens, with the penalty of eq. (4) if a reference is given.

    With the ratio w = exp(new - old) a token's loss is -min(w A, clip(w, 1 - clip_low, 1 + clip_high) A); separate bounds
    are DAPO's (Yu et al. 2025). Eq. (3) averages over each response first; here every token counts the same (DAPO's
    token-level loss), which does not favour short responses. The penalty is kl_weight (e^d - d - 1), d = reference - new.

    Args:
        new_logprobs, old_logprobs, ref_logprobs: (B, T) log-probabilities of the tokens.
        advantages: (B,) per response, or (B, T) per token.
        mask: (B, T) True on response tokens.
        total_tokens: what the sum is divided by; by default the tokens of ``mask``. A micro-batch passes the tokens of the
            whole batch, so that gradients add up to those of the whole.

    Returns:
        The loss, and sums over the tokens of ``mask``: ``tokens``, ``clipped`` (tokens whose gradient the clip removed),
        ``kl`` (the estimate of eq. (4) of the divergence from the old weights).
    """
    if advantages.dim() == 1:
        advantages = advantages[:, None]
    # Padding may hold anything, infinities included; replaced before exp so that no gradient becomes nan.
    log_ratio = torch.where(mask, new_logprobs - old_logprobs, 0.0)
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1 - clip_low, 1 + clip_high)
    token_loss = -torch.minimum(ratio * advantages, clipped_ratio * advantages)
    if ref_logprobs is not None and kl_weight:
        to_reference = torch.where(mask, ref_logprobs - new_logprobs, 0.0)
        token_loss = token_loss + kl_weight * (to_reference.exp() - to_reference - 1)
    tokens = mask.sum()
    loss = torch.where(mask, token_loss, 0.0).sum() / (total_tokens if total_tokens is not None else tokens.clamp(min=1))
    with torch.no_grad():
        clipped = mask & (clipped_ratio * advantages < ratio * advantages)
        kl = (-log_ratio).exp() + log_ratio - 1
    return loss, {"tokens": float(tokens), "clipped": float(clipped.sum()), "kl": float(kl.sum())}


def learn(
    model: Any,
    optimizer: Any,
    batch: GrpoBatch,
    *,
    updates: int = 1,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    normalise_std: bool = True,
    max_grad_norm: float = 1.0,
    temperature: float = 1.0,
    token_budget: int = 4096,
) -> dict[str, float]:
    """Take ``updates`` optimizer steps on the whole batch, each accumulated over micro-batches of similar length.

    Responses with advantage 0 have gradient 0 and are not computed, but count as tokens.

    Returns:
        Means over the updates: ``loss``, ``clip_share`` (share of tokens clipped), ``kl_old`` (per token, from the weights
        that generated), ``grad_norm`` (before clipping); and ``tokens`` of the responses, ``seconds``.
    """
    if updates < 1:
        raise ValueError(f"updates is {updates}; learn needs at least 1")
    start = time.perf_counter()
    advantages = group_advantages(batch.rewards, batch.group_of, normalise_std)
    old = batch.old_logprobs
    total_tokens = float(sum(len(response) for response in batch.response_ids))
    rows_that_count = np.flatnonzero(advantages).tolist()
    sizes = [len(batch.prompt_ids[i]) + len(batch.response_ids[i]) for i in rows_that_count]
    parts = [[rows_that_count[i] for i in part] for part in micro_batches(sizes, token_budget)]
    if old is None and updates > 1:
        old = response_logprobs(model, batch.prompt_ids, batch.response_ids, temperature=temperature)

    sums = dict.fromkeys(("loss", "clipped", "kl", "grad_norm"), 0.0)
    for _ in range(updates):
        optimizer.zero_grad(set_to_none=True)
        for rows in parts:
            input_ids, mask = right_padded([batch.prompt_ids[i] for i in rows], [batch.response_ids[i] for i in rows])
            input_ids, mask = input_ids.to(model.device), mask.to(model.device)
            new = token_logprobs(model, input_ids, temperature=temperature)
            old_logprobs = new.detach() if old is None else _aligned([old[i] for i in rows], mask)
            advantage = torch.as_tensor(advantages[rows], dtype=new.dtype, device=new.device)
            loss, counts = grpo_loss(new, old_logprobs, advantage, mask, clip_low, clip_high, total_tokens=total_tokens)
            loss.backward()  # type: ignore[no-untyped-call]
            sums["loss"] += float(loss.detach())
            sums["clipped"] += counts["clipped"]
            sums["kl"] += counts["kl"]
        if parts:
            sums["grad_norm"] += float(torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm))
            optimizer.step()
    return {
        "loss": sums["loss"] / updates,
        "clip_share": sums["clipped"] / updates / total_tokens,
        "kl_old": sums["kl"] / updates / total_tokens,
        "grad_norm": sums["grad_norm"] / updates,
        "tokens": total_tokens,
        "seconds": time.perf_counter() - start,
    }


def _aligned(logprobs: Sequence[Sequence[float] | np.ndarray], mask: Tensor) -> Tensor:
    """Per-response arrays laid out where ``mask`` is True, row by row; zeros elsewhere."""
    values = torch.as_tensor(np.concatenate([np.asarray(value, dtype=np.float32) for value in logprobs]))
    return torch.zeros(mask.shape, device=mask.device).masked_scatter(mask, values.to(mask.device))
