"""``rlhfless train``: trains on emulated GPUs, on this machine's GPUs, or on those of a Ray cluster."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Literal

import click

from rlhfless.cli.config_options import config_of, config_options
from rlhfless.cli.group import main
from rlhfless.cli.headings import WithHeadings
from rlhfless.cli.options import check_size
from solver.model.plurals import counted

OPTIONS = config_options()
HEADINGS = {heading: [str(option.name) for option in options] for heading, options in OPTIONS.items()}
HEADINGS["Run"] += ["out", "resume", "resume_from", "model", "loggers"]
HEADINGS["Cluster"] += ["gpus_per_actor"]


@main.command(cls=WithHeadings, headings=HEADINGS, params=[option for options in OPTIONS.values() for option in options])
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), required=True, help="Write the trace and the checkpoints into this folder."
)
@click.option(
    "--resume",
    is_flag=False,
    flag_value="last",
    type=click.Choice(["last", "auto"]),
    help="Continue the run in OUT after its last checkpoint; with auto, begin one where there is none.",
)
@click.option("--resume-from", type=int, help="Continue the run in OUT after this many steps.  [default: the last checkpoint]")
@click.option(
    "--model",
    type=click.Path(),  # a text: a Path would make ./OWNER/NAME a name of the hub
    help="Train the model in this folder, or OWNER/NAME of the hub.  [default: a tiny model, warmed up first]",
)
@click.option(
    "--log",
    "loggers",
    multiple=True,
    type=click.Choice(["tensorboard", "wandb", "trackio", "jsonl"]),
    help="Log metrics with this logger; repeatable.  [default: none]",
)
@click.option("--gpus-per-actor", type=int, help="Check that an actor has this many GPUs.  [default: the profile's]")
def train(
    out: Path,
    resume: Literal["last", "auto"] | None,
    resume_from: int | None,
    model: str | None,
    loggers: tuple[str, ...],
    gpus_per_actor: int | None,
    **options: Any,
) -> None:
    """Train a model. Every step predicts lengths, plans and runs generation, scores responses and learns from them.

    The options are those of rlhfless.training.TrainConfig, which explains them at length.
    """
    from rlhfless.executor import StepFailed
    from rlhfless.training.config import LearnerError
    from rlhfless.training.loop import train as run_training
    from rlhfless.training.rewards import RewardError

    config = config_of(options)
    resumed: bool | int | Literal["auto"] = "auto" if resume == "auto" else resume is not None
    if resume_from is not None:
        resumed = resume_from
    if gpus_per_actor is not None:
        check_size(gpus_per_actor, config.cluster.profile)
    try:
        trace = run_training(config, out, resume=resumed, model=model, loggers=loggers)
    except KeyboardInterrupt:
        raise click.Abort(_how_to_go_on(out, config.steps)) from None
    except (StepFailed, LearnerError) as error:
        kept = error.kept_in if isinstance(error, StepFailed) else None
        complete = "" if kept is None else f", {kept} the completed responses of this step"
        smaller = f" {error.resume_with}" if isinstance(error, StepFailed) and error.resume_with else ""
        raise click.ClickException(
            f"{error}; {out} holds the earlier steps{complete}; --resume{smaller} continues with this step"
        ) from error
    except RewardError as error:
        raise click.ClickException(f"{error}; correct the reward, and continue the run in {out} with --resume") from error
    click.echo(repr(trace))
    click.echo(f"wrote {out}")


def _how_to_go_on(out: Path, steps: int) -> str:
    """Return how many steps of an interrupted run are kept, and the command that continues it."""
    from rlhfless.trace import read_trace
    from rlhfless.training.checkpoint import saved_steps
    from rlhfless.training.run_start import holds_run

    given: list[str] = list(click.get_current_context().meta["arguments"])
    if not holds_run(out):
        return f"{out} holds no step yet, so begin again: {shlex.join(['rlhfless', *given])}"
    if "--resume-from" in given:  # it would go back once more
        at = given.index("--resume-from")
        del given[at : at + 2]
    given = [word for word in given if not word.startswith("--resume-from=")]
    if not any(word.partition("=")[0] == "--resume" for word in given):
        given.append("--resume")
    committed = len(read_trace(out).steps)
    kept = max((one for one in saved_steps(out / "checkpoints") if one <= committed), default=0)
    return f"{out} holds {kept} of {counted(steps, 'step')}; continue with: {shlex.join(['rlhfless', *given])}"
