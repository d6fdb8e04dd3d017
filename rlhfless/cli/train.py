"""``rlhfless train``: the shipped task on emulated GPUs, on this machine's, or on those of a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rlhfless.cli.group import main
from rlhfless.cli.learner_options import learner_options
from rlhfless.cli.options import check_size, seed_option, time_weight_option


@main.command()
@click.option(
    "--task",
    default="arithmetic",
    show_default=True,
    help="arithmetic, gsm8k, gsm8k:FILE, or a data set (jsonl, parquet, hub).",
)
@click.option("--prompt-column", help="Column of the prompts, where it is not the task's own.")
@click.option("--answer-column", help="Column of the answers.")
@click.option("--reward", "rewards", multiple=True, default=["task"], show_default=True, help="[WEIGHT*]NAME; may be repeated.")
@click.option("--algorithm", type=click.Choice(["grpo", "ppo"]), default="grpo", show_default=True)
@click.option("--updates", type=int, default=1, show_default=True, help="Optimizer steps on a batch.")
@click.option("--aggregation", type=click.Choice(["token", "sequence", "constant"]), default="token", show_default=True)
@click.option("--std", type=click.Choice(["population", "sample", "none"]), default="population", show_default=True)
@click.option("--kl-weight", type=float, default=0.0, show_default=True, help="Penalty on leaving the first weights.")
@click.option("--mask-truncated", is_flag=True, help="Learn nothing from responses that the limit ended.")
@click.option("--old-logprobs", type=click.Choice(["engine", "recomputed"]), default="engine", show_default=True)
@click.option("--importance-cap", type=float, help="Correct the engine's probabilities, by this factor at most.")
@click.option("--critic", default="head", show_default=True, help="Of PPO: head, model, or a folder.")
@learner_options
@click.option("--steps", type=int, default=60, show_default=True, help="Steps of the whole run.")
@click.option("--gpus", type=int, default=16, show_default=True, help="GPUs: emulated ones, or those of the pool.")
@click.option("--gpus-per-node", type=int, default=8, show_default=True, help="Of a cluster of several nodes.")
@click.option("--gpus-per-actor", type=int, help="GPUs of an actor, which the profile has to be of.  [default: the profile's]")
@click.option("--profile", default="cpu-tiny-qwen2", show_default=True, help="What a GPU takes for an iteration.")
@click.option("--memory-gib", type=float, help="Memory of a GPU, which decides slots; without it the profile's slots count.")
@click.option("--policy", default="solver", show_default=True, help="Scheduling policy.")
@time_weight_option
@click.option("--charging", type=click.Choice(["profile", "measured"]), default="profile", show_default=True)
@click.option("--engine", type=click.Choice(["torch", "vllm"]), default="torch", show_default=True)
@click.option(
    "--pool", "executor", type=click.Choice(["virtual", "local", "ray"]), default="virtual", show_default=True,
    help="Where actors run: emulated on the virtual clock, each in a process of its own on this machine, or as Ray actors.",
)  # fmt: skip
@click.option("--ray-address", help="Of a Ray cluster that is there (HOST:PORT, auto); without it one is started here.")
@click.option("--keep-s", type=float, default=60.0, show_default=True, help="How long an actor without work waits for more.")
@click.option("--prompts-per-step", type=int, default=32, show_default=True)
@click.option("--samples", type=int, default=8, show_default=True, help="Responses per prompt.")
@seed_option
@click.option("--model", type=click.Path(path_type=Path), help="Start from this folder instead of a new warm-up.")
@click.option("--resume", is_flag=True, help="Continue the run in OUT after its last completed step.")
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="Folder of trace and checkpoint.")
def train(out: Path, resume: bool, model: Path | None, gpus_per_actor: int | None, **options: Any) -> None:
    """Train: predict, plan, execute, reward, learn, trace, step after step."""
    from rlhfless.executor import ActorError
    from rlhfless.training.config import LearnerError, TrainConfig
    from rlhfless.training.loop import train as run_training

    if gpus_per_actor is not None:
        check_size(gpus_per_actor, options["profile"])
    try:
        trace = run_training(TrainConfig(**options), out, resume=resume, model=model)
    except (ActorError, LearnerError) as error:
        raise click.ClickException(f"{error}; {out} holds the steps before it, and --resume goes on with this one") from error
    click.echo(repr(trace))
    click.echo(f"wrote {out}")
