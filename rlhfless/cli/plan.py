"""``rlhfless plan``: plans one step of a log with lengths predicted from the earlier steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlhfless.cli.group import main
from rlhfless.cli.log_options import LogOptions, log_options
from rlhfless.cli.options import (
    Hardware,
    admission_option,
    deterministic_option,
    format_option,
    hardware_options,
    response_limit_option,
    rest_options,
    seed_option,
    time_limit_option,
    time_weight_option,
)
from rlhfless.cli.prefill import PrefillOptions, prefill_options
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from solver.model.objective import NonGenerationPhases


@main.command()
@click.argument("rollouts", type=click.Path(path_type=Path))
@click.option("--step", type=int, help="Number of the step to plan.  [default: the last]")
@log_options
@hardware_options()
@time_weight_option
@response_limit_option
@admission_option
@rest_options
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar="GPUS:PROFILE[,PROFILE...][:USD[:MARKET]]",
    help="Further GPUs, such as 8:h100-qwen2.5-3b-tp1:2.5; repeatable.",
)
@click.option(
    "--deadline-s", type=float, help="Minimise cost with the step done within these seconds, instead of the weighted objective."
)
@click.option(
    "--budget-gpu-s", type=float, help="Minimise time within this budget of GPU-seconds, instead of the weighted objective."
)
@click.option("--budget-usd", type=float, help="Minimise time within this budget of USD, instead of the weighted objective.")
@click.option(
    "--cost", type=click.Choice(["gpu_s", "usd"]), default="gpu_s", show_default=True, help="Unit of cost: GPU-seconds or USD."
)
@click.option(
    "--cvar-alpha",
    type=float,
    default=1.0,
    show_default=True,
    help="Share of the worst length scenarios that the objective averages over; 1 is all.",
)
@prefill_options
@click.option("--share-prefill", is_flag=True, help="Each actor computes a prompt once for all responses to it.")
@click.option("--min-actors", type=click.IntRange(1), default=1, show_default=True, help="Smallest number of actors.")
@click.option("--max-actors", type=click.IntRange(1), help="Largest number of actors.  [default: all that fit]")
@click.option(
    "--prewarmed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Number of prewarmed actors, which need no cold start.",
)
@click.option(
    "--release",
    type=click.Choice(["done", "generation", "step"]),
    default="done",
    show_default=True,
    help="Actors release their GPUs when they are done, or at the end of generation or of the step.",
)
@time_limit_option(1.0, "")
@deterministic_option
@seed_option
@format_option
def plan(
    rollouts: Path,
    log: LogOptions,
    step: int | None,
    hardware: Hardware,
    time_weight: float,
    max_response_tokens: int | None,
    phases: NonGenerationPhases,
    prefill: PrefillOptions,
    pools: tuple[str, ...],
    deadline_s: float | None,
    budget_gpu_s: float | None,
    budget_usd: float | None,
    cost: str,
    cvar_alpha: float,
    prewarmed: int,
    time_limit_s: float,
    form: str,
    **options: Any,
) -> None:
    """Plan one step of ROLLOUTS with lengths predicted from the earlier steps.

    ROLLOUTS is a trace or a log of another framework (see `rlhfless import`).
    """
    from rlhfless.latency import mixed_pools
    from rlhfless.simulate import logged_steps
    from solver.model.objective import Objective
    from solver.planning.plan_generation import plan_generation
    from solver.prefix_sharing.deduplicate import deduplicate

    cluster, latency = hardware.cluster(prewarmed)
    objective = Objective(time_weight, deadline_s, budget_gpu_s, budget_usd, cost, cvar_alpha)
    table = log.open(rollouts, max_response_tokens, [prefill.prompt_ids] if prefill.prompt_ids else []).trace.rollouts
    known = sorted(int(s) for s in table["step"].unique())
    wanted = known[-1] if step is None else step
    if wanted not in known:
        raise InputError(f"{rollouts}: has no step {wanted}; its steps are {known[0]} to {known[-1]}")
    logged = next(logged_steps(table, max_response_tokens=max_response_tokens, steps=[wanted]))
    where, models = mixed_pools(cluster, latency, pools) if pools else (cluster, latency)
    work = logged.predicted
    sharing = prefill.arguments(logged.rows, work, f"step {wanted} of {rollouts}") if prefill.wanted else None
    if prefill.together_if_cheaper:
        options |= {"keep_together": "cheaper", "prefill": sharing}
    else:
        options["keep_together"] = prefill.keep_together
    result = plan_generation(work, where, models, objective, phases, time_limit_s, **options)
    said = ""
    if sharing is not None and not prefill.together_if_cheaper:
        shared = deduplicate(
            result, work, where, models, objective=objective, phases=phases, admission=options["admission"], **sharing
        )
        result, said = shared.plan, repr(shared)
    if form == "json":
        click.echo(json.dumps({"step": wanted, "profile": latency.name, **json.loads(result.to_json())}))
        return
    click.echo(f"step {wanted} of {rollouts}: {logged.predicted}")
    click.echo(repr(result))
    if said:
        click.echo(said)
