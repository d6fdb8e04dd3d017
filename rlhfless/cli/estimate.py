"""``rlhfless estimate``: time, GPU-hours and dollars of a run before it begins, on clusters of several sizes."""

from __future__ import annotations

import json

import click

from rlhfless.cli.group import main
from rlhfless.cli.options import format_option
from rlhfless.errors import InputError


@main.command()
@click.option("--steps", type=click.IntRange(1), required=True, help="The run has this many steps.")
@click.option("--responses", type=click.IntRange(1), required=True, help="A step has this many responses.")
@click.option("--mean-tokens", type=float, required=True, help="A response has about this many tokens (mean).")
@click.option(
    "--profile", required=True, help="Use this latency profile of the run's model and GPUs: a shipped name or a JSON file."
)
@click.option("--longest", type=float, help="The longest response of a step has about this many tokens.  [default: unknown]")
@click.option("--limit", type=click.IntRange(1), help="No response is longer than this many tokens.  [default: unknown]")
@click.option(
    "--prompt-tokens", type=float, help="A prompt has about this many tokens (mean).  [default: prompts are not counted]"
)
@click.option(
    "--other-s", type=float, help="A step takes this many seconds outside generation.  [default: generation alone is counted]"
)
@click.option("--gpus", default="8,16,32", show_default=True, help="Compare clusters of so many GPUs, separated by commas.")
@click.option("--usd-per-gpu-hour", type=float, help="A GPU costs this much an hour.  [default: the list price of its kind]")
@format_option()
def estimate(
    steps: int,
    responses: int,
    mean_tokens: float,
    profile: str,
    longest: float | None,
    limit: int | None,
    prompt_tokens: float | None,
    other_s: float | None,
    gpus: str,
    usd_per_gpu_hour: float | None,
    form: str,
) -> None:
    """Estimate time, GPU-hours and dollars of a run before it begins, as ranges.

    It is arithmetic on a latency profile and simulates nothing. The low end is the longest response or even packing, whichever
    takes longer; the high end is the longest response behind an equal chunk of prompts.
    """
    from rlhfless.diagnosis.before_run import PlannedRun, before_run

    run = PlannedRun(steps, responses, mean_tokens, longest, limit, prompt_tokens, other_s)
    found = before_run(run, profile, _sizes(gpus), usd_per_hour=usd_per_gpu_hour)
    click.echo(json.dumps(found.to_dict()) if form == "json" else found)


def _sizes(text: str) -> list[int]:
    """Return the sizes of clusters.

    Raises:
        InputError: one is no whole number above 0.
    """
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = [0]
    if min(sizes) < 1:
        raise InputError(f"--gpus is {text!r}; whole numbers of GPUs, separated by commas, are needed, as in 8,16,32")
    return sizes
