"""``rlhfless train``: trains on emulated GPUs, on this machine's GPUs, or on those of a Ray cluster."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import AliasChoices, Field, model_validator
from pydantic_settings import CliPositionalArg

from rlhfless.cli.options import Options, OutFolder, shown
from rlhfless.errors import InputError
from solver.model.plurals import counted

if TYPE_CHECKING:
    from rlhfless.training.config import TrainConfig


class TrainOptions(Options):
    """Train a model. Every step predicts lengths, plans and runs generation, scores responses and learns from them.

    CONFIG.yaml has the sections task, rollout, algorithm, optimizer, planner and cluster; any key may be left out. Words of the
    form section.key=value replace single keys: rollout.samples_per_prompt=4, or "task.rewards=[exact, 0.5*task]" in quotes.

    Print all keys with their defaults, to edit: rlhfless train --dry-run. Train: rlhfless train run.yaml steps=10 -o out/run.
    Resume: rlhfless train out/run/config.yaml -o out/run --resume last.
    """

    config: CliPositionalArg[tuple[str, ...]] = Field(
        (), json_schema_extra=shown("[CONFIG.yaml] [SECTION.KEY=VALUE]..."),
        description="A YAML file with a configuration, and single keys that replace its values.",
    )  # fmt: skip
    out: OutFolder | None = Field(
        None, validation_alias=AliasChoices("out", "o"), json_schema_extra=shown("FOLDER"),
        description="Write the trace and the checkpoints into this folder.",
    )  # fmt: skip
    resume: str | None = Field(
        None, json_schema_extra=shown("last|auto|STEPS"),
        description="Continue the run in --out: after its last checkpoint (last), after the checkpoint of this step (STEPS), "
        "or after the last checkpoint if there is one, else from the beginning (auto).",
    )  # fmt: skip
    loggers: tuple[Literal["tensorboard", "wandb", "trackio", "jsonl"], ...] = Field(
        (), validation_alias="log", json_schema_extra=shown("tensorboard|wandb|trackio|jsonl"),
        description="Log metrics with this logger; repeatable.",
    )  # fmt: skip
    dry_run: bool = Field(
        False, description="Print the configuration as YAML, with all keys and what they mean; train nothing."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.continues  # noqa: B018  # refuses what --resume does not take
        if self.out is None and not self.dry_run:
            raise InputError("a folder for the trace and the checkpoints is needed; give -o FOLDER")
        return self

    @property
    def continues(self) -> bool | int | Literal["auto"]:
        """What ``Trainer`` takes as ``resume``.

        Raises:
            InputError: it is neither a word nor a number of steps.
        """
        if self.resume is None or self.resume == "last":
            return self.resume == "last"
        if self.resume == "auto":
            return "auto"
        if not self.resume.isdecimal():
            raise InputError(f"--resume is {self.resume!r}; last, auto or a number of steps is needed")
        return int(self.resume)

    @property
    def typed(self) -> list[str]:
        """The command as it is typed, without --resume."""
        logs = [word for name in self.loggers for word in ("--log", name)]
        return ["rlhfless", "train", *self.config, *logs, "-o", str(self.out)]

    @classmethod
    def instead_of(cls, option: str) -> str | None:
        """Return what is typed for an option that is a key, gone, or another framework's name; None if it is none of these."""
        from rlhfless.gone_options import INSTEAD
        from rlhfless.training.config.section import all_keys
        from rlhfless.training.config.their_names import ALONE, ON_COMMAND_LINE, THEIRS, in_python_only, of_others

        name = option.lstrip("-").replace("-", "_")
        if name == "config":
            return "the file is typed without an option: rlhfless train CONFIG.yaml"
        if name in INSTEAD:
            return f"it is gone: {INSTEAD[name]}"
        if name in ON_COMMAND_LINE:
            return f"give {in_python_only(name)}"
        keys = [key for key in all_keys() if name in (key, key.rpartition(".")[2])]
        if len(keys) == 1:
            return f"it is a key: {keys[0]}=VALUE"
        is_key = THEIRS.get(ALONE.get(name, name), "folder") not in ON_COMMAND_LINE
        answer = of_others(name, python=False)
        return answer and f"{answer}{', and a key is typed without dashes: KEY=VALUE' if is_key else ''}"


def train(options: TrainOptions) -> None:
    """Train, and print what was written; or print the configuration.

    Raises:
        KeyboardInterrupt: training was interrupted; the message says how it goes on.
        InputError: an option makes no sense, or training failed in a way that can be resumed.
        TrainError: the configuration is wrong.
    """
    from rlhfless.training.config import LearnerError, TrainError, read_config, to_yaml
    from rlhfless.training.config.files import is_override

    files = [word for word in options.config if not is_override(word)]
    if len(files) > 1:
        raise TrainError(f"{files[1]} is a second configuration file after {files[0]}; give changes as section.key=value")
    chosen = read_config(files[0] if files else None, [word for word in options.config if is_override(word)])
    if options.dry_run:
        print(to_yaml(chosen, explained=True), end="")
        return
    assert options.out is not None
    out = options.out

    from rlhfless.executor import StepFailed
    from rlhfless.training.loop import train as run_training
    from rlhfless.training.rewards import RewardError

    try:
        trace = run_training(chosen, out, resume=options.continues, callbacks=options.loggers)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_how_to_go_on(options, out, chosen)) from None
    except (StepFailed, LearnerError) as error:
        kept = error.kept_in if isinstance(error, StepFailed) else None
        complete = "" if kept is None else f", {kept} the completed responses of this step"
        smaller = f" {error.resume_with}" if isinstance(error, StepFailed) and error.resume_with else ""
        raise InputError(
            f"{error}; {out} holds the earlier steps{complete}; --resume last{smaller} continues with this step"
        ) from error
    except RewardError as error:
        raise InputError(f"{error}; correct the reward, and continue the run in {out} with --resume last") from error
    print(repr(trace))
    print(f"wrote {out}")


def _how_to_go_on(options: TrainOptions, out: Path, config: TrainConfig) -> str:
    """Return how many steps of an interrupted run are kept, and the command that continues it."""
    from rlhfless.trace import read_trace
    from rlhfless.training.checkpoint import saved_steps
    from rlhfless.training.run_start import holds_run, stored_config

    if not holds_run(out):
        again = [*options.typed, "--resume", options.resume] if options.resume else options.typed
        return f"{out} holds no step yet, so begin again: {shlex.join(again)}"
    committed = len(read_trace(out).steps)
    kept = max((one for one in saved_steps(out / "checkpoints") if one <= committed), default=0)
    # A number of steps would go back once more.
    again = [*options.typed, "--resume", "auto" if options.resume == "auto" else "last"]
    steps = config.resuming(stored_config(out) or {}).steps
    return f"{out} holds {kept} of {counted(steps, 'step')}; continue with: {shlex.join(again)}"
