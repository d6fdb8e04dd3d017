"""``rlhfless layouts``: plans on which GPUs every model call of a training step runs, beside published ways to plan it."""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, Field

from rlhfless.cli.model_calls import StepGpus, StepModels
from rlhfless.cli.options import WEIGHT, Count, Limits, Names, OutFile, Printed, Share, shown
from rlhfless.cli.printed_json import print_json
from rlhfless.errors import InputError
from solver.model.plurals import counted

if TYPE_CHECKING:
    import pandas as pd

    from rlhfless.latency import CallTable
    from solver.layouts import Graph, StepPlan

OURS = "this plan"
WIDTH = 100  # of what is planned, in the text


class LayoutsOptions(Printed, Limits, StepGpus, StepModels):
    """Plan on which GPUs every model call of a step runs, how its model is sharded over them, and in which order.

    The plan has the shortest time per step that was found, for steps that follow each other; with --time-weight or --limit,
    cost counts too. No plan with these costs is below the printed lower bound. Seconds come from tables of measured operators;
    backward passes, the optimizer and links between nodes are modelled. All responses have the same length: use `rlhfless step`
    to plan from the lengths of a log.
    """

    out: OutFile | None = Field(
        None, validation_alias=AliasChoices("out", "o"),
        description="Write a picture of the plans, or a page (.html) that needs no network.",
    )  # fmt: skip
    time_weight: Share | None = Field(None, json_schema_extra=shown("W"), description=f"{WEIGHT}  [default: 1]")
    responses: Count = Field(256, description="Number of responses per step.")
    prompt_tokens: Count = Field(128, description="Tokens of every prompt.")
    response_tokens: Count = Field(384, description="Tokens of every response.")
    compare: Names = Field(
        (), description="Also plan as these published systems do: megatron, real (its search), verl.  [default: none]"
    )

    @property
    def graph(self) -> Graph:
        """See ``StepModels``; the solver also knows two steps that training has not."""
        from solver.layouts import dpo, remax

        further = {"remax": remax, "dpo": dpo}
        return further[self.algorithm]() if self.algorithm in further else super().graph


def layouts(options: LayoutsOptions) -> None:
    """Print the plan beside the ways to plan that are compared, and draw them.

    Raises:
        InputError: options contradict each other, or one makes no sense.
        PlanningError: there is no plan within the limits or the memory.
    """
    from rlhfless.analysis import compare_step_plans
    from rlhfless.latency import StepBatch
    from rlhfless.scheduling.published import PUBLISHED_PLANS, published_plans
    from solver.layouts import plan_step

    if unknown := [name for name in options.compare if name not in PUBLISHED_PLANS]:
        raise InputError(f"--compare names {unknown[0]!r}; choose from {', '.join(PUBLISHED_PLANS)}")
    cluster, graph = options.cluster(options), options.graph
    costs = options.costs(
        options, StepBatch(options.responses, options.prompt_tokens, options.response_tokens, options.mini_batches)
    )
    memory_bytes = options.memory_bytes(costs)
    plan = plan_step(graph, cluster, costs, objective=options.objective(1.0), memory_bytes=memory_bytes)
    names = list(dict.fromkeys(options.compare))
    others = published_plans(names, graph, cluster, costs, memory_bytes=memory_bytes, lower_bound_s=plan.lower_bound_s)
    plans = {**others, OURS: plan}
    table = compare_step_plans(plans, options.price_usd)
    assumptions = dict(costs.tables.source["assumptions"])
    if options.out is not None:
        _draw(plans, memory_bytes, _planned(options, costs), assumptions, str(options.out))
        print(f"wrote {options.out}", file=sys.stderr)
    if options.format == "json":
        limit = memory_bytes if math.isfinite(memory_bytes) else None  # JSON has no infinity
        about = {"kind": options.gpu, "models": dict(costs.models), "batch": asdict(costs.batch), "memory_bytes": limit}
        counted = {} if plan.shortest is None else {"objective": plan.objective_numbers()}
        print_json("rlhfless-layouts", about | counted | _as_json(plans, table) | {"assumptions": assumptions})
    else:
        facts = "; ".join(f"{name} {value}" for name, value in _planned(options, costs).items())
        print(f"{textwrap.fill(f'Planned: {facts}.', WIDTH)}\n{plan!r}\n\n{_text(table, options)}")


def _planned(options: LayoutsOptions, costs: CallTable) -> dict[str, str]:
    """Return what the step is that is planned, in words: algorithm, models, GPUs, and the responses of a step."""
    roles: dict[str, list[str]] = {}
    for role, model in costs.models.items():
        roles.setdefault(model, []).append(role)
    batch, nodes = costs.batch, options.total_gpus // options.node_gpus
    return {
        "algorithm": options.algorithm,
        "models": ", ".join(f"{model} ({', '.join(of)})" for model, of in roles.items()),
        "GPUs": f"{options.total_gpus} {options.gpu} ({counted(nodes, 'node')} of {options.node_gpus})",
        "responses per step": f"{batch.responses:,} of {counted(batch.response_tokens, 'token')} each",
        "prompts": f"{counted(batch.prompt_tokens, 'token')} each",
        "updates of each trained model": counted(batch.mini_batches, "mini-batch", "mini-batches"),
    }


def _as_json(plans: Mapping[str, StepPlan], table: pd.DataFrame) -> dict[str, Any]:
    return {
        "plan": json.loads(plans[OURS].to_json()),
        "others": {name: json.loads(plan.to_json()) for name, plan in plans.items() if name != OURS},
        "comparison": json.loads(table.to_json(orient="records")),
    }


def _text(table: pd.DataFrame, gpus: StepGpus) -> str:
    """Return the comparison in words: seconds per step, multiple of the bound, what GPUs do, memory and cost."""
    held_gpu_s = table[["calls_gpu_s", "reallocation_gpu_s", "idle_gpu_s"]].sum(axis=1)
    shown = table[["plan"]].assign(**{"s per step": table["period_s"].map("{:.2f}".format)})
    shown["of the bound"] = (table["period_s"] / table["bound_s"]).map("{:.2f}x".format)
    for part in ("calls", "reallocation", "idle"):
        shown[part] = (table[f"{part}_gpu_s"] / held_gpu_s).map("{:.1%}".format)
    shown["peak GB"] = (table["peak_bytes"] / 1e9).map("{:.1f}".format)
    price = ""
    if not math.isnan(gpus.price_usd):
        shown["USD per step"] = table["cost_usd"].map("{:.4f}".format)
        price = f" Cost: {gpus.total_gpus} GPUs at {gpus.price_usd:g} USD per hour, all held."
    shown["status"] = table["status"]
    return f"{_against(table)}{shown.to_string(index=False)}\n{_of_real(table)}Shares are of the GPU-seconds of a step.{price}"


def _against(table: pd.DataFrame) -> str:
    """Return how this plan compares with the shortest of the others that fit, as a line; empty where there is none."""
    others = table[(table["plan"] != OURS) & (table["status"] != "infeasible")]
    if others.empty:
        return ""
    best = others.loc[others["period_s"].idxmin()]
    change = float(table.loc[table["plan"] == OURS, "period_s"].iloc[0]) / best["period_s"] - 1
    by = "as long as" if abs(change) < 5e-4 else f"{abs(change):.1%} {'shorter' if change < 0 else 'longer'} than"
    among = f", the shortest of {', '.join(others['plan'])}" if len(others) > 1 else ""
    return f"{OURS} is {by} {best['plan']}{among}\n"


def _of_real(table: pd.DataFrame) -> str:
    """Say which plan ``real`` is, where it is compared."""
    if "real" not in set(table["plan"]):
        return ""
    return "real: found by ReaL's search with these costs, not its published plan.\n"


def _draw(
    plans: dict[str, StepPlan], memory_bytes: float, planned: dict[str, str], assumptions: dict[str, str], out: str
) -> None:
    """Write a page with all figures, or a picture of the plans alone."""
    from rlhfless.plots import plot_step_plan, save

    if out.lower().endswith((".html", ".htm")):
        from rlhfless.report.step_page import write_step_page

        write_step_page(plans, out, memory_bytes=memory_bytes, planned=planned, assumptions=assumptions)
    else:
        save(plot_step_plan(plans, memory_bytes=memory_bytes), out)
