"""Options that several commands share, each defined once.

Options that belong together reach the command as one argument, such as ``hardware`` or ``phases``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import click

from rlhfless.errors import InputError
from solver.model.objective import COSTS
from solver.model.plurals import counted

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

usd_option = click.option(
    "--usd-per-gpu-hour",
    type=float,
    help="Pay this many USD per GPU-hour, such as 2.50.  [default: list price of the GPU kind]",
)
admission_option = click.option(
    "--admission", type=click.Choice(["reserve", "preempt"]), default="reserve", show_default=True,
    help="Reserve KV memory for the longest response, or preempt: evict responses and recompute them.",
)  # fmt: skip
seed_option = click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed every random choice with this number."
)
calibrate_option = click.option(
    "--calibrate/--no-calibrate", default=True, show_default=True, help="Scale the profile to the times in the log."
)


def time_weight_option(default: float | None = 0.7, otherwise: str = "0.7") -> Decorator:
    """Return the option --time-weight; ``otherwise`` says what holds without it."""
    return click.option(
        "--time-weight", type=float, default=default,
        help=f"Weigh time against cost: 1 is time only, 0 cost only.  [default: {otherwise}]",
    )  # fmt: skip


def time_limit_option(default_s: float, what: str) -> Decorator:
    """Return the option --time-limit, which counts work; ``what`` ends its help, as in " per step"."""
    return click.option(
        "--time-limit", "time_limit_s", type=click.FloatRange(0), default=default_s, show_default=True,
        help=f"Search with the work of about this many seconds{what}; work is counted, so a busy machine plans the same.",
    )  # fmt: skip


def format_option(*further: str) -> Decorator:
    """Return the option --format: a table, JSON, and further formats."""
    also = "".join(f", or {name}" for name in further)
    return click.option(
        "--format", "form", type=click.Choice(["table", "json", *further]), default="table", show_default=True,
        help=f"Print a table, or one JSON object{also}.",
    )  # fmt: skip


def cluster_size_options(*, required: bool, gpus: str, per_node: str = "Each node has this many GPUs.") -> list[Decorator]:
    """Return --gpus and --gpus-per-node; ``gpus`` and ``per_node`` begin their help texts."""
    return [
        click.option("--gpus", type=click.IntRange(1), required=required, help=gpus),
        click.option("--gpus-per-node", type=click.IntRange(1), help=f"{per_node}  [default: 8, or --gpus if fewer]"),
    ]


def profile_option(text: str) -> Decorator:
    """Return the option --profile, a shipped latency profile or a JSON file; ``text`` is its help."""
    return click.option("--profile", help=text)


def objective_options() -> list[Decorator]:
    """Return --deadline-s, --budget-gpu-s, --budget-usd and --cost."""
    return [
        click.option("--deadline-s", type=float, help="Minimise cost with at most this many seconds per step.  [default: off]"),
        click.option("--budget-gpu-s", type=float, help="Minimise time within this many GPU-seconds per step.  [default: off]"),
        click.option("--budget-usd", type=float, help="Minimise time within this many USD per step.  [default: off]"),
        click.option(
            "--cost", type=click.Choice(COSTS), default="gpu_s", show_default=True, help="Count cost in GPU-seconds or in USD."
        ),
    ]


def outside_generation(default: float | None, otherwise: str, learner: str) -> list[Decorator]:
    """Return --prepare-s, --learn-s and --learner-gpus: what a step takes outside generation.

    Args:
        default: seconds where nothing is stated. otherwise: the same in words. learner: what holds without --learner-gpus.
    """
    return [
        click.option(
            "--prepare-s", type=float, default=default,
            help=f"Each step prepares (rewards, reference, values) for this many seconds.  [default: {otherwise}]",
        ),
        click.option(
            "--learn-s", type=float, default=default, help=f"Each step learns for this many seconds.  [default: {otherwise}]"
        ),
        click.option(
            "--learner-gpus", type=int, default=None if default is None else 0,
            help=f"The learner has this many GPUs of its own.  [default: {learner}]",
        ),
    ]  # fmt: skip


def added(*options: Decorator) -> Decorator:
    """Return a decorator that adds options in this order, each as an argument of its own."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def check_size(gpus_per_actor: int, profile: str) -> None:
    """Refuse a profile of actors with another number of GPUs.

    Raises:
        InputError: the profile is for actors of another size; the message names profiles that fit.
    """
    from rlhfless.latency import list_profiles, load_profile

    size = load_profile(profile).gpus_per_actor
    if size != gpus_per_actor:
        fitting = [name for name in list_profiles() if load_profile(name).gpus_per_actor == gpus_per_actor]
        raise InputError(
            f"--gpus-per-actor is {gpus_per_actor}, but profile {profile} is for actors of {counted(size, 'GPU')}; "
            f"give {size}, or a profile for {gpus_per_actor} ({', '.join(fitting) or 'none is shipped'})"
        )


def hardware_options(*, gpus: str, profile: str) -> Decorator:
    """Return --gpus, --gpus-per-node, --gpus-per-actor, --profile and --usd-per-gpu-hour, as the argument ``hardware``.

    Args:
        gpus, profile: help texts of --gpus and --profile, which may be left out.
    """
    options: list[Decorator] = [
        *cluster_size_options(required=False, gpus=gpus),
        click.option("--gpus-per-actor", type=int, help="Each actor has this many GPUs.  [default: the profile's]"),
        profile_option(profile),
        usd_option,
    ]

    def made() -> Callable[..., Any]:
        from rlhfless.run.hardware import Hardware

        return Hardware

    return together("hardware", made, options)


def phases_options(command: Command) -> Command:
    """Add --prepare-s, --learn-s and --learner-gpus (the phases outside generation), as the argument ``phases``."""

    def step_phases() -> Callable[..., Any]:
        from solver.model.objective import NonGenerationPhases

        return NonGenerationPhases

    return together("phases", step_phases, outside_generation(0.0, "0", "0"))(command)


def together(argument: str, made_by: Callable[[], Callable[..., Any]], options: Sequence[Decorator]) -> Decorator:
    """Return a decorator that adds ``options`` and passes their values as one ``argument``.

    ``made_by()`` returns the class of the argument; it is called when the command runs, so that its import can be late.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_argument(*args: Any, **values: Any) -> Any:
            chosen = {name: values.pop(name) for name in names}
            return command(*args, **{argument: made_by()(**chosen)}, **values)

        before = len(getattr(with_argument, "__click_params__", []))
        decorated: Command = with_argument
        for option in reversed(options):
            decorated = option(decorated)
        names = [str(p.name) for p in decorated.__click_params__[before:]]  # type: ignore[attr-defined]
        return decorated

    return decorate
