"""``rlhfless train``: trains on emulated GPUs, on this machine's GPUs, or on those of a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rlhfless.cli.group import main
from rlhfless.cli.headings import WithHeadings
from rlhfless.cli.learner_options import learner_options
from rlhfless.cli.options import check_size, seed_option, time_weight_option

HEADINGS = {
    "Run": ["out", "resume", "steps", "seed", "save_total_limit", "loggers"],
    "Task": [
        "task", "prompt_column", "answer_column", "model", "rewards", "prompts", "prompts_per_step", "samples_per_prompt",
        "max_response_tokens", "temperature",
    ],
    "Algorithm": [
        "algorithm", "num_updates", "loss_aggregation", "clip_ratio_low", "clip_ratio_high", "advantage_std", "kl_coef",
        "mask_truncated", "old_logprobs_from", "importance_ratio_cap", "critic", "gamma", "lam", "vf_coef",
    ],
    "Learner": [
        "learning_rate", "critic_learning_rate", "lr_scheduler_type", "warmup_steps", "lr_scheduler_steps", "optimizer",
        "weight_decay", "max_grad_norm", "precision", "max_tokens_per_micro_batch", "learner_processes", "device",
    ],
    "Schedule": ["policy", "time_weight", "preparation", "preparation_actors"],
    "Actors": [
        "executor", "engine", "gpus", "gpus_per_node", "gpus_per_actor", "profile", "memory_gib", "charging", "ray_address",
        "idle_timeout_s", "prewarm",
    ],
}  # fmt: skip


@main.command(cls=WithHeadings, headings=HEADINGS)
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), required=True, help="Folder to write the trace and checkpoints into."
)
@click.option("--resume", is_flag=True, help="Continue the run in OUT after its last completed step.")
@click.option("--steps", type=int, default=60, show_default=True, help="Number of training steps, resumed ones included.")
@seed_option
@click.option(
    "--save-total-limit", type=int, default=1, show_default=True, help="Number of checkpoints to keep, the latest ones."
)
@click.option(
    "--log",
    "loggers",
    multiple=True,
    type=click.Choice(["tensorboard", "wandb", "trackio", "jsonl"]),
    help="Logger of metrics; repeatable.",
)
@click.option("--task", default="arithmetic", show_default=True, help="arithmetic, gsm8k[:FILE], a data file or a hub name.")
@click.option("--prompt-column", help="Column of the data set that holds the prompts.  [default: the task's]")
@click.option("--answer-column", help="Column of the data set that holds the answers.  [default: the task's]")
@click.option(
    "--model", type=click.Path(path_type=Path), help="Folder of the model to train.  [default: a tiny model, warmed up first]"
)
@click.option(
    "--reward",
    "rewards",
    multiple=True,
    default=["task"],
    show_default=True,
    help="Reward such as 0.5*exact; repeat to add up.",
)
@click.option(
    "--prompts", type=int, default=128, show_default=True, help="Number of training prompts; an epoch visits each once."
)
@click.option("--prompts-per-step", type=int, default=32, show_default=True, help="Number of prompts in a step.")
@click.option("--samples-per-prompt", type=int, default=8, show_default=True, help="Number of responses to each prompt.")
@click.option(
    "--max-response-tokens",
    type=int,
    default=320,
    show_default=True,
    help="Longest response, in tokens; longer ones are truncated.",
)
@click.option("--temperature", type=float, default=1.0, show_default=True, help="Sampling temperature.")
@click.option("--algorithm", type=click.Choice(["grpo", "ppo"]), default="grpo", show_default=True, help="Training algorithm.")
@click.option("--num-updates", type=int, default=1, show_default=True, help="Optimizer steps per batch.")
@click.option(
    "--loss-aggregation",
    type=click.Choice(["token", "sequence", "constant"]),
    default="token",
    show_default=True,
    help="How token losses are averaged.",
)
@click.option(
    "--advantage-std",
    type=click.Choice(["population", "sample", "none"]),
    default="population",
    show_default=True,
    help="GRPO: divisor of the advantages.",
)
@click.option("--kl-coef", type=float, default=0.0, show_default=True, help="Weight of the KL penalty to the first model.")
@click.option("--mask-truncated", is_flag=True, help="Leave truncated responses out of the loss.")
@click.option(
    "--old-logprobs-from",
    type=click.Choice(["engine", "recomputed"]),
    default="engine",
    show_default=True,
    help="Old log-probabilities of the ratio.",
)
@click.option("--importance-ratio-cap", type=float, help="Cap of truncated importance sampling.  [default: off]")
@click.option("--critic", default="head", show_default=True, help="PPO: the critic, head, model or a folder.")
@learner_options
@click.option("--policy", default="solver", show_default=True, help="Scheduling policy, such as random or solver+replan.")
@time_weight_option
@click.option(
    "--preparation",
    type=click.Choice(["after", "overlap"]),
    default="after",
    show_default=True,
    help="Score responses after generation or during it.",
)
@click.option(
    "--preparation-actors", type=int, default=1, show_default=True, help="Actors that score responses at the same time."
)
@click.option(
    "--executor",
    type=click.Choice(["virtual", "local", "ray"]),
    default="virtual",
    show_default=True,
    help="Actors: emulated, local processes or Ray.",
)
@click.option("--engine", type=click.Choice(["torch", "vllm"]), default="torch", show_default=True, help="Inference engine.")
@click.option("--gpus", type=int, default=16, show_default=True, help="Number of GPUs for generation.")
@click.option("--gpus-per-node", type=int, default=8, show_default=True, help="GPUs per node.")
@click.option("--gpus-per-actor", type=int, help="GPUs per actor, as in the profile.  [default: the profile's]")
@click.option("--profile", default="cpu-tiny-qwen2", show_default=True, help="Latency profile: a shipped name or a JSON file.")
@click.option("--memory-gib", type=float, help="Memory per GPU in GiB, which sets the slots.  [default: the profile's]")
@click.option(
    "--charging", type=click.Choice(["profile", "measured"]), default="profile", show_default=True,
    help="Virtual time: the profile's, or measured.",
)  # fmt: skip
@click.option("--ray-address", help="Ray cluster, HOST:PORT or auto.  [default: start one here]")
@click.option("--idle-timeout-s", type=float, default=60.0, show_default=True, help="Seconds after which an idle actor stops.")
@click.option(
    "--prewarm",
    type=click.Choice(["none", "shortest", "forecast"]),
    default="none",
    show_default=True,
    help="Forecast for starting actors early.",
)
def train(
    out: Path, resume: bool, model: Path | None, loggers: tuple[str, ...], gpus_per_actor: int | None, **options: Any
) -> None:
    """Train a model. Every step predicts lengths, plans and runs generation, scores responses and learns from them.

    rlhfless.training.config.TrainConfig explains the options and has further ones.
    """
    from rlhfless.executor import ActorError
    from rlhfless.training.config import LearnerError, TrainConfig
    from rlhfless.training.loop import train as run_training

    if gpus_per_actor is not None:
        check_size(gpus_per_actor, options["profile"])
    try:
        trace = run_training(TrainConfig(**options), out, resume=resume, model=model, loggers=loggers)
    except (ActorError, LearnerError) as error:
        kept = error.kept_in if isinstance(error, ActorError) else None
        complete = "" if kept is None else f", {kept} the completed responses of this step"
        smaller = f" {error.resume_with}" if isinstance(error, ActorError) and error.resume_with else ""
        raise click.ClickException(
            f"{error}; {out} holds the earlier steps{complete}; --resume{smaller} continues with this step"
        ) from error
    click.echo(repr(trace))
    click.echo(f"wrote {out}")
