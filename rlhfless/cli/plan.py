"""``rlhfless plan``: one step of a log, planned from the steps before it."""

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
@click.option("--step", type=int, help="Step to plan.  [default: the last]")
@log_options
@hardware_options()
@time_weight_option
@response_limit_option
@admission_option
@rest_options
@click.option(
    "--pool", "pools", multiple=True, metavar="GPUS:PROFILE[,PROFILE...][:USD[:MARKET]]", help="Further GPUs; repeat."
)
@click.option("--deadline-s", type=float, help="Least cost within this time instead of the weighted objective.")
@click.option("--budget-gpu-s", type=float, help="Least time within these GPU-seconds instead.")
@click.option("--budget-usd", type=float, help="Least time within these dollars instead.")
@click.option("--cost", type=click.Choice(["gpu_s", "usd"]), default="gpu_s", show_default=True, help="What cost counts.")
@click.option(
    "--cvar-alpha", type=float, default=1.0, show_default=True, help="Plan for the mean of this worst share of scenarios."
)
@prefill_options
@click.option("--share-prefill", is_flag=True, help="An actor computes a prompt once for all its responses there.")
@click.option("--min-actors", type=click.IntRange(1), default=1, show_default=True)
@click.option("--max-actors", type=click.IntRange(1), help="[default: all that fit]")
@click.option("--prewarmed", type=click.IntRange(0), default=0, show_default=True, help="Actors without a cold start.")
@click.option("--release", type=click.Choice(["done", "generation", "step"]), default="done", show_default=True)
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
    """Plan one step of ROLLOUTS (a trace, or anyone's log, see `rlhfless import`) from the steps before it."""
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
