"""Trains a policy with an algorithm: advantages, clipped losses, optimizer steps; in one batch, or while others are generated.

    loss = sum_i weight_i sum_t [ token_loss + kl_coef k3(new, reference) ]_it / divisor  +  vf_coef mean_t value_loss_t

The second term of the sum only where the algorithm has its penalty in the loss, the value loss only where it has a critic.
Advantages and token losses are the algorithm's (``config.algorithm``), weights and divisor those of ``losses.loss_weights``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rlhfless.errors import InputError
from rlhfless.training import missing_torch

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.algorithms.advantages import flat_groups, token_rewards, whitening
from rlhfless.training.algorithms.base import autocast, clip_and_step, frozen_copy, mismatch, settle_old
from rlhfless.training.algorithms.batch import Batch, Part
from rlhfless.training.algorithms.critic import PolicyAndCritic
from rlhfless.training.algorithms.gradient_sums import GradientSums
from rlhfless.training.algorithms.losses import k3, loss_divisor, loss_weights, value_loss
from rlhfless.training.algorithms.passes import Passes, add_to
from rlhfless.training.algorithms.ranks import ONE, Ranks
from rlhfless.training.algorithms.token_counts import pass_tokens, whole_tokens
from rlhfless.training.config.algorithm import AlgorithmConfig, CriticConfig
from rlhfless.training.config.learning import UpdateOptions

SUMS = ("loss", "value_loss", "clipped", "values_clipped", "kl", "kl_reference", "prepare_seconds")


@dataclass(frozen=True, eq=False)
class Prepared:
    """Responses of a batch, ready to be learned from: (R,) those that count in the loss, and micro-batches.

    ``tokens`` of each micro-batch have ``advantages`` and ``weight``, and what passes before the first update computed.
    """

    batch: Batch
    counted: np.ndarray
    parts: list[Part]

    @property
    def counted_tokens(self) -> float:
        """Response tokens that count in the loss."""
        return float(np.asarray(self.batch.response_tokens)[self.counted].sum())


class Waiting(NamedTuple):
    """A micro-batch, and (B,) which of its responses wait for the mean and deviation of all advantages."""

    part: Part
    beyond: Tensor


class PolicyGradient:
    """Policy-gradient training of a model, or of a policy with its critic.

    Args:
        config: the algorithm with its options. trained: a causal language model; ``PolicyAndCritic`` for one with a critic.
        reference: model of the KL penalty, if there is a ``kl_coef``; None copies the current policy.
        ranks: the learner processes, of which this is one.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        trained: Any,
        optimizer: Any,
        options: UpdateOptions = UpdateOptions(),  # noqa: B008 (frozen)
        reference: Any = None,
        ranks: Ranks = ONE,
    ) -> None:
        self.config, self.trained, self.optimizer, self.options, self.ranks = config, trained, optimizer, options, ranks
        self._critic = config if isinstance(config, CriticConfig) else None
        if config.kl_coef and reference is None:
            reference = frozen_copy(trained.policy if isinstance(trained, PolicyAndCritic) else trained)
        self.reference = reference if config.kl_coef else None
        self.passes = Passes(self)
        self.begin()

    def learn(self, batch: Batch) -> dict[str, float]:
        """Take ``num_updates`` optimizer steps on the whole batch, each accumulated over parts of similar length.

        Responses without a reward are left out, and so are truncated ones with ``mask_truncated``. Responses with gradient 0
        (advantage 0 and no reference) are not computed, but their tokens count.

        Returns:
            Means over the updates: ``loss``, ``clip_share`` (share of tokens clipped), ``kl_old`` (per token, from the weights
            that generated), ``grad_norm`` (before clipping), ``kl_reference`` (per token, with a penalty). Of the batch:
            ``tokens`` that count, ``unjudged`` (share of responses without a reward), ``seconds``, and the numbers of
            ``mismatch`` over the computed responses. Of the passes before the first update: ``prepare_seconds`` and the numbers
            of ``pass_tokens``. Where responses of a prompt are compared: ``flat_groups``, the share of groups without gradient.
            With a critic: ``value_loss``, ``value_clip_share``, per token ``value_mean`` and ``return_mean``, and
            ``explained_variance`` of the returns by the old values.

        Raises:
            InputError: the algorithm compares responses, and every group is a single one.
        """
        began, sums = time.perf_counter(), dict.fromkeys(SUMS, 0.0)
        self._check_groups([batch])
        added = [self._prepared(batch, sums)]
        self._whiten(added)
        self.optimizer.zero_grad(set_to_none=True)
        self._accumulate(added, sums)
        return {**self._updates(added, sums), "seconds": time.perf_counter() - began}

    def begin(self) -> None:
        """Begin a step that learns from responses while others are generated; see ``add`` and ``finish``."""
        self._added: list[Prepared] = []
        self._waiting: list[Waiting] = []
        self._sums = dict.fromkeys(SUMS, 0.0)
        self._gradients = GradientSums(self.trained.parameters())

    def add(self, batch: Batch) -> None:
        """Accumulate the partial gradient of responses; no weight changes. ``finish`` applies what needs the whole batch.

        That are the divisors and, with ``whiten``, mean and deviation of the advantages. Where a token's loss is linear in its
        advantage, it is L(1) (A - mean) / deviation, so the gradients of L(1) A and of L(1) are summed separately. Responses
        with another token (PPO: beyond the clip range) wait for ``finish``.

        Raises:
            InputError: the algorithm compares responses, and a group was added before, so this is not all of it.
        """
        self._check_new(batch)
        sums, gradients, waiting = dict.fromkeys(SUMS, 0.0), GradientSums(self.trained.parameters()), list[Waiting]()
        prepared = self._prepared(batch, sums)
        for part in prepared.parts:
            with autocast(self.options, part.mask.device):
                new, *values = self.passes.outputs(part)
            terms = {}
            if self._critic is not None:
                terms["value"], numbers = _value_loss_sum(self._critic, part, values[0])
                add_to(sums, numbers)
            if self._whitens:
                linear, beyond = self._linear_loss(part, new)
                waiting.append(Waiting(part, beyond))
                terms |= {"advantage": (linear * part.tokens["advantages"]).sum(), "ratio": linear.sum()}
                _, numbers = _policy_loss_sum(self.config, part, new.detach(), part.mask & ~beyond[:, None])
            else:
                terms["policy"], numbers = _policy_loss_sum(self.config, part, new, part.mask)
            add_to(sums, numbers)
            gradients.add(terms)
        self._added.append(prepared)
        self._waiting += waiting
        add_to(self._sums, sums)
        self._gradients.accumulate(gradients)

    def finish(self) -> dict[str, float]:
        """Take the optimizer steps on all responses that were added; return the numbers of ``learn``, except ``seconds``.

        Up to the order of summation, the weights are those of ``learn`` on all responses in one batch. Only the gradient of the
        first update is accumulated in advance, because later updates need the new weights. With a critic, ``waited`` is the
        share of responses that waited for mean and deviation of the advantages.
        """
        added, self._added = self._added, []
        if not added:
            raise InputError("no response was added to this step; add at least one before it is finished")
        self._check_groups([each.batch for each in added])
        sums, divisor = self._sums, self._divisor(added)
        mean, factor = self._whiten(added)
        factors = {"policy": 1 / divisor, "advantage": factor / divisor, "ratio": -mean * factor / divisor}
        values, critic = self._gradients.values, {}
        if self._critic is not None:
            critic = {"value": self._critic.vf_coef / self._tokens(added)}
            sums["value_loss"] += values.get("value", 0.0) / self._tokens(added)
        self._gradients.combine({**factors, **critic})
        sums["loss"] += sum(values.get(name, 0.0) * by for name, by in factors.items())
        waited = {} if self._critic is None else {"waited": self._add_waiting(divisor, sums)}
        return {**self._updates(added, sums), **waited}

    # --- what an update is computed from ------------------------------------------------------------------------------

    def _check_new(self, batch: Batch) -> None:
        if not self.config.compares_responses:
            return
        before = {group for each in self._added for group in np.asarray(each.batch.group_of).tolist()}
        if again := before.intersection(np.asarray(batch.group_of).tolist()):
            raise InputError(
                f"group {min(again, key=str)!r} is added a second time; add a group once, with all of its responses, because "
                "their advantages compare them with each other"
            )

    def _check_groups(self, batches: Sequence[Batch]) -> None:
        alone = all(len(np.unique(np.asarray(batch.group_of))) == len(batch.response_ids) for batch in batches)
        if self.config.compares_responses and alone:
            raise InputError(
                f"samples_per_prompt is 1, but {self.config.name.upper()} compares responses to one prompt; give 2 or more, or "
                "algorithm 'ppo'"
            )

    def _prepared(self, batch: Batch, sums: dict[str, float]) -> Prepared:
        """Return responses with what is needed before any update: advantages, weights, and passes of frozen models."""
        config, rewards = self.config, np.asarray(batch.rewards, dtype=float)
        counted = batch.counted(config.mask_truncated)
        if config.forward_first:
            parts = self.passes.parts(batch, np.flatnonzero(counted))
            self._compute_first(parts, sums)
            if self._critic is not None:
                _set_token_advantages(self._critic, parts, rewards)
            else:
                _set_rows(parts, "advantages", self._advantages(batch, self._penalised(parts, rewards)))
        else:
            advantages = self._advantages(batch, rewards)
            parts = self.passes.parts(batch, np.flatnonzero(counted & ((advantages != 0) | (self.reference is not None))))
            _set_rows(parts, "advantages", advantages)
            if self.reference is not None:
                for part, reference in zip(parts, self.passes.reference(parts, sums), strict=True):
                    part.tokens["reference"] = reference
        _set_rows(parts, "weight", loss_weights(config.loss_aggregation, batch.response_tokens, counted))
        return Prepared(batch, counted, parts)

    def _advantages(self, batch: Batch, rewards: np.ndarray) -> np.ndarray:
        given = self.config.advantages(rewards, np.asarray(batch.group_of))
        found, count = np.asarray(given, dtype=float), len(rewards)
        what = f"advantages of algorithm {self.config.name!r} returned"
        if given is None:
            raise InputError(f"{what} None; end it with return and an array of shape ({count},), one number per response")
        if found.shape != rewards.shape:
            raise InputError(f"{what} an array of shape {found.shape} for {count} responses; return one of shape ({count},)")
        if not np.isfinite(found).all():
            raise InputError(
                f"{what} NaN or infinity for {np.count_nonzero(~np.isfinite(found))} of {count} responses; return a finite "
                "number for each, and 0 where its reward is NaN: np.nan_to_num(advantages)"
            )
        return found

    @torch.no_grad()
    def _compute_first(self, parts: Sequence[Part], sums: dict[str, float]) -> None:
        """Set old log-probabilities and values of every part, and the reference's or the difference to them (``penalty``)."""
        for part, found in zip(parts, self.passes.forward_only(parts, sums), strict=True):
            settle_old(part, part.tokens.get("recomputed", found.logprobs), self.config)
            if found.values is not None:
                part.tokens["values"] = found.values
            if found.reference is not None and self.config.kl_in == "loss":
                part.tokens["reference"] = found.reference
            elif found.reference is not None:
                part.tokens["penalty"] = part.tokens["old"] - found.reference

    def _penalised(self, parts: Sequence[Part], rewards: np.ndarray) -> np.ndarray:
        """Return (R,) rewards less kl_coef times the difference to the reference, summed over a response's tokens."""
        if not parts:  # on no rank, as all have as many
            return rewards
        rows = torch.cat([torch.tensor(part.rows, dtype=torch.long) for part in parts])
        of_rows = torch.cat([torch.where(part.mask, part.tokens["penalty"], 0.0).sum(1) for part in parts])
        penalty, gather = np.zeros(len(rewards)), self.ranks.all_gather
        for chosen, values in zip(gather(rows), gather(of_rows), strict=True):
            np.add.at(penalty, chosen.numpy(), values.double().cpu().numpy())  # a row that only keeps ranks in lockstep adds 0
        return rewards - self.config.kl_coef * penalty

    @property
    def _whitens(self) -> bool:
        return self._critic is not None and self._critic.whiten

    @torch.no_grad()
    def _whiten(self, added: Sequence[Prepared]) -> tuple[float, float]:
        """Whiten the advantages of all responses, if asked for; return the mean and factor of ``whitening``."""
        parts = [part for each in added for part in each.parts]
        if not self._whitens or not parts:
            return 0.0, 1.0
        mean, factor = whitening(torch.cat(self._all_gathered(parts, "advantages")))
        for part in parts:
            part.tokens["advantages"] = torch.where(part.mask, (part.tokens["advantages"] - mean) * factor, 0.0)
        return float(mean), float(factor)

    def _all_gathered(self, parts: Sequence[Part], name: str) -> list[Tensor]:
        """Return the named numbers of every process, token by token."""
        return self.ranks.all_gather(torch.cat([part.tokens[name][part.mask] for part in parts]))

    def _tokens(self, added: Sequence[Prepared]) -> float:
        return max(sum(each.counted_tokens for each in added), 1.0)

    def _divisor(self, added: Sequence[Prepared]) -> float:
        tokens, responses = sum(each.counted_tokens for each in added), sum(len(each.counted) for each in added)
        return loss_divisor(self.config.loss_aggregation, tokens, responses, self.options.max_response_tokens)

    # --- gradients ----------------------------------------------------------------------------------------------------

    def _accumulate(self, added: Sequence[Prepared], sums: dict[str, float]) -> None:
        """Add the gradient of all parts to the weights' and their numbers to ``sums``."""
        losses: list[Any] = [partial(policy_loss, self.config, divisor=self._divisor(added))]
        if self._critic is not None:
            losses.append(partial(critic_loss, self._critic, divisor=self._tokens(added)))
        self.passes.accumulate([part for each in added for part in each.parts], losses, sums)

    def _linear_loss(self, part: Part, new: Tensor) -> tuple[Tensor, Tensor]:
        """Return (B, T) weighted losses at advantage 1 of responses whose losses are linear in it, and (B,) which are not."""
        tokens, one = part.tokens, torch.ones((1, 1), device=new.device)
        loss, _ = _token_losses(self.config, new, tokens["old"], one, part.mask)
        opposite, _ = _token_losses(self.config, new.detach(), tokens["old"], -one, part.mask)
        beyond = (loss.detach() + opposite != 0).any(1)
        linear = torch.where(part.mask & ~beyond[:, None], loss * tokens["weight"], 0.0)
        return linear * tokens["importance"] if "importance" in tokens else linear, beyond

    def _add_waiting(self, divisor: float, sums: dict[str, float]) -> float:
        """Add the policy's gradient of responses that need mean and deviation of the advantages; return their share."""
        waiting, self._waiting = self._waiting, []
        everywhere = self.ranks.sums({str(i): float(each.beyond.any()) for i, each in enumerate(waiting)})
        for (part, beyond), processes in zip(waiting, everywhere.values(), strict=True):
            if processes == 0:
                continue
            with autocast(self.options, part.mask.device):
                new, values = self.passes.outputs(part)
            total, numbers = _policy_loss_sum(self.config, part, new, part.mask & beyond[:, None])
            loss = total / divisor
            (loss + 0.0 * values.sum()).backward()  # type: ignore[no-untyped-call]
            add_to(sums, {**numbers, "loss": float(loss.detach())})
        flags = [each.beyond for each in waiting]
        counts = self.ranks.sums({"waited": float(sum(each.sum() for each in flags)), "all": float(sum(map(len, flags)))})
        return counts["waited"] / max(counts["all"], 1.0)

    def _updates(self, added: Sequence[Prepared], sums: dict[str, float]) -> dict[str, float]:
        """Take the optimizer's steps, the first on the gradient that is there; return the numbers of the step."""
        updates, norms = self.config.num_updates, 0.0
        parts = [part for each in added for part in each.parts]
        tokens = self._tokens(added)
        for update in range(updates if parts else 0):
            if update:
                self.optimizer.zero_grad(set_to_none=True)
                self._accumulate(added, sums)
            norms += clip_and_step(self.trained, self.optimizer, self.options.max_grad_norm)
        sums = self.ranks.sums({**sums, "whole_tokens": whole_tokens(parts)})
        models = self.passes.models
        prepared = int(self.reference is not None) + (models if self.config.forward_first else 0)
        numbers = {
            "loss": sums["loss"] / updates,
            "clip_share": sums["clipped"] / updates / tokens,
            "kl_old": sums["kl"] / updates / tokens,
            "grad_norm": norms / updates,
            "tokens": sum(each.counted_tokens for each in added),
            "unjudged": float(1 - np.concatenate([each.batch.judged for each in added]).mean()),
            **mismatch(parts, self.ranks),
            **pass_tokens(sums["whole_tokens"], prepared, models * updates),
            "prepare_seconds": sums["prepare_seconds"] / self.ranks.count,
        }
        if self.config.compares_responses:
            flat = [flat_groups(each.batch.rewards, each.batch.group_of) for each in added]
            numbers["flat_groups"] = float(np.concatenate(flat).mean())
        if self._critic is not None:
            numbers["value_loss"] = sums["value_loss"] / updates
            numbers["value_clip_share"] = sums["values_clipped"] / updates / tokens
            numbers |= self._of_values(parts) if parts else {}
        if self.reference is not None and self.config.kl_in == "loss":
            numbers["kl_reference"] = sums["kl_reference"] / updates / tokens
        elif self.reference is not None and parts:
            numbers["kl_reference"] = float(torch.cat(self._all_gathered(parts, "penalty")).mean())
        return numbers

    def _of_values(self, parts: Sequence[Part]) -> dict[str, float]:
        """Return the numbers of old values and returns."""
        values, returns = (torch.cat(self._all_gathered(parts, name)) for name in ("values", "returns"))
        spread = float(returns.var(correction=0))
        return {
            "value_mean": float(values.mean()),
            "return_mean": float(returns.mean()),
            "explained_variance": 1 - float((returns - values).var(correction=0)) / spread if spread > 0 else float("nan"),
        }


# --- losses of a micro-batch ------------------------------------------------------------------------------------------


def policy_loss(config: AlgorithmConfig, part: Part, new: Tensor, *, divisor: float) -> tuple[Tensor, dict[str, float]]:
    """Return the policy's loss of a micro-batch, divided by the batch's divisor, and numbers to be summed.

    Args:
        part: its ``tokens`` have ``advantages``, ``weight`` and ``old``; without ``old`` it is set to ``new``, as those weights
            generated, or to what the batch has.
        new: (B, T - 1) log-probabilities of its tokens.
    """
    total, numbers = _policy_loss_sum(config, part, new, part.mask)
    loss = total / divisor
    return loss, {**numbers, "loss": float(loss.detach())}


def critic_loss(config: CriticConfig, part: Part, values: Tensor, *, divisor: float) -> tuple[Tensor, dict[str, float]]:
    """Return the critic's part of the loss of a micro-batch, and numbers to be summed; ``values`` are (B, T - 1)."""
    total, numbers = _value_loss_sum(config, part, values)
    error = total / divisor
    return config.vf_coef * error, {**numbers, "value_loss": float(error.detach())}


def _policy_loss_sum(config: AlgorithmConfig, part: Part, new: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Return the weighted sum of the losses of the tokens in ``mask``, not divided, and numbers to be summed."""
    tokens = part.tokens
    if "old" not in tokens:
        settle_old(part, tokens.get("recomputed", new.detach()), config)
    losses, clipped = _token_losses(config, new, tokens["old"], tokens["advantages"], mask)
    if "importance" in tokens:
        losses = tokens["importance"] * losses
    numbers = {"clipped": float(clipped.sum()), "kl": float(k3(tokens["old"], new.detach(), mask).sum())}
    if "reference" in tokens:
        kl = k3(new, tokens["reference"], mask)
        losses = losses + config.kl_coef * kl
        numbers["kl_reference"] = float(kl.detach().sum())
    return (losses * tokens["weight"]).sum(), numbers


def _token_losses(config: AlgorithmConfig, new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the algorithm's ``token_loss`` returns, 0 and False outside ``mask``.

    Raises:
        InputError: it is no pair of tensors of the shape of ``mask``, the second is not bool, or the losses have no gradient.
    """
    found: Any = config.token_loss(new, old, advantages, mask)
    what = f"token_loss of algorithm {config.name!r} returned"
    if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(each, Tensor) for each in found)):
        raise InputError(
            f"{what} {_kind_of(found)}; end it with return losses, clipped: two tensors of shape {tuple(mask.shape)}, and "
            "torch.zeros_like(mask) as clipped where nothing is clipped"
        )
    losses, clipped = found
    if losses.shape != mask.shape:
        raise InputError(
            f"{what} losses of shape {tuple(losses.shape)}; return one per token, of shape {tuple(mask.shape)}, neither "
            "averaged nor summed"
        )
    if clipped.shape != mask.shape or clipped.dtype != torch.bool:
        raise InputError(
            f"{what} {clipped.dtype} of shape {tuple(clipped.shape)} as what was clipped; return a mask of torch.bool of shape "
            f"{tuple(mask.shape)}, such as mask & (ratio > 1.2)"
        )
    if torch.is_grad_enabled() and new.requires_grad and not losses.requires_grad:
        raise InputError(f"{what} losses without a gradient; compute them from new, and detach() only what is to be constant")
    return losses.masked_fill(~mask, 0.0), clipped & mask


def _kind_of(found: Any) -> str:
    """Return what kind of value a method returned, for a message."""
    if isinstance(found, tuple):
        return f"a tuple of {', '.join(type(each).__name__ for each in found) or 'nothing'}"
    return "None" if found is None else f"a {type(found).__name__} alone"


def _value_loss_sum(config: CriticConfig, part: Part, values: Tensor) -> tuple[Tensor, dict[str, float]]:
    errors, held = value_loss(values, part.tokens["values"], part.tokens["returns"], part.mask, config.value_clip)
    return errors.sum(), {"values_clipped": held}


def _set_rows(parts: Sequence[Part], name: str, values: np.ndarray) -> None:
    """Set (B, 1) numbers of each part's responses from those of all (R,)."""
    for part in parts:
        part.tokens[name] = torch.as_tensor(values[part.rows], dtype=torch.float32, device=part.mask.device)[:, None]


@torch.no_grad()
def _set_token_advantages(config: CriticConfig, parts: Sequence[Part], rewards: np.ndarray) -> None:
    """Set each part's advantages and returns."""
    for part in parts:
        values = part.tokens["values"]
        score = torch.as_tensor(rewards[part.rows], dtype=values.dtype, device=values.device)
        of_tokens = token_rewards(score, part.mask, part.tokens.get("penalty"), config.kl_coef)
        part.tokens["advantages"], part.tokens["returns"] = config.token_advantages(of_tokens, values, part.mask)
