"""GRPO: the clipped loss with advantages relative to a prompt's group (DeepSeekMath, Shao et al. 2024, arXiv:2402.03300).

    loss = sum_i weight_i sum_t [ -min(w A_i, clip(w, 1 - low, 1 + high) A_i) + kl_coef k3(new, reference) ]_it / divisor

eq. (3) with the penalty of eq. (4); weights and divisor by ``losses.aggregation``, A by ``advantages.group_advantages``. Input
is a batch of tokens, rewards and the engine's log-probabilities.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from rlhfless.errors import InputError
from rlhfless.training import missing_torch

try:
    import torch
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.algorithms.advantages import flat_groups, group_advantages
from rlhfless.training.algorithms.base import autocast, clip_and_step, frozen_copy, mismatch, settle_old
from rlhfless.training.algorithms.batch import Batch, Part
from rlhfless.training.algorithms.losses import aggregation, clipped_loss, k3
from rlhfless.training.algorithms.ranks import ONE, Ranks
from rlhfless.training.algorithms.token_counts import counted_seconds, pass_tokens, whole_tokens
from rlhfless.training.config.learning import GrpoOptions
from rlhfless.training.logprobs import token_logprobs


class Grpo:
    """GRPO on ``model``.

    Args:
        reference: model of the KL penalty; None copies the current model, if there is a ``kl_coef``.
        ranks: the learner processes, of which this is one.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        options: GrpoOptions = GrpoOptions(),  # noqa: B008 (frozen)
        reference: Any = None,
        ranks: Ranks = ONE,
    ) -> None:
        self.trained, self.optimizer, self.options, self.ranks = model, optimizer, options, ranks
        self.reference = frozen_copy(model) if options.kl_coef and reference is None else reference

    def learn(self, batch: Batch) -> dict[str, float]:
        """Take ``num_updates`` optimizer steps on the whole batch, each accumulated over parts of similar length.

        Responses without a reward are left out, and so are truncated ones with ``mask_truncated``. Responses with gradient 0
        (advantage 0 and no penalty) are not computed, but their tokens count.

        Returns:
            Means over the updates: ``loss``, ``clip_share`` (share of tokens clipped), ``kl_old`` (per token, from the weights
            that generated), ``grad_norm`` (before clipping), ``kl_reference`` (with a penalty). Of the batch: ``tokens`` that
            count, ``flat_groups`` and ``unjudged`` (shares of groups and responses without gradient), ``seconds``, and the
            numbers of ``mismatch`` over the computed responses. Of the reference's passes: ``prepare_seconds`` and the numbers
            of ``pass_tokens``.

        Raises:
            InputError: every group is a single response.
        """
        began, o = time.perf_counter(), self.options
        if len(np.unique(np.asarray(batch.group_of))) == len(batch.response_ids):
            raise InputError(
                "every group has 1 response, but GRPO compares responses to one prompt; take 2 samples or more, or PPO"
            )
        advantages = group_advantages(batch.rewards, batch.group_of, o.advantage_std, o.eps)
        counted = batch.counted(o.mask_truncated)
        weights, divisor = aggregation(o.loss_aggregation, batch.response_tokens, counted, o.max_response_tokens)
        rows = np.flatnonzero(counted & ((advantages != 0) | (self.reference is not None)))
        parts = batch.parts(rows, o.max_tokens_per_micro_batch, self.trained.device, self.ranks)
        tokens = float(np.asarray(batch.response_tokens)[counted].sum())

        sums, norms = dict.fromkeys(("loss", "clipped", "kl", "kl_reference", "prepare_seconds"), 0.0), 0.0
        for _ in range(o.num_updates):
            self.optimizer.zero_grad(set_to_none=True)
            for part in parts:
                self._accumulate(part, advantages[part.rows], weights[part.rows], divisor, sums)
            if parts:
                norms += clip_and_step(self.trained, self.optimizer, o.max_grad_norm)
        sums = self.ranks.sums({**sums, "whole_tokens": whole_tokens(parts)})
        metrics = {
            "loss": sums["loss"] / o.num_updates,
            "clip_share": sums["clipped"] / o.num_updates / max(tokens, 1.0),
            "kl_old": sums["kl"] / o.num_updates / max(tokens, 1.0),
            "grad_norm": norms / o.num_updates,
            "tokens": tokens,
            "flat_groups": float(flat_groups(batch.rewards, batch.group_of).mean()),
            "unjudged": float(1 - batch.judged.mean()),
            **mismatch(parts, self.ranks),
            **pass_tokens(sums["whole_tokens"], int(self.reference is not None), o.num_updates),
            "prepare_seconds": sums["prepare_seconds"] / self.ranks.count,
        }
        if self.reference is not None:
            metrics["kl_reference"] = sums["kl_reference"] / o.num_updates / max(tokens, 1.0)
        return {**metrics, "seconds": time.perf_counter() - began}

    def _accumulate(
        self, part: Part, advantages: np.ndarray, weights: np.ndarray, divisor: float, sums: dict[str, float]
    ) -> None:
        """Add a part's gradient to the weights' and its numbers to ``sums``."""
        o, mask = self.options, part.mask
        with autocast(o, mask.device):
            new = token_logprobs(self.trained, part.input_ids, temperature=o.temperature)
        if "old" not in part.tokens:  # the first update: these weights generated
            settle_old(part, new.detach(), o)
            if self.reference is not None:
                with torch.no_grad(), autocast(o, mask.device), counted_seconds(sums, part):
                    part.tokens["reference"] = token_logprobs(self.reference, part.input_ids, temperature=o.temperature)
        advantage, weight = (torch.as_tensor(x, dtype=new.dtype, device=new.device) for x in (advantages, weights))
        old, importance = part.tokens["old"], part.tokens.get("importance")
        loss, counts = clipped_loss(new, old, advantage, mask, o.clip_ratio_low, o.clip_ratio_high, importance)
        if self.reference is not None:
            kl = k3(new, part.tokens["reference"], mask)
            loss = loss + o.kl_coef * kl
            sums["kl_reference"] += float(kl.detach().sum())
        total = (loss * weight[:, None]).sum() / divisor
        total.backward()  # type: ignore[no-untyped-call]
        sums["loss"] += float(total.detach())
        sums["clipped"] += counts["clipped"]
        sums["kl"] += counts["kl"]
