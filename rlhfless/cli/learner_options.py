"""Options of the learner: optimizer, learning rates, precision and the size of an update.

``training.config.TrainConfig`` explains what they mean.
"""

from __future__ import annotations

import click

from rlhfless.cli.options import Command

_OPTIONS = (
    click.option("--learning-rate", type=float, default=6e-5, show_default=True,
        help="Train the policy at this learning rate."),
    click.option("--critic-learning-rate", type=float,
        help="PPO: train the critic at this rate.  [default: --learning-rate]"),
    click.option(
        "--optimizer", type=click.Choice(["adamw", "sgd", "adafactor"]), default="adamw", show_default=True,
        help="Update weights with this optimizer.",
    ),
    click.option("--weight-decay", type=float, default=0.0, show_default=True, help="Apply this weight decay, such as 0.01."),
    click.option("--max-grad-norm", type=float, default=1.0, show_default=True,
        help="Scale gradients down to at most this norm."),
    click.option(
        "--lr-scheduler-type", type=click.Choice(["constant", "linear", "cosine"]), default="constant", show_default=True,
        help="Keep or lower the learning rate after warm-up.",
    ),
    click.option("--warmup-steps", type=int, default=0, show_default=True,
        help="Raise the learning rate from 0 in this many steps."),
    click.option("--lr-scheduler-steps", type=int, help="Lower the learning rate to 0 by this step.  [default: --steps]"),
    click.option(
        "--precision", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True,
        help="Compute matrix products in this number format.",
    ),
    click.option("--max-tokens-per-micro-batch", type=int, default=4096, show_default=True,
        help="Compute at most this many padded tokens at once."),
    click.option("--learner-processes", type=int, default=1, show_default=True,
        help="Shard the weights over this many processes."),
    click.option(
        "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True,
        help="Put models on this device; auto takes a free GPU.",
    ),
    click.option("--clip-ratio-low", type=float, default=0.2, show_default=True, help="Clip policy ratios below 1 minus this."),
    click.option("--clip-ratio-high", type=float, default=0.2, show_default=True, help="Clip policy ratios above 1 plus this."),
    click.option("--gamma", type=float, default=1.0, show_default=True, help="PPO: discount rewards by this factor per token."),
    click.option("--lam", type=float, default=1.0, show_default=True, help="PPO: compute advantages (GAE) with this lambda."),
    click.option("--vf-coef", type=float, default=0.1, show_default=True, help="PPO: weight the critic's loss by this factor."),
)  # fmt: skip


def learner_options(command: Command) -> Command:
    """Add the learner's options to a command, under the names that ``TrainConfig`` has."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
