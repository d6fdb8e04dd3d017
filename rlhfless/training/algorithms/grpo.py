"""GRPO: the clipped loss with advantages relative to a prompt's group (DeepSeekMath, Shao et al. 2024, arXiv:2402.03300).

    loss = sum_i weight_i sum_t [ -min(w A_i, clip(w, 1 - low, 1 + high) A_i) + kl_coef k3(new, reference) ]_it / divisor

eq. (3) with the penalty of eq. (4); weights and divisor by ``losses.aggregation``, A by ``advantages.group_advantages``. Input
is a batch of tokens, rewards and the engine's log-probabilities.
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

from rlhfless.training.algorithms.advantages import flat_groups, group_advantages
from rlhfless.training.algorithms.base import autocast, clip_and_step, frozen_copy, mismatch, settle_old
from rlhfless.training.algorithms.batch import Batch, Part
from rlhfless.training.algorithms.gradient_sums import GradientSums
from rlhfless.training.algorithms.losses import clipped_loss, k3, loss_divisor, loss_weights
from rlhfless.training.algorithms.passes import LossPart, Passes, add_to
from rlhfless.training.algorithms.ranks import ONE, Ranks
from rlhfless.training.algorithms.token_counts import pass_tokens, whole_tokens
from rlhfless.training.config.learning import GrpoOptions
from rlhfless.training.logprobs import token_logprobs

SUMS = ("loss", "clipped", "kl", "kl_reference", "prepare_seconds")


@dataclass(frozen=True, eq=False)
class Groups:
    """Whole groups of a batch, ready to be learned from: advantages and weights of their responses, and micro-batches."""

    batch: Batch
    counted: np.ndarray
    advantages: np.ndarray
    weights: np.ndarray
    parts: list[Part]

    @property
    def counted_tokens(self) -> float:
        """Response tokens that count in the loss."""
        return float(np.asarray(self.batch.response_tokens)[self.counted].sum())


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
        self.passes = Passes(self)
        self.begin()

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
        began, sums = time.perf_counter(), dict.fromkeys(SUMS, 0.0)
        self._check_groups([batch])
        groups = [self._prepared(batch, sums)]
        self.optimizer.zero_grad(set_to_none=True)
        self._accumulate(groups, self._divisor(groups), sums)
        return {**self._updates(groups, sums), "seconds": time.perf_counter() - began}

    def begin(self) -> None:
        """Begin a step that learns from groups while others are generated; see ``add`` and ``finish``."""
        self._added: list[Groups] = []
        self._sums = dict.fromkeys(SUMS, 0.0)
        self._gradients = GradientSums(self.trained.parameters())

    def add(self, batch: Batch) -> None:
        """Accumulate the partial gradient of whole groups; no weight changes.

        ``finish`` divides by the loss's divisor, which depends on the whole batch.

        Raises:
            InputError: a group was added before, so this is not all of it.
        """
        self._check_new(batch)
        sums, gradients = dict.fromkeys(SUMS, 0.0), GradientSums(self.trained.parameters())
        groups = self._prepared(batch, sums)
        for each in _with_divisor(groups, 1.0):
            with autocast(self.options, each.part.mask.device):
                new = token_logprobs(self.trained, each.input_ids, temperature=self.options.temperature)
            loss, numbers = grpo_loss_sum(self.options, each, new)
            add_to(sums, numbers)
            gradients.add({"loss": loss})
        self._added.append(groups)
        add_to(self._sums, sums)
        self._gradients.take(gradients)

    def finish(self) -> dict[str, float]:
        """Take the optimizer steps on all groups that were added; return the numbers of ``learn``, except ``seconds``.

        Up to the order of summation, the weights are those of ``learn`` on all groups in one batch. Only the gradient of the
        first update is accumulated in advance, because later updates need the new weights.
        """
        added, self._added = self._added, []
        self._check_groups([groups.batch for groups in added])
        divisor = self._divisor(added)
        self._gradients.combine({"loss": 1 / divisor})
        self._sums["loss"] += self._gradients.values.get("loss", 0.0) / divisor
        return self._updates(added, self._sums)

    def _check_new(self, batch: Batch) -> None:
        before = {group for groups in self._added for group in np.asarray(groups.batch.group_of).tolist()}
        if again := before.intersection(np.asarray(batch.group_of).tolist()):
            raise InputError(
                f"group {min(again, key=str)!r} is added a second time; add a group once, with all of its responses, because "
                "their advantages compare them with each other"
            )

    def _check_groups(self, batches: Sequence[Batch]) -> None:
        if not batches:
            raise InputError("no group was added to this step; add at least one before it is finished")
        if all(len(np.unique(np.asarray(batch.group_of))) == len(batch.response_ids) for batch in batches):
            raise InputError(
                "every group has 1 response, but GRPO compares responses to one prompt; take 2 samples or more, or PPO"
            )

    def _prepared(self, batch: Batch, sums: dict[str, float]) -> Groups:
        o = self.options
        advantages = group_advantages(batch.rewards, batch.group_of, o.advantage_std, o.eps)
        counted = batch.counted(o.mask_truncated)
        weights = loss_weights(o.loss_aggregation, batch.response_tokens, counted)
        rows = np.flatnonzero(counted & ((advantages != 0) | (self.reference is not None)))
        parts = self.passes.parts(batch, rows)
        if self.reference is not None:
            for part, of_part in zip(parts, self.passes.reference(parts, sums), strict=True):
                part.tokens["reference"] = of_part
        return Groups(batch, counted, advantages, weights, parts)

    def _divisor(self, groups: Sequence[Groups]) -> float:
        o = self.options
        tokens, responses = sum(each.counted_tokens for each in groups), sum(len(each.counted) for each in groups)
        return loss_divisor(o.loss_aggregation, tokens, responses, o.max_response_tokens)

    def _updates(self, groups: Sequence[Groups], sums: dict[str, float]) -> dict[str, float]:
        """Take the optimizer's steps, the first on the gradient that is there; return the numbers of the step."""
        o, norms = self.options, 0.0
        parts = [part for each in groups for part in each.parts]
        divisor, tokens = self._divisor(groups), sum(each.counted_tokens for each in groups)
        for update in range(o.num_updates):
            if update:
                self.optimizer.zero_grad(set_to_none=True)
                self._accumulate(groups, divisor, sums)
            if parts:
                norms += clip_and_step(self.trained, self.optimizer, o.max_grad_norm)
        sums = self.ranks.sums({**sums, "whole_tokens": whole_tokens(parts)})
        flat = np.concatenate([flat_groups(each.batch.rewards, each.batch.group_of) for each in groups])
        metrics = {
            "loss": sums["loss"] / o.num_updates,
            "clip_share": sums["clipped"] / o.num_updates / max(tokens, 1.0),
            "kl_old": sums["kl"] / o.num_updates / max(tokens, 1.0),
            "grad_norm": norms / o.num_updates,
            "tokens": tokens,
            "flat_groups": float(flat.mean()),
            "unjudged": float(1 - np.concatenate([each.batch.judged for each in groups]).mean()),
            **mismatch(parts, self.ranks),
            **pass_tokens(sums["whole_tokens"], int(self.reference is not None), o.num_updates),
            "prepare_seconds": sums["prepare_seconds"] / self.ranks.count,
        }
        if self.reference is not None:
            metrics["kl_reference"] = sums["kl_reference"] / o.num_updates / max(tokens, 1.0)
        return metrics

    def _accumulate(self, groups: Sequence[Groups], divisor: float, sums: dict[str, float]) -> None:
        """Add the gradient of all parts to the weights' and their numbers to ``sums``."""
        micro_batches = [part for each in groups for part in _with_divisor(each, divisor)]
        logprobs = self.passes.accumulate(micro_batches, [partial(grpo_loss, self.options)], sums)
        for each, new in zip(micro_batches, logprobs, strict=True):
            _settle_first(each.part, new, self.options)


def _with_divisor(groups: Groups, divisor: float) -> list[LossPart]:
    rows = {"advantage": groups.advantages, "weight": groups.weights}
    return [LossPart.of(part, rows, loss=divisor) for part in groups.parts]


def _settle_first(part: Part, new: torch.Tensor, options: GrpoOptions) -> None:
    """Take the old log-probabilities from the batch or, without any there, from the first update: these weights generated."""
    if "old" not in part.tokens:
        settle_old(part, part.tokens.get("recomputed", new), options)


def grpo_loss(options: GrpoOptions, each: LossPart, new: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
    """Return the loss of a micro-batch, divided by the batch's divisor, and numbers to be summed.

    Args:
        new: (B, T - 1) log-probabilities of its tokens.
    """
    total, numbers = grpo_loss_sum(options, each, new)
    loss = total / each.divisors["loss"]
    return loss, {**numbers, "loss": float(loss.detach())}


def grpo_loss_sum(options: GrpoOptions, each: LossPart, new: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
    """Return the weighted sum of a micro-batch's token losses, not divided, and numbers to be summed; see ``grpo_loss``."""
    o, part, mask = options, each.part, each.part.mask
    _settle_first(part, new.detach(), o)
    old, importance = part.tokens["old"], part.tokens.get("importance")
    advantage = each.rows["advantage"]
    loss, counts = clipped_loss(new, old, advantage, mask, o.clip_ratio_low, o.clip_ratio_high, importance)
    numbers = {"clipped": counts["clipped"], "kl": counts["kl"]}
    if "reference" in part.tokens:
        kl = k3(new, part.tokens["reference"], mask)
        loss = loss + o.kl_coef * kl
        numbers["kl_reference"] = float(kl.detach().sum())
    return (loss * each.rows["weight"][:, None]).sum(), numbers
