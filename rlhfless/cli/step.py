"""``rlhfless step``: plans on which GPUs every model call of a training step runs, beside published ways to plan it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from rlhfless.cli.group import main
from rlhfless.cli.lever_options import LeverOptions, lever_options
from rlhfless.cli.log_options import LogOptions, log_options
from rlhfless.cli.options import format_option, seed_option
from rlhfless.cli.step_options import StepGpus, StepModels, batch_options, gpus_options, models_options
from rlhfless.cli.weigh_options import WeighOptions, weigh_options
from rlhfless.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from rlhfless.latency import CallTable, StepBatch
    from rlhfless.run import PlannedWholeStep
    from rlhfless.simulate import LoggedStep
    from solver.dataflow import StepPlan

OURS = "this plan"


@main.command()
@models_options
@batch_options
@gpus_options
@lever_options
@log_options
@weigh_options
@click.option(
    "--compare", metavar="NAME[,NAME...]", default="",
    help="Compare with these published ways to plan a step: megatron, real, verl.  [default: none]",
)  # fmt: skip
@click.option("--gap", type=float, default=0.01, show_default=True, help="Prove that no plan is better by this share.")
@click.option("--work", type=click.IntRange(1), help="Stop after bounding this many partial plans.  [default: 20,000,000]")
@seed_option
@format_option()
@click.option("-o", "--out", type=click.Path(), help="Draw the plans as a page without network (.html), or as a picture.")
def step(
    models: StepModels,
    batch: StepBatch,
    hardware: StepGpus,
    lever: LeverOptions,
    log: LogOptions,
    weigh: WeighOptions,
    compare: str,
    gap: float,
    work: int | None,
    seed: int,
    form: str,
    out: str | None,
) -> None:
    """Plan a whole training step: on which GPUs every model call runs, how its model is cut over them, and in which order.

    Steps follow each other, and the seconds per step are the shortest that was found. With a time weight, a deadline or a
    budget, cost counts, too. The lower bound holds for every plan with these costs. Seconds come from tables of measured
    operators; backward passes, the optimizer and links between nodes are modelled.

    With --levers all and the lengths of a log, one plan chooses over all levers: the actors' number and size, their
    responses, the learner's GPUs, layouts, cuts, folding, overlap, streaming, prewarming and drafts. It says what each lever
    is expected to save, and what it saves when the step is executed on its true lengths.
    """
    from rlhfless.analysis import compare_step_plans
    from rlhfless.latency import CallTable
    from rlhfless.run.planned_whole_step import SECONDS_OF
    from rlhfless.scheduling.dataflow import PUBLISHED_PLANS, published_plans
    from solver.dataflow import plan_step, plan_step_for
    from solver.dataflow.searched import WORK

    names = _names(compare, PUBLISHED_PLANS)
    cluster, graph = hardware.cluster, models.graph
    if weigh.stated and lever.lengths is not None and not lever.of_actors:
        raise InputError(
            "--lengths plans generation by itself, whose cost is not weighed; leave out --lengths or the objective"
        )
    logged = lever.logged(log)
    if names and logged is not None:
        raise InputError("--compare plans responses of one length, but --lengths has one for each; leave out one of the two")
    workload = None if logged is None else logged.predicted.points
    batch = lever.batch(batch, workload)
    costs = CallTable(hardware.kind, models.of_roles(), batch, gpus_per_node=hardware.node_gpus)
    memory_bytes = hardware.memory_bytes(costs)
    if lever.of_actors:
        assert logged is not None, "levers need lengths"
        planned = _over_all_levers(logged, models, hardware, costs, lever, weigh, seed)
        return _show(planned, hardware.kind, costs, form, out)
    generation = lever.generation(costs, workload)
    search: dict[str, Any] = {"memory_bytes": memory_bytes, "gap": gap, "work": WORK if work is None else work, "seed": seed}
    weighed = plan_step_for(weigh.asked(), graph, weigh.priced(hardware), costs, **search) if weigh.stated else None
    plan = plan_step(graph, cluster, costs, **search, generation=generation) if weighed is None else weighed.plan
    others = published_plans(names, graph, cluster, costs, memory_bytes=memory_bytes, lower_bound_s=plan.lower_bound_s)
    plans = {**others, OURS: plan}
    of_log = {} if logged is None else {"times_from": SECONDS_OF}
    table = compare_step_plans(plans, hardware.price_usd)
    assumptions = dict(costs.tables.source["assumptions"])
    if out is not None:
        _draw(plans, memory_bytes, assumptions, out)
        click.echo(f"wrote {out}", err=True)
    if form == "json":
        limit = memory_bytes if math.isfinite(memory_bytes) else None  # JSON has no infinity
        about = {"kind": hardware.kind, "models": dict(costs.models), "batch": asdict(batch), "memory_bytes": limit}
        counted = {} if weighed is None else {"objective": weighed.to_dict()}
        click.echo(
            json.dumps(about | of_log | counted | _as_json(plans, table) | {"assumptions": assumptions}, allow_nan=False)
        )
    else:
        notes = [] if logged is None else [*filter(None, [logged.guess]), SECONDS_OF]
        click.echo("".join(f"{note}\n" for note in notes) + f"{weighed or plan!r}\n\n{_text(table, hardware)}")


def _over_all_levers(
    logged: LoggedStep, models: StepModels, hardware: StepGpus, costs: CallTable, lever: LeverOptions, weigh: WeighOptions,
    seed: int,
) -> PlannedWholeStep:  # fmt: skip
    """Return a whole step of actors and a learner, planned with all levers that are named."""
    from rlhfless.latency import generation_latency
    from rlhfless.run import PlannedWholeStep
    from rlhfless.simulate import DrawnDrafts, SimulationConfig, step_of_calls

    latency = generation_latency(costs)
    setting = SimulationConfig(weigh.priced(hardware), latency[min(latency)], seed=seed)
    drafts = None if lever.acceptance is None else DrawnDrafts(lever.acceptance, seed=seed)
    of_calls = step_of_calls(logged, setting, models.graph, costs, memory_bytes=hardware.memory_bytes(costs))
    return PlannedWholeStep(of_calls, weigh.aim(hardware), drafts, lever.names)


def _show(planned: PlannedWholeStep, kind: str, costs: CallTable, form: str, out: str | None) -> None:
    """Print a whole step as planned and as executed, and draw it."""
    from rlhfless.plots import save
    from rlhfless.run.planned_whole_step import SECONDS_OF

    if out is not None:
        save(planned.plot(), out)
        click.echo(f"wrote {out}", err=True)
    if form == "json":
        about = {"kind": kind, "models": dict(costs.models), "batch": asdict(costs.batch), "times_from": SECONDS_OF}
        found = {"plan": planned.words, "results": planned.results.to_dict("records")}
        levers = {"levers": planned.savings.to_dict("records"), "assumptions": dict(costs.tables.source["assumptions"])}
        click.echo(json.dumps(about | found | levers, allow_nan=False))
    else:
        click.echo(repr(planned))


def _names(text: str, known: dict[str, Any]) -> list[str]:
    """Return the names of --compare."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"--compare names {unknown[0]!r}; choose from {', '.join(known)}")
    return list(dict.fromkeys(names))


def _as_json(plans: dict[str, StepPlan], table: pd.DataFrame) -> dict[str, Any]:
    return {
        "plan": json.loads(plans[OURS].to_json()),
        "others": {name: json.loads(plan.to_json()) for name, plan in plans.items() if name != OURS},
        "comparison": json.loads(table.to_json(orient="records")),
    }


def _text(table: pd.DataFrame, hardware: StepGpus) -> str:
    """Return the comparison in words: seconds per step, multiple of the bound, what GPUs do, memory and cost."""
    held_gpu_s = table[["calls_gpu_s", "reallocation_gpu_s", "idle_gpu_s"]].sum(axis=1)
    shown = table[["plan"]].assign(**{"s per step": table["period_s"].map("{:.2f}".format)})
    shown["of the bound"] = (table["period_s"] / table["bound_s"]).map("{:.2f}x".format)
    for part in ("calls", "reallocation", "idle"):
        shown[part] = (table[f"{part}_gpu_s"] / held_gpu_s).map("{:.1%}".format)
    shown["peak GB"] = (table["peak_bytes"] / 1e9).map("{:.1f}".format)
    if not math.isnan(hardware.price_usd):
        shown["USD per step"] = table["cost_usd"].map("{:.4f}".format)
    shown["status"] = table["status"]
    price = (
        ""
        if math.isnan(hardware.price_usd)
        else f" Cost: {hardware.gpus} GPUs at {hardware.price_usd:g} USD per hour, all held."
    )
    return f"{shown.to_string(index=False)}\nShares are of the GPU-seconds of a step.{price}"


def _draw(plans: dict[str, StepPlan], memory_bytes: float, assumptions: dict[str, str], out: str) -> None:
    """Write a page with all figures, or a picture of the plans alone."""
    from rlhfless.plots import plot_step_plan, save

    if str(out).lower().endswith((".html", ".htm")):
        from rlhfless.report.step_page import write_step_page

        write_step_page(plans, out, memory_bytes=memory_bytes, assumptions=assumptions)
    else:
        save(plot_step_plan(plans, memory_bytes=memory_bytes), out)
