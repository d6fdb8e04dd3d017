"""``rlhfless train``: trains on emulated GPUs, on this machine's GPUs, or on those of a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rlhfless.cli.group import main
from rlhfless.cli.headings import WithHeadings
from rlhfless.cli.learner_options import learner_options
from rlhfless.cli.log_options import limit_options
from rlhfless.cli.options import check_size, seed_option, time_weight_option

HEADINGS = {
    "Run": ["out", "resume", "steps", "seed", "save_total_limit", "loggers"],
    "Task": [
        "task", "prompt_column", "answer_column", "max_line_mib", "max_rows", "max_unpacked_gib", "model",
        "rewards", "prompts", "prompts_per_step", "samples_per_prompt",
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
    "-o", "--out", type=click.Path(path_type=Path), required=True, help="Write the trace and the checkpoints into this folder."
)
@click.option("--resume", is_flag=True, help="Continue the run in OUT after its last completed step.")
@click.option("--steps", type=int, default=60, show_default=True, help="Train for this many steps, resumed ones included.")
@seed_option
@click.option("--save-total-limit", type=int, default=1, show_default=True, help="Keep this many of the latest checkpoints.")
@click.option(
    "--log",
    "loggers",
    multiple=True,
    type=click.Choice(["tensorboard", "wandb", "trackio", "jsonl"]),
    help="Log metrics with this logger; repeatable.  [default: none]",
)
@click.option(
    "--task", default="arithmetic", show_default=True, help="Train on arithmetic, gsm8k[:FILE], a data file or a hub name."
)
@click.option("--prompt-column", help="Read prompts from this column of the data set.  [default: the task's]")
@click.option("--answer-column", help="Read answers from this column of the data set.  [default: the task's]")
@limit_options
@click.option(
    "--model", type=click.Path(path_type=Path), help="Train the model in this folder.  [default: a tiny model, warmed up first]"
)
@click.option(
    "--reward",
    "rewards",
    multiple=True,
    default=["task"],
    show_default=True,
    help="Reward by WEIGHT*NAME, such as 0.5*exact; repeat to add up.",
)
@click.option(
    "--prompts", type=int, default=128, show_default=True, help="Train on this many prompts; an epoch visits each once."
)
@click.option(
    "--prompts-per-step", type=int, default=32, show_default=True, help="Generate for this many prompts in every step."
)
@click.option(
    "--samples-per-prompt", type=int, default=8, show_default=True, help="Generate this many responses to each prompt."
)
@click.option(
    "--max-response-tokens",
    type=int,
    default=320,
    show_default=True,
    help="Truncate responses after this many tokens.",
)
@click.option(
    "--temperature", type=float, default=1.0, show_default=True, help="Sample tokens at this temperature; lower is less random."
)
@click.option(
    "--algorithm",
    type=click.Choice(["grpo", "ppo"]),
    default="grpo",
    show_default=True,
    help="Train with GRPO, or with PPO and a critic.",
)
@click.option("--num-updates", type=int, default=1, show_default=True, help="Take this many optimizer steps per batch.")
@click.option(
    "--loss-aggregation",
    type=click.Choice(["token", "sequence", "constant"]),
    default="token",
    show_default=True,
    help="Average losses over all tokens, per response (sequence), or by a constant divisor.",
)
@click.option(
    "--advantage-std",
    type=click.Choice(["population", "sample", "none"]),
    default="population",
    show_default=True,
    help="GRPO: divide advantages by this standard deviation.",
)
@click.option(
    "--kl-coef", type=float, default=0.0, show_default=True, help="Scale the KL penalty to the initial model by this."
)
@click.option("--mask-truncated", is_flag=True, help="Leave truncated responses out of the loss.")
@click.option(
    "--old-logprobs-from",
    type=click.Choice(["engine", "recomputed"]),
    default="engine",
    show_default=True,
    help="Take old log-probabilities from the engine, or recompute them.",
)
@click.option("--importance-ratio-cap", type=float, help="Cap importance sampling factors, at 2.0 for example.  [default: off]")
@click.option("--critic", default="head", show_default=True, help="PPO: use a head, a second model or a folder as critic.")
@learner_options
@click.option(
    "--policy", default="solver", show_default=True, help="Plan generation by this policy, such as random or solver+replan."
)
@time_weight_option
@click.option(
    "--preparation",
    type=click.Choice(["after", "overlap"]),
    default="after",
    show_default=True,
    help="Score responses after generation, or during it (overlap).",
)
@click.option(
    "--preparation-actors", type=int, default=1, show_default=True, help="Score responses on up to this many actors at once."
)
@click.option(
    "--executor",
    type=click.Choice(["virtual", "local", "ray"]),
    default="virtual",
    show_default=True,
    help="Run actors emulated (virtual), as local processes, or on Ray.",
)
@click.option(
    "--engine",
    type=click.Choice(["torch", "vllm"]),
    default="torch",
    show_default=True,
    help="Generate with this inference engine; vllm needs local or ray.",
)
@click.option("--gpus", type=int, default=16, show_default=True, help="Generate on this many GPUs.")
@click.option("--gpus-per-node", type=int, default=8, show_default=True, help="Place this many GPUs on each node.")
@click.option("--gpus-per-actor", type=int, help="Check that an actor has this many GPUs.  [default: the profile's]")
@click.option(
    "--profile", default="cpu-tiny-qwen2", show_default=True, help="Use this latency profile: a shipped name or a JSON file."
)
@click.option("--memory-gib", type=float, help="Limit a GPU's memory to this many GiB.  [default: the profile's]")
@click.option(
    "--charging", type=click.Choice(["profile", "measured"]), default="profile", show_default=True,
    help="Charge virtual time by the profile, or as measured here.",
)  # fmt: skip
@click.option("--ray-address", help="Join the Ray cluster at HOST:PORT or auto.  [default: start one here]")
@click.option(
    "--idle-timeout-s", type=float, default=60.0, show_default=True, help="Stop an actor after this many idle seconds."
)
@click.option(
    "--prewarm",
    type=click.Choice(["none", "shortest", "forecast"]),
    default="none",
    show_default=True,
    help="Start actors early, by the plan's forecast or the shortest step.",
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
