"""Options of the learner: how it computes, how far an update goes, how rates change.

Knows option names and defaults; what they mean stands in ``training.config.TrainConfig``.
"""

from __future__ import annotations

import click

from rlhfless.cli.options import Command

_OPTIONS = (
    click.option("--learning-rate", type=float, default=6e-5, show_default=True, help="Of the optimizer."),
    click.option("--critic-learning-rate", type=float, help="Of PPO's critic.  [default: --learning-rate]"),
    click.option(
        "--optimizer", type=click.Choice(["adamw", "sgd", "adafactor"]), default="adamw", show_default=True, help="Of torch."
    ),
    click.option("--weight-decay", type=float, default=0.0, show_default=True, help="Of the optimizer."),
    click.option("--max-grad-norm", type=float, default=1.0, show_default=True, help="Larger gradients are scaled down."),
    click.option(
        "--schedule", type=click.Choice(["constant", "linear", "cosine"]), default="constant", show_default=True,
        help="Of the rates, after the warm-up.",
    ),
    click.option("--warmup-steps", type=int, default=0, show_default=True, help="Steps in which rates rise from 0."),
    click.option("--schedule-steps", type=int, help="Step at which the schedule ends.  [default: --steps]"),
    click.option(
        "--precision", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True,
        help="Of matrix products; weights stay float32.",
    ),
    click.option("--max-tokens-per-micro-batch", type=int, default=4096, show_default=True,
    help="Tokens that a process computes at a time."),
    click.option("--learner-processes", type=int, default=1, show_default=True, help="Processes that share the weights."),
    click.option(
        "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True,
        help="Of the models; auto: cuda where it is free.",
    ),
    click.option("--clip-ratio-low", type=float, default=0.2, show_default=True, help="How far a token's ratio may fall."),
    click.option("--clip-ratio-high", type=float, default=0.2, show_default=True, help="How far it may rise."),
    click.option("--gamma", type=float, default=1.0, show_default=True, help="Of PPO: discount per token."),
    click.option("--lam", type=float, default=1.0, show_default=True, help="Of PPO: lambda of its advantages."),
    click.option("--vf-coef", type=float, default=0.1, show_default=True, help="Of PPO: of the critic's loss."),
)  # fmt: skip


def learner_options(command: Command) -> Command:
    """All of them, under the names that ``TrainConfig`` has."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
