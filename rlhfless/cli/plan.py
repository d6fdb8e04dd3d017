"""``rlhfless plan``: plans one step of a log with lengths predicted from the earlier steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlhfless.cli.assumption_options import assumed_profile, logged_hardware_options, refuse_without_gpus
from rlhfless.cli.draft_options import drafts_option, stated_acceptance
from rlhfless.cli.fusion_options import FusionOptions, fusion_options, step_json, step_text
from rlhfless.cli.group import main
from rlhfless.cli.log_options import LogOptions, log_options
from rlhfless.cli.options import (
    added,
    admission_option,
    calibrate_option,
    format_option,
    objective_options,
    phases_options,
    seed_option,
    time_limit_option,
    time_weight_option,
)
from rlhfless.cli.prefill import PrefillOptions, prefill_options
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from rlhfless.run.hardware import Hardware
    from solver.model.acceptance import Acceptance
    from solver.model.objective import NonGenerationPhases


@main.command()
@click.argument("rollouts", type=click.Path(path_type=Path))
@click.option("--step", type=int, help="Plan the step with this number.  [default: the last]")
@log_options
@logged_hardware_options
@time_weight_option()
@admission_option
@phases_options
@fusion_options
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar="GPUS:PROFILE[,PROFILE...][:USD[:MARKET]]",
    help="Add GPUs of another kind, such as 8:h100-qwen2.5-3b-tp1:2.5; repeatable.",
)
@added(*objective_options())
@click.option(
    "--cvar-alpha",
    type=float,
    default=1.0,
    show_default=True,
    help="Average over this worst share of length scenarios, such as 0.1; 1 is all.",
)
@drafts_option("Plan with speculative decoding that accepts")
@prefill_options
@click.option("--share-prefill", is_flag=True, help="Let each actor compute a prompt once for all responses to it.")
@click.option("--min-actors", type=click.IntRange(1), default=1, show_default=True, help="Plan at least this many actors.")
@click.option("--max-actors", type=click.IntRange(1), help="Plan at most this many actors.  [default: all that fit]")
@click.option(
    "--prewarmed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Start this many actors without a cold start.",
)
@click.option(
    "--release",
    type=click.Choice(["done", "generation", "step"]),
    default="done",
    show_default=True,
    help="Release an actor's GPUs when it is done, or at the end of generation or of the step.",
)
@time_limit_option(0.3, "")
@calibrate_option
@seed_option
@format_option()
def plan(
    rollouts: Path,
    log: LogOptions,
    step: int | None,
    hardware: Hardware,
    time_weight: float,
    admission: str,
    phases: NonGenerationPhases,
    fusion: FusionOptions,
    prefill: PrefillOptions,
    pools: tuple[str, ...],
    deadline_s: float | None,
    budget_gpu_s: float | None,
    budget_usd: float | None,
    cost: str,
    cvar_alpha: float,
    drafts: str | None,
    prewarmed: int,
    time_limit_s: float,
    calibrate: bool,
    seed: int,
    form: str,
    **options: Any,
) -> None:
    """Plan one step of ROLLOUTS with lengths predicted from the earlier steps, and run the plan with the true lengths.

    ROLLOUTS is a trace or a log of another framework (see `rlhfless import`). The plan is that of policy solver, as in Python
    that of `run.plan()`, and stands beside the static schedule and the lower bound. With --pool, --drafts, prefill options,
    bounds on actors, --release or seconds per token it is a static plan, which is not executed.
    """
    from rlhfless.latency import mixed_pools
    from rlhfless.report.study import Assumptions
    from rlhfless.run import load
    from rlhfless.scheduling.solver import planned as static_plan
    from solver.model.drafting import Drafting
    from solver.model.objective import Objective
    from solver.prefix_sharing.deduplicate import deduplicate
    from solver.timing.drafted_latency import drafted

    opened = log.open_with_warnings(rollouts, [prefill.prompt_ids] if prefill.prompt_ids else [])
    run = load(
        opened, hardware=hardware, assumptions=Assumptions(calibrate=calibrate), options=log.import_options(),
        time_weight=time_weight, verbose=False,
    )  # fmt: skip
    refuse_without_gpus(run, rollouts)
    run = replace(run, admission=admission)
    wanted = run.steps[-1] if step is None else step
    if wanted not in run.steps:
        raise InputError(f"{rollouts}: has no step {wanted}; its steps are {run.steps[0]} to {run.steps[-1]}")
    planned = run.plan(wanted)
    logged, work = planned.logged, planned.logged.predicted
    cluster = replace(planned.setting.cluster, prewarmed=prewarmed)
    objective = Objective(time_weight, deadline_s, budget_gpu_s, budget_usd, cost, cvar_alpha)
    whole = fusion.phases(phases, work, cluster)
    setting = replace(planned.setting, cluster=cluster, objective=objective, phases=whole, time_limit_s=time_limit_s, seed=seed)
    planned = replace(planned, setting=setting)
    problem, search = logged.inputs(setting)
    scale = run.times.scale
    sharing = prefill.arguments(logged.rows, work, f"step {wanted} of {rollouts}") if prefill.wanted else None
    expected = None if drafts is None else stated_acceptance(drafts)
    further = {"keep_together": prefill.keep_together, **options}
    own = not pools and expected is None and all(getattr(problem, name) == value for name, value in further.items())
    if pools:
        clusters, models = mixed_pools(cluster, run.setting.latency, pools)
        problem = replace(problem, cluster=clusters, latency={size: scale.of(model) for size, model in models.items()})
    if expected is not None:
        problem = problem.with_latencies(lambda model: drafted(model, expected))
    problem = replace(problem, **further)
    compared = None
    text = ""
    if sharing is not None:
        shared = deduplicate(static_plan(problem, search), problem, **sharing)
        result, text = shared.plan, repr(shared)
    elif own and fusion.work(phases) is None:
        compared = planned.compare()
        result = compared.simulation.plans["solver"][0]
    else:
        result = static_plan(problem, search)
    if expected is not None:
        result = replace(result, drafting=Drafting(), acceptance=expected)
        text = "\n".join([f"drafts planned with {drafts}: {_per_pass(expected)}", *filter(None, [text])])
    fused = fusion.step_of(result, problem, phases)
    assumed = assumed_profile(run)
    if form == "json":
        shown = json.loads(result.to_json()) | ({} if fused is None else {"whole_step": step_json(*fused)})
        guess = {"guess": logged.guess} if logged.guess else {}
        executed = {} if compared is None else {"executed": compared.results.to_dict("records")}
        about = {"step": wanted, "profile": setting.latency.name, "times": scale.to_dict()}
        if assumed:
            about["assumed"] = assumed
        click.echo(json.dumps(about | guess | shown | executed))
        return
    for sentence in assumed:
        click.echo(sentence)
    click.echo(f"step {wanted} of {rollouts}: {work}")
    if logged.guess:
        click.echo(logged.guess)
    click.echo(f"times: {scale.words()}")
    click.echo(repr(result))
    if compared is not None:
        click.echo(f"executed with the true lengths: {compared.simulation!r}")
    if fused is not None:
        text = "\n".join([*filter(None, [text]), step_text(*fused)])
    if text:
        click.echo(text)


def _per_pass(acceptance: Acceptance) -> str:
    most = acceptance.max_draft_tokens
    tokens = acceptance.tokens_per_pass(most)
    return f"{tokens:.2f} tokens per pass with {most} drafted, the same of all responses; less where they differ"
