"""Writes the page of a step plan: its figures, and the calls of every plan as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rlhfless.errors import InputError
from rlhfless.plots import plot_step_comparison, plot_step_plan, plot_step_search
from rlhfless.plots.export.html_page import Page, page_path, write_page
from rlhfless.plots.style import counted, number

if TYPE_CHECKING:
    from solver.layouts import StepPlan

HEAD = ("call", "role", "kind", "GPUs", "dp x tp x pp", "start (s)", "seconds", "weights sent (s)", "weights sent (GB)")
LEAD = (
    "On which GPUs every model call of a training step runs, and how its model is sharded over them: data parallel (dp), "
    "tensor parallel (tp) and pipeline parallel (pp). Steps follow each other. No plan with these costs is below the bound."
)


def write_step_page(
    plans: Mapping[str, StepPlan],
    out: str | Path,
    *,
    memory_bytes: float = math.inf,
    planned: Mapping[str, str],
    assumptions: Mapping[str, str] | None = None,
) -> Path:
    """Write one page without network about plans of the same step, the own one last.

    Args:
        plans: by label. out: the HTML file. memory_bytes: of a GPU.
        planned: what the step is, by name: its models, GPUs, responses, ...
        assumptions: of the costs, by what is assumed.

    Returns:
        The path of the page.

    Raises:
        InputError: the path is a folder, or its folder cannot be made.
    """
    path = page_path(out, InputError)
    last = list(plans.values())[-1]
    page = Page(f"A step of {last.algorithm} on {counted(last.gpus, 'GPU')}", LEAD)
    page.facts(planned.items())
    page.section("Which call runs where")
    page.figure(plot_step_plan(plans, memory_bytes=memory_bytes))
    page.section("What a step takes")
    page.figure(plot_step_comparison(plans))
    page.section("How the plans were found")
    page.figure(plot_step_search(plans))
    page.section("The model calls")
    for label, plan in plans.items():
        page.table(label, HEAD, _rows(plan), text_columns=5)
    if assumptions:
        page.section("What the seconds come from")
        page.basis((name.replace("_", " "), text) for name, text in assumptions.items())
    return write_page(path, page.render(""), InputError)


def _rows(plan: StepPlan) -> list[tuple[str, ...]]:
    return [
        (
            call.name, call.role, call.kind, f"{call.layout.mesh.first} to {call.layout.mesh.last - 1}",
            str(call.layout.strategy), number(call.start_s), number(call.seconds), number(call.reallocate_s),
            number(call.reallocate_bytes / 1e9),
        )
        for call in plan.calls
    ]  # fmt: skip
