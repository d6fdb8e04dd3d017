"""Options of the learner: optimizer, learning rates, precision and the size of an update.

``training.config.TrainConfig`` explains what they mean.
"""

from __future__ import annotations

import click

from rlhfless.cli.options import Command

_OPTIONS = (
    click.option("--learning-rate", type=float, default=6e-5, show_default=True, help="Learning rate of the policy."),
    click.option("--critic-learning-rate", type=float, help="PPO: learning rate of the critic.  [default: --learning-rate]"),
    click.option(
        "--optimizer", type=click.Choice(["adamw", "sgd", "adafactor"]), default="adamw", show_default=True,
        help="Optimizer of torch.",
    ),
    click.option("--weight-decay", type=float, default=0.0, show_default=True, help="Weight decay of the optimizer."),
    click.option("--max-grad-norm", type=float, default=1.0, show_default=True, help="Norm that gradients are clipped to."),
    click.option(
        "--lr-scheduler-type", type=click.Choice(["constant", "linear", "cosine"]), default="constant", show_default=True,
        help="Learning rate after the warm-up.",
    ),
    click.option("--warmup-steps", type=int, default=0, show_default=True,
        help="Steps while the learning rate rises from 0."),
    click.option("--lr-scheduler-steps", type=int, help="Step at which the learning rate reaches 0.  [default: --steps]"),
    click.option(
        "--precision", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True,
        help="Precision of matrix products.",
    ),
    click.option("--max-tokens-per-micro-batch", type=int, default=4096, show_default=True,
    help="Padded tokens per forward pass of a process."),
    click.option("--learner-processes", type=int, default=1, show_default=True, help="Processes that shard the weights."),
    click.option(
        "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True,
        help="Device of the models; auto takes a free GPU.",
    ),
    click.option("--clip-ratio-low", type=float, default=0.2, show_default=True, help="The ratio is clipped at 1 minus this."),
    click.option("--clip-ratio-high", type=float, default=0.2, show_default=True, help="The ratio is clipped at 1 plus this."),
    click.option("--gamma", type=float, default=1.0, show_default=True, help="PPO: discount per token."),
    click.option("--lam", type=float, default=1.0, show_default=True, help="PPO: lambda of the advantages (GAE)."),
    click.option("--vf-coef", type=float, default=0.1, show_default=True, help="PPO: weight of the critic's loss."),
)  # fmt: skip


def learner_options(command: Command) -> Command:
    """Add the learner's options to a command, under the names that ``TrainConfig`` has."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
