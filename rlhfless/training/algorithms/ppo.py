"""PPO with a critic (Schulman et al. 2017, arXiv:1707.06347; for language models Ouyang et al. 2022, arXiv:2203.02155).

    r_t  = -kl_coef (log p_old - log p_reference)_t  + [t is the last token] reward         ``advantages.token_rewards``
    A, R = GAE(r, V_old; gamma, lam), A whitened over the batch                               ``advantages.gae``
    loss = sum_i weight_i sum_t -min(w A, clip(w, 1 - low, 1 + high) A)_it / divisor  +  vf_coef mean_t value_loss(V, R)_t

Input is a batch of tokens, rewards and the engine's log-probabilities.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rlhfless.errors import InputError
from rlhfless.training import missing_torch

try:
    import torch
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.algorithms.advantages import gae, token_rewards, whitening
from rlhfless.training.algorithms.base import autocast, clip_and_step, frozen_copy, mismatch, settle_old
from rlhfless.training.algorithms.batch import Batch, Part
from rlhfless.training.algorithms.critic import PolicyAndCritic
from rlhfless.training.algorithms.gradient_sums import GradientSums
from rlhfless.training.algorithms.losses import clipped_loss, loss_divisor, loss_weights, value_loss
from rlhfless.training.algorithms.passes import ForwardResult, LossPart, Passes, add_to
from rlhfless.training.algorithms.ranks import ONE, Ranks
from rlhfless.training.algorithms.token_counts import pass_tokens, whole_tokens
from rlhfless.training.config.learning import PpoOptions

SUMS = ("loss", "value_loss", "clipped", "values_clipped", "kl", "prepare_seconds")


@dataclass(frozen=True, eq=False)
class Responses:
    """Responses of a batch, ready to be learned from: weights, and micro-batches with values, advantages and returns.

    Attributes:
        weights: (R,) of their token losses. tokens: response tokens that count in the loss.
        penalties: differences to the reference, per part.
    """

    batch: Batch
    weights: np.ndarray
    tokens: float
    parts: list[Part]
    penalties: list[torch.Tensor]


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
        self.passes = Passes(self)
        self.begin()

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
        began, sums = time.perf_counter(), dict.fromkeys(SUMS, 0.0)
        responses = [self._prepared(batch, sums)]
        self._whiten(responses)
        self.optimizer.zero_grad(set_to_none=True)
        self._accumulate(responses, sums)
        return {**self._updates(responses, sums), "seconds": time.perf_counter() - began}

    def begin(self) -> None:
        """Begin a step that learns from responses while others are generated; see ``add`` and ``finish``."""
        self._added: list[Responses] = []
        self._waiting: list[tuple[Part, torch.Tensor, torch.Tensor]] = []  # with (B,) weights, and which responses wait
        self._sums = dict.fromkeys(SUMS, 0.0)
        self._gradients = GradientSums(self.trained.parameters())

    def add(self, batch: Batch) -> None:
        """Accumulate the partial gradient of responses; no weight changes.

        ``finish`` applies what depends on the whole batch: the divisors and, with ``whiten``, mean and deviation of the
        advantages. For a token whose ratio w is not clipped, the loss is linear in its advantage, -w (A - mean) / deviation, so
        the gradients of w A and of w are summed separately. Responses with a token beyond the clip range wait for ``finish``.
        """
        o, sums, gradients = self.options, dict.fromkeys(SUMS, 0.0), GradientSums(self.trained.parameters())
        responses, waiting = self._prepared(batch, sums), []
        for part in responses.parts:
            with autocast(o, part.mask.device):
                new, values = self.trained(part.input_ids, o.temperature)
            errors, held = value_loss(values, part.tokens["values"], part.tokens["returns"], part.mask, o.value_clip)
            weight = torch.as_tensor(responses.weights[part.rows], dtype=new.dtype, device=new.device)
            terms = {"value": errors.sum()}
            if o.whiten:
                ratio = torch.where(part.mask, new - part.tokens["old"], 0.0).exp()
                beyond = ((ratio < 1 - o.clip_ratio_low) | (ratio > 1 + o.clip_ratio_high)).any(1)
                waiting.append((part, weight, beyond))
                term = torch.where(part.mask & ~beyond[:, None], ratio * weight[:, None], 0.0)
                if "importance" in part.tokens:
                    term = term * part.tokens["importance"]
                terms |= {"advantage": -(term * part.tokens["advantages"]).sum(), "ratio": -term.sum()}
                _, counts = self._policy_loss(part, new.detach(), ~beyond)
            else:
                losses, counts = self._policy_loss(part, new)
                terms["policy"] = (losses * weight[:, None]).sum()
            add_to(sums, {"clipped": counts["clipped"], "values_clipped": held, "kl": counts["kl"]})
            gradients.add(terms)
        self._added.append(responses)
        self._waiting += waiting
        add_to(self._sums, sums)
        self._gradients.take(gradients)

    def finish(self) -> dict[str, float]:
        """Take the optimizer steps on all responses that were added; return the numbers of ``learn``, except ``seconds``.

        Up to the order of summation, the weights are those of ``learn`` on all responses in one batch. Only the gradient of the
        first update is accumulated in advance, because later updates need the new weights. ``waited`` is the share of responses
        that waited for mean and deviation of the advantages.
        """
        added, self._added = self._added, []
        if not added:
            raise InputError("no response was added to this step; add at least one before it is finished")
        o, sums = self.options, self._sums
        divisor, tokens = self._divisor(added), max(sum(each.tokens for each in added), 1.0)
        mean, factor = self._whiten(added)
        factors = {"policy": 1 / divisor, "advantage": factor / divisor, "ratio": -mean * factor / divisor}
        self._gradients.combine({**factors, "value": o.vf_coef / tokens})
        values = self._gradients.values
        sums["loss"] += sum(values.get(name, 0.0) * by for name, by in factors.items())
        sums["value_loss"] += values.get("value", 0.0) / tokens
        waited = self._add_waiting(divisor, sums)
        return {**self._updates(added, sums), "waited": waited}

    def _add_waiting(self, divisor: float, sums: dict[str, float]) -> float:
        """Add the policy's gradient of responses whose clipping depends on mean and deviation; return their share."""
        o, waiting, self._waiting = self.options, self._waiting, []
        everywhere = self.ranks.sums({str(i): float(beyond.any()) for i, (*_, beyond) in enumerate(waiting)})
        for (part, weight, beyond), processes in zip(waiting, everywhere.values(), strict=True):
            if processes == 0:
                continue
            with autocast(o, part.mask.device):
                new, values = self.trained(part.input_ids, o.temperature)
            losses, counts = self._policy_loss(part, new, beyond)
            loss = (losses * weight[:, None]).sum() / divisor
            (loss + 0.0 * values.sum()).backward()
            sums["loss"] += float(loss.detach())
            sums["clipped"] += counts["clipped"]
            sums["kl"] += counts["kl"]
        counts = {
            "waited": float(sum(beyond.sum() for *_, beyond in waiting)),
            "all": float(sum(len(beyond) for *_, beyond in waiting)),
        }
        counts = self.ranks.sums(counts)
        return counts["waited"] / max(counts["all"], 1.0)

    def _prepared(self, batch: Batch, sums: dict[str, float]) -> Responses:
        """Return responses with what is needed before any update: old log-probabilities and values, advantages, returns."""
        o = self.options
        counted = batch.counted(o.mask_truncated)
        weights = loss_weights(o.loss_aggregation, batch.response_tokens, counted)
        tokens = float(np.asarray(batch.response_tokens)[counted].sum())
        parts = self.passes.parts(batch, np.flatnonzero(counted))
        scores = np.asarray(batch.rewards, dtype=float)
        forward = zip(parts, self.passes.forward_only(parts, sums), strict=True)
        penalties = [penalty for part, found in forward if (penalty := self._penalty(part, found, scores)) is not None]
        return Responses(batch, weights, tokens, parts, penalties)

    @torch.no_grad()
    def _penalty(self, part: Part, forward: ForwardResult, scores: np.ndarray) -> torch.Tensor | None:
        """Set a part's old log-probabilities, old values, advantages and returns; return its differences to the reference."""
        o, values = self.options, forward.values
        assert values is not None
        settle_old(part, part.tokens.get("recomputed", forward.logprobs), o)
        kl = None if forward.reference is None else part.tokens["old"] - forward.reference
        score = torch.as_tensor(scores[part.rows], dtype=values.dtype, device=values.device)
        rewards = token_rewards(score, part.mask, kl, o.kl_coef)
        advantages, returns = gae(rewards, values, part.mask, o.gamma, o.lam)
        part.tokens |= {"values": values, "advantages": advantages, "returns": returns}
        return None if kl is None else kl[part.mask]

    @torch.no_grad()
    def _whiten(self, responses: Sequence[Responses]) -> tuple[float, float]:
        """Whiten the advantages of all responses, if asked for; return the mean and factor of ``whitening``."""
        parts = [part for each in responses for part in each.parts]
        if not self.options.whiten or not parts:
            return 0.0, 1.0
        mean, factor = whitening(torch.cat(self._all_gathered(parts, "advantages")))
        for part in parts:
            part.tokens["advantages"] = torch.where(part.mask, (part.tokens["advantages"] - mean) * factor, 0.0)
        return float(mean), float(factor)

    def _all_gathered(self, parts: Sequence[Part], name: str) -> list[torch.Tensor]:
        """Return the named numbers of every process, token by token."""
        return self.ranks.all_gather(torch.cat([part.tokens[name][part.mask] for part in parts]))

    def _divisor(self, responses: Sequence[Responses]) -> float:
        o = self.options
        tokens, number = sum(each.tokens for each in responses), sum(len(each.weights) for each in responses)
        return loss_divisor(o.loss_aggregation, tokens, number, o.max_response_tokens)

    def _updates(self, responses: Sequence[Responses], sums: dict[str, float]) -> dict[str, float]:
        """Take the optimizer's steps, the first on the gradient that is there; return the numbers of the step."""
        o, norms = self.options, 0.0
        parts = [part for each in responses for part in each.parts]
        tokens = sum(each.tokens for each in responses)
        for update in range(o.num_updates if parts else 0):
            if update:
                self.optimizer.zero_grad(set_to_none=True)
                self._accumulate(responses, sums)
            norms += clip_and_step(self.trained, self.optimizer, o.max_grad_norm)
        models = 1 + (self.trained.critic.backbone is not None)
        sums = self.ranks.sums({**sums, "whole_tokens": whole_tokens(parts)})
        return {
            "loss": sums["loss"] / o.num_updates,
            "value_loss": sums["value_loss"] / o.num_updates,
            "clip_share": sums["clipped"] / o.num_updates / max(tokens, 1.0),
            "value_clip_share": sums["values_clipped"] / o.num_updates / max(tokens, 1.0),
            "kl_old": sums["kl"] / o.num_updates / max(tokens, 1.0),
            "grad_norm": norms / o.num_updates,
            "tokens": tokens,
            "unjudged": float(1 - np.concatenate([each.batch.judged for each in responses]).mean()),
            **(self._of_values(responses) if parts else {}),
            **mismatch(parts, self.ranks),
            **pass_tokens(sums["whole_tokens"], models + (self.reference is not None), models * o.num_updates),
            "prepare_seconds": sums["prepare_seconds"] / self.ranks.count,
        }

    def _of_values(self, responses: Sequence[Responses]) -> dict[str, float]:
        """Return the numbers of old values and returns, and the mean difference to the reference."""
        parts = [part for each in responses for part in each.parts]
        values, returns = (torch.cat(self._all_gathered(parts, name)) for name in ("values", "returns"))
        spread = float(returns.var(correction=0))
        metrics = {
            "value_mean": float(values.mean()),
            "return_mean": float(returns.mean()),
            "explained_variance": 1 - float((returns - values).var(correction=0)) / spread if spread > 0 else float("nan"),
        }
        if self.reference is not None:
            penalties = torch.cat([penalty for each in responses for penalty in each.penalties])
            metrics["kl_reference"] = float(torch.cat(self.ranks.all_gather(penalties)).mean())
        return metrics

    def _accumulate(self, responses: Sequence[Responses], sums: dict[str, float]) -> None:
        """Add the gradient of all parts to the weights' and their numbers to ``sums``."""
        divisors = {"loss": self._divisor(responses), "value": sum(each.tokens for each in responses)}
        micro_batches = [LossPart.of(part, {"weight": each.weights}, **divisors) for each in responses for part in each.parts]
        self.passes.accumulate(micro_batches, [partial(policy_loss, self.options), partial(critic_loss, self.options)], sums)

    def _policy_loss(
        self, part: Part, new: torch.Tensor, rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Return the clipped token losses of a part, or of some of its rows, and their counts; see ``clipped_loss``."""
        return _clipped(self.options, part, new, part.mask if rows is None else part.mask & rows[:, None])


def policy_loss(options: PpoOptions, each: LossPart, new: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
    """Return the policy's loss of a micro-batch, divided by the batch's divisor, and numbers to be summed.

    Args:
        new: (B, T - 1) log-probabilities of its tokens.
    """
    losses, counts = _clipped(options, each.part, new, each.part.mask)
    loss = (losses * each.rows["weight"][:, None]).sum() / each.divisors["loss"]
    return loss, {"loss": float(loss.detach()), "clipped": counts["clipped"], "kl": counts["kl"]}


def critic_loss(options: PpoOptions, each: LossPart, values: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
    """Return the critic's part of the loss of a micro-batch, and numbers to be summed; ``values`` are (B, T - 1)."""
    tensors, mask = each.part.tokens, each.part.mask
    errors, held = value_loss(values, tensors["values"], tensors["returns"], mask, options.value_clip)
    error = errors.sum() / each.divisors["value"]
    return options.vf_coef * error, {"value_loss": float(error.detach()), "values_clipped": held}


def _clipped(options: PpoOptions, part: Part, new: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
    o, tensors = options, part.tokens
    return clipped_loss(
        new, tensors["old"], tensors["advantages"], mask, o.clip_ratio_low, o.clip_ratio_high, tensors.get("importance")
    )
