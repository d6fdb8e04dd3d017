"""Options that several commands share, each defined once.

Options that belong together reach the command as one argument, such as ``hardware`` or ``phases``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from rlhfless.errors import InputError
from solver.model.plurals import counted

if TYPE_CHECKING:
    from solver.model.cluster import Cluster
    from solver.model.latency import LatencyModel

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

time_weight_option = click.option(
    "--time-weight",
    type=float,
    default=0.7,
    show_default=True,
    help="Weight of time against cost: 1 is time only, 0 cost only.",
)
usd_option = click.option(
    "--usd-per-gpu-hour", type=float, help="Price per GPU-hour in USD.  [default: list price of the GPU kind]"
)
response_limit_option = click.option(
    "--max-response-tokens", type=int, help="Longest response that the run allowed, in tokens.  [default: longest of the log]"
)
admission_option = click.option(
    "--admission", type=click.Choice(["reserve", "preempt"]), default="reserve", show_default=True,
    help="Admission rule: reserve sets aside KV memory for the longest response, preempt evicts and recomputes.",
)  # fmt: skip
seed_option = click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of every random choice.")
format_option = click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Format of the output."
)


def time_limit_option(default_s: float, what: str) -> Decorator:
    """Return the option --time-limit; ``what`` ends its help, as in " per step"."""
    return click.option(
        "--time-limit", "time_limit_s", type=click.FloatRange(0), default=default_s, show_default=True,
        help=f"Time limit of planning in seconds{what}.",
    )  # fmt: skip


deterministic_option = click.option(
    "--deterministic", is_flag=True,
    help="Stop each search after a counted amount of work, so that plans do not depend on the machine's load.",
)  # fmt: skip


@dataclass(frozen=True)
class Hardware:
    """GPUs, latency profile and price as the options state them; None where an option was not given."""

    gpus: int | None
    gpus_per_node: int | None
    gpus_per_actor: int | None
    profile: str | None
    usd_per_gpu_hour: float | None

    def cluster(self, prewarmed: int = 0) -> tuple[Cluster, LatencyModel]:
        """Return the cluster and the latency model; ``gpus`` and ``profile`` must not be None.

        Raises:
            InputError: the number of GPUs is not a multiple of the GPUs per node.
        """
        from rlhfless.latency import load_profile, usd_per_gpu_hour
        from solver.model.cluster import Cluster

        assert self.gpus is not None
        assert self.profile is not None
        latency = load_profile(self.profile)
        per_node = min(8, self.gpus) if self.gpus_per_node is None else self.gpus_per_node
        if self.gpus % per_node:
            raise InputError(f"--gpus {self.gpus} is not a multiple of --gpus-per-node {per_node}; give whole nodes")
        price = usd_per_gpu_hour(latency.kind) if self.usd_per_gpu_hour is None else self.usd_per_gpu_hour
        per_actor = latency.gpus_per_actor if self.gpus_per_actor is None else self.gpus_per_actor
        return Cluster(self.gpus // per_node, per_node, per_actor, latency.kind, price, prewarmed=prewarmed), latency


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


def hardware_options(*, required: bool = True, gpus: str = "Total number of GPUs.", profile: str = "") -> Decorator:
    """Return --gpus, --gpus-per-node, --gpus-per-actor, --profile and --usd-per-gpu-hour, as the argument ``hardware``.

    Args:
        required: whether --gpus and --profile must be given. gpus, profile: their help texts.
    """
    options = [
        click.option("--gpus", type=click.IntRange(1), required=required, help=gpus),
        click.option("--gpus-per-node", type=click.IntRange(1), help="GPUs per node.  [default: 8, or --gpus if fewer]"),
        click.option("--gpus-per-actor", type=int, help="GPUs per actor.  [default: the profile's]"),
        click.option("--profile", required=required, help=profile or "Latency profile: a shipped name or a JSON file."),
        usd_option,
    ]
    return together("hardware", lambda: Hardware, options)


def rest_options(command: Command) -> Command:
    """Add --prepare-s, --learn-s and --learner-gpus (the phases outside generation), as the argument ``phases``."""

    def step_phases() -> Callable[..., Any]:
        from solver.model.objective import NonGenerationPhases

        return NonGenerationPhases

    options = [
        click.option(
            "--prepare-s", type=float, default=0.0, help="Seconds of preparation (rewards, reference, values) after generation."
        ),
        click.option("--learn-s", type=float, default=0.0, help="Seconds of learning after preparation."),
        click.option("--learner-gpus", type=int, default=0, help="GPUs of the learner alone, in addition to --gpus."),
    ]
    return together("phases", step_phases, options)(command)


def together(argument: str, made_by: Callable[[], Callable[..., Any]], options: Sequence[Decorator]) -> Decorator:
    """Return a decorator that adds ``options`` and passes their values as one ``argument``.

    ``made_by()`` returns the class of the argument; it is called when the command runs, so that its import can be late.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_argument(*args: Any, **values: Any) -> Any:
            own = {name: values.pop(name) for name in names}
            return command(*args, **{argument: made_by()(**own)}, **values)

        before = len(getattr(with_argument, "__click_params__", []))
        decorated: Command = with_argument
        for option in reversed(options):
            decorated = option(decorated)
        names = [str(p.name) for p in decorated.__click_params__[before:]]  # type: ignore[attr-defined]
        return decorated

    return decorate
