"""PPO with a critic (Schulman et al. 2017, arXiv:1707.06347; for language models Ouyang et al. 2022, arXiv:2203.02155).

    r_t  = -kl_coef (log p_old - log p_reference)_t  + [t is the last token] reward         ``advantages.token_rewards``
    A, R = GAE(r, V_old; gamma, lam), A whitened over the batch                               ``advantages.gae``
    loss = sum_i weight_i sum_t -min(w A, clip(w, 1 - low, 1 + high) A)_it / divisor  +  vf_coef mean_t value_loss(V, R)_t

Input is a batch of tokens, rewards and the engine's log-probabilities.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from rlhfless.training import missing_torch

try:
    import torch
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.algorithms.advantages import gae, token_rewards, whitened
from rlhfless.training.algorithms.base import autocast, clip_and_step, frozen_copy, mismatch, settle_old
from rlhfless.training.algorithms.batch import Batch, Part
from rlhfless.training.algorithms.critic import PolicyAndCritic
from rlhfless.training.algorithms.losses import aggregation, clipped_loss, value_loss
from rlhfless.training.algorithms.ranks import ONE, Ranks
from rlhfless.training.algorithms.token_counts import counted_seconds, pass_tokens, whole_tokens
from rlhfless.training.config.learning import PpoOptions
from rlhfless.training.logprobs import token_logprobs


class Ppo:
    """PPO on a policy with its critic.

    Args:
        reference: model of the KL penalty; None copies the current policy, if there is a ``kl_coef``.
        ranks: the learner processes, of which this is one.
    """

    def __init__(
        self,
        trained: PolicyAndCritic,
        optimizer: Any,
        options: PpoOptions = PpoOptions(),  # noqa: B008 (frozen)
        reference: Any = None,
        ranks: Ranks = ONE,
    ) -> None:
        self.trained, self.optimizer, self.options, self.ranks = trained, optimizer, options, ranks
        self.reference = frozen_copy(trained.policy) if options.kl_coef and reference is None else reference

    def learn(self, batch: Batch) -> dict[str, float]:
        """Take ``num_updates`` optimizer steps on the whole batch, each accumulated over parts of similar length.

        Responses without a reward are left out, and so are truncated ones with ``mask_truncated``.

        Returns:
            Means over the updates, as in GRPO: ``loss``, ``value_loss``, ``clip_share``, ``value_clip_share``,
            ``kl_old``, ``grad_norm``; of the batch: ``value_mean``, ``return_mean`` per token, ``explained_variance`` of the
            returns by the old values, ``kl_reference`` (the penalised difference, per token), ``tokens``, ``unjudged``,
            ``seconds``, and the numbers of ``mismatch``; of the passes before the first update ``prepare_seconds`` and the
            numbers of ``pass_tokens``.
        """
        began, o = time.perf_counter(), self.options
        counted = batch.counted(o.mask_truncated)
        weights, divisor = aggregation(o.loss_aggregation, batch.response_tokens, counted, o.max_response_tokens)
        tokens = float(np.asarray(batch.response_tokens)[counted].sum())
        parts = batch.parts(np.flatnonzero(counted), o.max_tokens_per_micro_batch, self.trained.policy.device, self.ranks)
        names = ("loss", "value_loss", "clipped", "values_clipped", "kl", "prepare_seconds")
        sums, norms = dict.fromkeys(names, 0.0), 0.0
        metrics = self._look_back(parts, np.asarray(batch.rewards, dtype=float), sums) if parts else {}
        models = 1 + (self.trained.critic.backbone is not None)

        for _ in range(o.num_updates if parts else 0):
            self.optimizer.zero_grad(set_to_none=True)
            for part in parts:
                self._accumulate(part, weights[part.rows], divisor, tokens, sums)
            norms += clip_and_step(self.trained, self.optimizer, o.max_grad_norm)
        sums = self.ranks.sums({**sums, "whole_tokens": whole_tokens(parts)})
        return {
            "loss": sums["loss"] / o.num_updates,
            "value_loss": sums["value_loss"] / o.num_updates,
            "clip_share": sums["clipped"] / o.num_updates / max(tokens, 1.0),
            "value_clip_share": sums["values_clipped"] / o.num_updates / max(tokens, 1.0),
            "kl_old": sums["kl"] / o.num_updates / max(tokens, 1.0),
            "grad_norm": norms / o.num_updates,
            "tokens": tokens,
            "unjudged": float(1 - batch.judged.mean()),
            **metrics,
            **mismatch(parts, self.ranks),
            **pass_tokens(sums["whole_tokens"], models + (self.reference is not None), models * o.num_updates),
            "prepare_seconds": sums["prepare_seconds"] / self.ranks.count,
            "seconds": time.perf_counter() - began,
        }

    @torch.no_grad()
    def _look_back(self, parts: list[Part], scores: np.ndarray, sums: dict[str, float]) -> dict[str, float]:
        """Compute what is needed before any update: old log-probabilities, old values, token rewards, advantages and
        returns.
        """
        o, penalties = self.options, []
        for part in parts:
            with autocast(o, part.mask.device), counted_seconds(sums, part):
                recomputed, values = self.trained(part.input_ids, o.temperature)
            settle_old(part, recomputed, o)
            kl = None
            if self.reference is not None:
                with autocast(o, part.mask.device), counted_seconds(sums, part):
                    expected = token_logprobs(self.reference, part.input_ids, temperature=o.temperature)
                kl = part.tokens["old"] - expected
                penalties.append(kl[part.mask])
            score = torch.as_tensor(scores[part.rows], dtype=values.dtype, device=values.device)
            rewards = token_rewards(score, part.mask, kl, o.kl_coef)
            advantages, returns = gae(rewards, values, part.mask, o.gamma, o.lam)
            part.tokens |= {"values": values, "advantages": advantages, "returns": returns}

        def of_all(name: str) -> list[torch.Tensor]:
            """Return the tokens of every process."""
            return self.ranks.of_all(torch.cat([part.tokens[name][part.mask] for part in parts]))

        values, returns = torch.cat(of_all("values")), torch.cat(of_all("returns"))
        spread = float(returns.var(correction=0))
        metrics = {
            "value_mean": float(values.mean()),
            "return_mean": float(returns.mean()),
            "explained_variance": 1 - float((returns - values).var(correction=0)) / spread if spread > 0 else float("nan"),
        }
        if penalties:
            metrics["kl_reference"] = float(torch.cat(self.ranks.of_all(torch.cat(penalties))).mean())
        if o.whiten:
            every = of_all("advantages")
            white = whitened(torch.cat(every)).split_with_sizes([len(tokens) for tokens in every])[self.ranks.rank]
            for part, of_part in zip(parts, white.split_with_sizes([int(part.mask.sum()) for part in parts]), strict=True):
                part.tokens["advantages"] = torch.zeros_like(part.tokens["values"]).masked_scatter(part.mask, of_part)
        return metrics

    def _accumulate(self, part: Part, weights: np.ndarray, divisor: float, tokens: float, sums: dict[str, float]) -> None:
        """Add a part's gradient to the weights' and its numbers to ``sums``."""
        o, tensors, mask = self.options, part.tokens, part.mask
        with autocast(o, mask.device):
            new, values = self.trained(part.input_ids, o.temperature)
        losses, counts = clipped_loss(
            new, tensors["old"], tensors["advantages"], mask, o.clip_ratio_low, o.clip_ratio_high, tensors.get("importance")
        )
        weight = torch.as_tensor(weights, dtype=new.dtype, device=new.device)
        loss = (losses * weight[:, None]).sum() / divisor
        errors, held = value_loss(values, tensors["values"], tensors["returns"], mask, o.value_clip)
        error = errors.sum() / tokens
        (loss + o.vf_coef * error).backward()  # type: ignore[no-untyped-call]
        sums["loss"] += float(loss.detach())
        sums["value_loss"] += float(error.detach())
        sums["clipped"] += counts["clipped"]
        sums["values_clipped"] += held
        sums["kl"] += counts["kl"]
