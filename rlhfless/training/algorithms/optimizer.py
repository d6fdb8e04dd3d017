"""Makes the optimizer and the learning-rate schedule by name: torch's optimizers, the schedules of transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, get_args

from rlhfless.errors import InputError
from rlhfless.training import missing_torch

try:
    import torch
    from transformers import get_scheduler
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.config.learning import OptimizerName, Schedule


def check_optimizer(kind: str, weight_decay: float, processes: int) -> None:
    """Check the arguments of ``make_optimizer``.

    Raises:
        InputError: an unknown kind, a negative decay, or Adafactor in several processes.
    """
    if kind not in get_args(OptimizerName):
        raise InputError(f"optimizer is {kind!r}; choose from {', '.join(get_args(OptimizerName))}")
    if not 0 <= weight_decay < math.inf:
        raise InputError(f"weight_decay is {weight_decay}; it must be 0 or more, and finite")
    if kind == "adafactor" and processes > 1:
        raise InputError(
            f"optimizer 'adafactor' needs whole matrices, but {processes} processes shard them; choose adamw, sgd, or 1 process"
        )


def make_optimizer(
    groups: Sequence[dict[str, Any]], kind: str = "adamw", weight_decay: float = 0.0, processes: int = 1
) -> torch.optim.Optimizer:
    """Return an optimizer of torch with its default settings.

    Args:
        groups: parameters with their learning rates, in torch's form.
        kind: ``adamw`` (Loshchilov and Hutter 2019), ``sgd`` without momentum, or ``adafactor`` (Shazeer and Stern 2018).
        processes: number of processes that share the parameters.

    Raises:
        InputError: see ``check_optimizer``.
    """
    check_optimizer(kind, weight_decay, processes)
    optimizers: dict[str, Any] = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "adafactor": torch.optim.Adafactor}
    made: torch.optim.Optimizer = optimizers[kind](list(groups), lr=groups[0]["lr"], weight_decay=weight_decay)
    return made


def check_schedule(kind: str = "constant", warmup_steps: int = 0, lr_scheduler_steps: int | None = None) -> None:
    """Check the arguments of ``make_schedule``.

    Raises:
        InputError: an unknown kind, or numbers of batches that make no valid schedule.
    """
    if kind not in get_args(Schedule):
        raise InputError(f"lr_scheduler_type is {kind!r}; choose from {', '.join(get_args(Schedule))}")
    if kind != "constant" and (lr_scheduler_steps is None or lr_scheduler_steps <= warmup_steps):
        raise InputError(
            f"lr_scheduler_type {kind!r} ends at step {lr_scheduler_steps}, with {warmup_steps} steps of warm-up; "
            "it must end later"
        )
    if warmup_steps < 0:
        raise InputError(f"warmup_steps is {warmup_steps}; it must be 0 or more")


def make_schedule(optimizer: Any, kind: str = "constant", warmup_steps: int = 0, lr_scheduler_steps: int | None = None) -> Any:
    """Return a schedule that changes the learning rates from batch to batch; the updates on a batch share one rate.

    The rate first rises linearly from 0 over ``warmup_steps`` batches. Then it is ``constant``, or falls to 0 at batch
    ``lr_scheduler_steps``, linearly (``linear``) or as half a cosine (``cosine``). The first batch of a warm-up has rate 0, as
    in transformers.

    Raises:
        InputError: see ``check_schedule``.
    """
    check_schedule(kind, warmup_steps, lr_scheduler_steps)
    name = "constant_with_warmup" if kind == "constant" else kind
    return get_scheduler(name, optimizer, num_warmup_steps=warmup_steps, num_training_steps=lr_scheduler_steps)
