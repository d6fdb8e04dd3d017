"""``rlhfless simulate``: runs every step of a log under several scheduling policies, on simulated engines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from rlhfless.cli.assumption_options import assumed_profile, logged_hardware_options, refuse_without_gpus
from rlhfless.cli.draft_options import DraftOptions, draft_options
from rlhfless.cli.fusion_options import ROWS, FusionOptions, fusion_options
from rlhfless.cli.group import main
from rlhfless.cli.log_options import LogOptions, log_options
from rlhfless.cli.options import (
    admission_option,
    calibrate_option,
    format_option,
    phases_options,
    seed_option,
    time_limit_option,
    time_weight_option,
)
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from rlhfless.run.hardware import Hardware
    from solver.model.objective import NonGenerationPhases


@main.command()
@click.argument("rollouts", type=click.Path(path_type=Path))
@log_options
@logged_hardware_options
@time_weight_option()
@admission_option
@click.option(
    "--policies",
    default="static,random,rlhfless,fold,solver,oracle",
    show_default=True,
    help="Compare these scheduling policies, separated by commas; spec, spec+fold, spec+critical and spec-fixed-N draft.",
)
@click.option(
    "--predictor",
    default="last",
    show_default=True,
    help="Predict lengths with last, or with inflight (for solver+replan).",
)
@click.option(
    "--tau",
    type=float,
    default=0.7,
    show_default=True,
    help="Policy rlhfless cuts an actor when this share of its responses is complete.",
)
@click.option("--static-actors", type=int, help="Policies static and rlhfuse use this many actors.  [default: all that fit]")
@click.option(
    "--hold",
    type=click.Choice(["generation", "step"]),
    default="generation",
    show_default=True,
    help="Policy static keeps its GPUs until generation ends, or until the step ends.",
)
@draft_options
@phases_options
@fusion_options
@click.option(
    "--learner-start",
    type=click.Choice(["step", "needed"]),
    default="step",
    show_default=True,
    help="Allocate --learner-gpus for the whole step, or so late that it is expected to end at most 0.5 % later.",
)
@click.option(
    "--migration",
    type=click.Choice(["cheaper", "move", "recompute"]),
    default="cheaper",
    show_default=True,
    help="Move the KV cache in migrations, recompute it, or do what is cheaper.",
)
@time_limit_option(0.3, " per step")
@calibrate_option
@seed_option
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), help="Write the trace of each policy to OUT/POLICY, in this new folder."
)
@format_option()
def simulate(
    rollouts: Path,
    log: LogOptions,
    hardware: Hardware,
    time_weight: float,
    admission: str,
    policies: str,
    predictor: str,
    tau: float,
    static_actors: int | None,
    hold: str,
    drafts: DraftOptions,
    phases: NonGenerationPhases,
    fusion: FusionOptions,
    learner_start: str,
    migration: str,
    time_limit_s: float,
    calibrate: bool,
    seed: int,
    out: Path | None,
    form: str,
) -> None:
    """Run every step of ROLLOUTS under several scheduling policies on simulated engines, and compare time and cost.

    ROLLOUTS is a trace or a log of another framework (see `rlhfless import`). What it measured itself is compared first, and
    the profile is scaled to it, as in the report.
    """
    from rlhfless.analysis import LoggedTimes
    from rlhfless.analysis.executed_run import AsExecuted
    from rlhfless.predict import make_predictor
    from rlhfless.report.study import Assumptions
    from rlhfless.run import load
    from rlhfless.simulate import simulate as run_simulation
    from rlhfless.trace.importers.import_session import TEXTS

    names = [name.strip() for name in policies.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise InputError(f"--policies {policies!r} is empty or repeats a policy; give each once, separated by commas")
    by_default = click.get_current_context().get_parameter_source("policies") is ParameterSource.DEFAULT
    work = fusion.work(phases)
    if work is not None and by_default:
        names += [name for name in ROWS if name not in names]
    chosen = drafts.policies(names, by_default)
    if out is not None and out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise InputError(f"{out}: exists and is not empty; choose a new folder for -o")
    opened = log.open_with_warnings(rollouts, () if drafts.drafts is None else TEXTS)
    stated = Assumptions(calibrate=calibrate)
    if not len(opened.trace.allocations):  # an executed run has measured these itself
        stated = replace(stated, prepare_s=phases.prepare_s or None, learn_s=phases.learn_s or None)
    run = load(
        opened, hardware=hardware, assumptions=stated, options=log.import_options(), time_weight=time_weight, verbose=False
    )
    refuse_without_gpus(run, rollouts)
    run = replace(run, admission=admission)
    setting = replace(
        run.calibrated,
        phases=phases if work is None else replace(phases, learner_gpus=0),
        time_limit_s=time_limit_s,
        tau=tau,
        static_actors=static_actors,
        hold=hold,
        migration=migration,
        seed=seed,
        work=work,
        fuse=fusion.fuse,
        learner_start=learner_start,
        drafts=drafts.accepted(log, rollouts, run.rollouts, seed),
    )
    result = run_simulation(run.rollouts, setting, chosen, make_predictor(predictor))
    if out is not None:
        for name, trace in result.traces.items():
            trace.save(out / name)
    dispatch = run.times.setup.dispatch if isinstance(run.times, LoggedTimes) else AsExecuted.name
    assumed = assumed_profile(run)
    if form == "json":
        measured = {"dispatch": dispatch, **run.times.to_dict()}
        about = {"times": run.times.scale.to_dict(), "log": measured} | ({"assumed": assumed} if assumed else {})
        click.echo(json.dumps(result.to_dict() | about))
        return
    for sentence in assumed:
        click.echo(sentence)
    if lines := run.times.lines:
        click.echo(f"what the log measured, next to values counted or simulated under its own dispatch ({dispatch}):")
        click.echo("\n".join(f"  {line}" for line in lines))
    click.echo(f"times: {run.times.scale.words()}")
    for title, has_history in (("steps with history", True), ("steps without history", False)):
        table = result.summary(has_history)
        if table["steps"].max() > 0:
            click.echo(
                f"{title}, sums over steps "
                "(bound_cost_at_time: lower bound on the GPU-seconds of any policy in that time, by bound_method)"
            )
            click.echo(table.to_string(index=False, float_format=lambda v: f"{v:,.3f}"))
