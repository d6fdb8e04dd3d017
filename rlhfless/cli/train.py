"""``rlhfless train``: a task on emulated GPUs, on this machine's, or on those of a Ray cluster."""

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
        "task", "prompt_column", "answer_column", "model", "rewards", "pool", "prompts_per_step", "samples_per_prompt",
        "max_response_tokens",
        "temperature",
    ],
    "Algorithm": [
        "algorithm", "num_updates", "loss_aggregation", "clip_ratio_low", "clip_ratio_high", "advantage_std", "kl_coef",
        "mask_truncated", "old_logprobs_from",
        "importance_ratio_cap", "critic", "gamma", "lam", "vf_coef",
    ],
    "Learner": [
        "learning_rate", "critic_learning_rate", "schedule", "warmup_steps", "schedule_steps", "optimizer", "weight_decay",
        "max_grad_norm", "precision", "max_tokens_per_micro_batch", "learner_processes", "device",
    ],
    "Schedule": ["policy", "time_weight", "preparation", "preparation_actors"],
    "Actors": [
        "executor", "engine", "gpus", "gpus_per_node", "gpus_per_actor", "profile", "memory_gib", "charging", "ray_address",
        "idle_timeout_s", "prewarm",
    ],
}  # fmt: skip


@main.command(cls=WithHeadings, headings=HEADINGS)
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="Folder of trace and checkpoints.")
@click.option("--resume", is_flag=True, help="Continue the run in OUT after its last completed step.")
@click.option("--steps", type=int, default=60, show_default=True, help="Steps of the whole run.")
@seed_option
@click.option("--save-total-limit", type=int, default=1, show_default=True, help="Checkpoints that are kept, the latest ones.")
@click.option(
    "--log",
    "loggers",
    multiple=True,
    type=click.Choice(["tensorboard", "wandb", "trackio", "jsonl"]),
    help="Where metrics go; may be repeated.",
)
@click.option("--task", default="arithmetic", show_default=True, help="arithmetic, gsm8k[:FILE], or a data set.")
@click.option("--prompt-column", help="Of the data set, where it is not the task's own.")
@click.option("--answer-column", help="Of the data set.")
@click.option("--model", type=click.Path(path_type=Path), help="Folder to start from instead of a new warm-up.")
@click.option("--reward", "rewards", multiple=True, default=["task"], show_default=True, help="[WEIGHT*]NAME; may be repeated.")
@click.option(
    "--prompts", "pool", type=int, default=128, show_default=True, help="Prompts of an epoch, which visits each once."
)
@click.option("--prompts-per-step", type=int, default=32, show_default=True, help="Prompts of a step.")
@click.option("--samples-per-prompt", type=int, default=8, show_default=True, help="Responses per prompt.")
@click.option("--max-response-tokens", type=int, default=320, show_default=True, help="No response gets longer (tokens).")
@click.option("--temperature", type=float, default=1.0, show_default=True, help="Of sampling.")
@click.option("--algorithm", type=click.Choice(["grpo", "ppo"]), default="grpo", show_default=True, help="What is learned by.")
@click.option("--num-updates", type=int, default=1, show_default=True, help="Optimizer steps on a batch.")
@click.option(
    "--loss-aggregation",
    type=click.Choice(["token", "sequence", "constant"]),
    default="token",
    show_default=True,
    help="Of token losses.",
)
@click.option(
    "--advantage-std",
    type=click.Choice(["population", "sample", "none"]),
    default="population",
    show_default=True,
    help="GRPO: divides advantages.",
)
@click.option("--kl-coef", type=float, default=0.0, show_default=True, help="Penalty on leaving the first weights.")
@click.option("--mask-truncated", is_flag=True, help="Learn nothing from responses that the limit ended.")
@click.option(
    "--old-logprobs-from", type=click.Choice(["engine", "recomputed"]), default="engine", show_default=True, help="Of ratios."
)
@click.option("--importance-ratio-cap", type=float, help="Correct the engine's probabilities, by this factor at most.")
@click.option("--critic", default="head", show_default=True, help="PPO: head, model, or a folder.")
@learner_options
@click.option("--policy", default="solver", show_default=True, help="Scheduling policy.")
@time_weight_option
@click.option(
    "--preparation",
    type=click.Choice(["after", "overlap"]),
    default="after",
    show_default=True,
    help="When responses are judged.",
)
@click.option("--preparation-actors", type=int, default=1, show_default=True, help="Most that prepare side by side.")
@click.option(
    "--pool",
    "executor",
    type=click.Choice(["virtual", "local", "ray"]),
    default="virtual",
    show_default=True,
    help="Emulated actors, processes here, or Ray's.",
)
@click.option("--engine", type=click.Choice(["torch", "vllm"]), default="torch", show_default=True, help="What decodes.")
@click.option("--gpus", type=int, default=16, show_default=True, help="GPUs: emulated ones, or those of the pool.")
@click.option("--gpus-per-node", type=int, default=8, show_default=True, help="Of a cluster of several nodes.")
@click.option("--gpus-per-actor", type=int, help="The profile has to be of such actors.  [default: the profile's]")
@click.option("--profile", default="cpu-tiny-qwen2", show_default=True, help="What a GPU takes for an iteration.")
@click.option("--memory-gib", type=float, help="Of a GPU, which decides slots.  [default: the profile's slots]")
@click.option(
    "--charging", type=click.Choice(["profile", "measured"]), default="profile", show_default=True,
    help="Of the virtual clock.",
)  # fmt: skip
@click.option("--ray-address", help="Of a Ray cluster (HOST:PORT, auto).  [default: one is started here]")
@click.option(
    "--idle-timeout-s", type=float, default=60.0, show_default=True, help="How long idle actors of a pool wait for work (s)."
)
@click.option(
    "--prewarm",
    type=click.Choice(["none", "shortest", "forecast"]),
    default="none",
    show_default=True,
    help="Start a pool's actors ahead of a step.",
)
def train(
    out: Path, resume: bool, model: Path | None, loggers: tuple[str, ...], gpus_per_actor: int | None, **options: Any
) -> None:
    """Train: predict, plan, execute, prepare, learn, trace, step after step.

    Every option's meaning stands in rlhfless.training.config.TrainConfig, which has more of them.
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
        rest = "" if kept is None else f", {kept} the responses of this one that were complete"
        smaller = f" {error.resume_with}" if isinstance(error, ActorError) and error.resume_with else ""
        raise click.ClickException(
            f"{error}; {out} holds the steps before it{rest}, and --resume{smaller} goes on with this one"
        ) from error
    click.echo(repr(trace))
    click.echo(f"wrote {out}")
