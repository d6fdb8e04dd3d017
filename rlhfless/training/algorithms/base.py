"""What training with any algorithm shares: reference model, numerical precision, and the mismatch of engine and learner.

It also decides which log-probabilities under the generating weights the ratios use: the engine's or recomputed ones.
"""

from __future__ import annotations

import contextlib
import copy
import math
from typing import Any, Protocol

from rlhfless.errors import InputError
from rlhfless.training import missing_torch

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.algorithms.batch import Batch, Part
from rlhfless.training.algorithms.losses import k3, truncated_importance
from rlhfless.training.algorithms.ranks import ONE, Ranks, full_tensor
from rlhfless.training.config.algorithm import AlgorithmConfig
from rlhfless.training.config.learning import UpdateOptions


class Algorithm(Protocol):
    """Interface of what trains a model; ``PolicyGradient`` is one.

    ``trained`` are all weights that ``learn`` changes, the model's and a critic's; a checkpoint holds them and the optimizer's
    state. ``learn`` returns numbers of the step, ``seconds`` among them.

    Learning can also overlap with generation: ``begin``, then ``add`` with the responses that are complete (whole groups),
    which accumulates a partial gradient, then ``finish``. Up to the order of summation its weights are those of ``learn`` on
    the whole batch.
    """

    trained: Any
    optimizer: Any

    def learn(self, batch: Batch) -> dict[str, float]:
        """Take the optimizer steps on a batch."""

    def begin(self) -> None:
        """Begin a step whose gradient is accumulated from partial gradients."""

    def add(self, batch: Batch) -> None:
        """Accumulate the partial gradient of these responses; no weight changes."""

    def finish(self) -> dict[str, float]:
        """Take the optimizer steps on the accumulated gradient; return the numbers of ``learn``, except ``seconds``."""


def frozen_copy(model: Any) -> Any:
    """Return a reference model: a copy of the model with its current weights, which are never changed."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def autocast(options: UpdateOptions, device: Any) -> contextlib.AbstractContextManager[Any]:
    """Context in which a model computes in the ``learner_dtype`` of the options."""
    return torch.autocast(torch.device(device).type, torch.bfloat16, enabled=options.learner_dtype == "bfloat16")


def settle_old(part: Part, recomputed: Tensor, config: AlgorithmConfig) -> None:
    """Set the part's old log-probabilities (``old``) and, if asked for, the correction of the engine's mismatch
    (``importance``).

    ``recomputed`` are the learner's log-probabilities under the generating weights.

    Raises:
        InputError: a correction is asked for and the engine gave no log-probabilities.
    """
    engine = part.tokens.get("engine")
    part.tokens["recomputed"] = part.tokens["old"] = recomputed
    if engine is not None:
        engine = torch.where(engine.isnan(), recomputed, engine)  # what the engine could not tell is taken to be right
        if not config.recomputes:
            part.tokens["old"] = engine
    if config.importance_ratio_cap is not None:
        if engine is None:
            raise InputError(
                f"importance_ratio_cap is {config.importance_ratio_cap}, but the batch has no engine_logprobs to "
                f"correct; leave it out"
            )
        part.tokens["importance"] = truncated_importance(recomputed, engine, part.mask, config.importance_ratio_cap)


def mismatch(parts: list[Part], ranks: Ranks = ONE) -> dict[str, float]:
    """Return how far the engine's log-probabilities are from the learner's under the same weights, over the tokens of all
    parts.

    ``mismatch_mean`` and ``mismatch_max`` are of the absolute difference, ``mismatch_kl`` is the k3 estimate of KL(engine ||
    learner), ``importance_mean`` the mean factor, if it is corrected. Empty if the engine gave no log-probabilities; tokens
    without one (NaN) do not count.
    """
    parts = [part for part in parts if "engine" in part.tokens and "recomputed" in part.tokens]
    if not parts:
        return {}
    difference, kl = [], []
    for part in parts:
        engine, learner = part.tokens["engine"], part.tokens["recomputed"]
        reported = part.mask & ~engine.isnan()
        difference.append((learner - engine)[reported].abs())
        kl.append(k3(engine, learner, reported)[reported])
    every = torch.cat(ranks.all_gather(torch.cat(difference)))
    if not len(every):
        return {}
    numbers = {
        "mismatch_mean": float(every.mean()),
        "mismatch_max": float(every.max()),
        "mismatch_kl": float(torch.cat(ranks.all_gather(torch.cat(kl))).mean()),
    }
    if "importance" in parts[0].tokens:
        ratios = torch.cat([part.tokens["importance"][part.mask] for part in parts])
        numbers["importance_mean"] = float(torch.cat(ranks.all_gather(ratios)).mean())
    return numbers


def clip_and_step(trained: Any, optimizer: Any, max_grad_norm: float) -> float:
    """Run one optimizer step on the accumulated gradient; returns its norm before clipping.

    Raises:
        InputError: the gradient is not finite; the weights are left as they were.
    """
    norm = float(full_tensor(torch.nn.utils.clip_grad_norm_(trained.parameters(), max_grad_norm)))
    if not math.isfinite(norm):
        raise InputError(f"the gradient's norm is {norm}, so nothing was learned; lower learning_rate, or check the rewards")
    optimizer.step()
    return norm
