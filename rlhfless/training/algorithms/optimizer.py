"""Makes the optimizer and the learning-rate schedule by name: torch's optimizers, the schedules of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhfless.training import missing_torch

try:
    import torch
    from transformers import get_scheduler
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.config.learning import OptimizerName, Schedule


def make_optimizer(
    groups: Sequence[dict[str, Any]], kind: OptimizerName = "adamw", weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    """Return an optimizer of torch with its default settings. ``UpdateOptions`` has checked the arguments.

    Args:
        groups: parameters with their learning rates, in torch's form.
        kind: ``adamw`` (Loshchilov and Hutter 2019), ``sgd`` without momentum, or ``adafactor`` (Shazeer and Stern 2018).
    """
    optimizers: dict[str, Any] = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "adafactor": torch.optim.Adafactor}
    made: torch.optim.Optimizer = optimizers[kind](list(groups), lr=groups[0]["lr"], weight_decay=weight_decay)
    return made


def make_schedule(
    optimizer: Any, kind: Schedule = "constant", warmup_steps: int = 0, lr_scheduler_steps: int | None = None
) -> Any:
    """Return a schedule that changes the learning rates from batch to batch; the updates on a batch share one rate.
    ``UpdateOptions`` has checked the arguments.

    The rate first rises linearly from 0 over ``warmup_steps`` batches. Then it is ``constant``, or falls to 0 at batch
    ``lr_scheduler_steps``, linearly (``linear``) or as half a cosine (``cosine``). The first batch of a warm-up has rate 0, as
    in transformers.
    """
    name = "constant_with_warmup" if kind == "constant" else kind
    return get_scheduler(name, optimizer, num_warmup_steps=warmup_steps, num_training_steps=lr_scheduler_steps)
