"""The section of a report that says what a trace's run did: every number in it is read from the trace.

Knows traces and plots; nothing of simulation.
"""

from __future__ import annotations

from collections.abc import Iterator

from rlhfless import plots
from rlhfless.plots.style import number
from rlhfless.report_page import Page
from rlhfless.report_schedules import evenly
from rlhfless.trace import Trace, step_metrics

MAX_TIMELINES = 12
MAX_SPANS = 40_000  # bars of all timelines that can be chosen in one place; above, they become heatmaps


def executed_section(page: Page, trace: Trace) -> None:
    """Time, cost, idle GPUs, timelines and lengths of a trace with allocations."""
    page.section("What was executed")
    page.basis(_basis_of_execution(trace))
    total = step_metrics(trace)[["time_s", "gpu_seconds", "idle_gpu_seconds", "cost_usd"]].sum(min_count=1).astype(float)
    share = total["idle_gpu_seconds"] / total["gpu_seconds"] if total["gpu_seconds"] > 0 else 0.0
    page.cards(
        [
            ("time, all steps", number(total["time_s"], "s", 5)),
            ("GPU-seconds billed", number(total["gpu_seconds"], digits=5)),
            ("of them idle", f"{number(total['idle_gpu_seconds'], digits=5)} ({share:.1%})"),
            ("cost", number(total["cost_usd"], "USD")),
        ]
    )
    steps = sorted(int(step) for step in trace.allocations["step"].unique())
    shown = evenly(steps, MAX_TIMELINES)
    if len(shown) < len(steps):
        page.text(f"{len(shown)} of {len(steps):,} steps can be chosen, evenly spread.")
    most = MAX_SPANS // len(shown)
    roles = trace.allocations["role"]
    generates = [role for role in roles.unique() if role in ("decode", "prefill")] or list(roles.unique())
    timelines = {f"step {step}": plots.plot_timeline(trace, step, roles=generates, max_spans=most) for step in shown}
    page.choice("Step", timelines, f"step {shown[-1]}")
    if set(roles) - set(generates):
        others = ", ".join(sorted(set(roles) - set(generates)))
        page.text(f"The timeline shows generation. Time and cost below are those of whole steps, GPUs of {others} included.")
    page.figure(plots.plot_steps(trace))
    if not plots.lengths_info(trace).missing:
        lengths = {f"step {steps[-1]}": plots.plot_lengths(trace, steps[-1]), "all steps": plots.plot_lengths(trace)}
        page.choice("Lengths of", lengths)


def _basis_of_execution(trace: Trace) -> Iterator[tuple[str, str]]:
    meta = trace.meta
    simulated, device, profile = meta.get("engine") == "simulated", meta.get("device"), meta.get("profile")
    by = f"latency profile {profile}" if profile else "a latency profile that the trace does not name"
    if meta.get("clock") == "wall":
        yield "Measured", f"all times, on {device or 'a device that the trace does not name'}."
    elif meta.get("clock") == "virtual" and meta.get("charging") == "measured":
        yield "Measured", f"every actor's own iterations, on {device or 'a device that the trace does not name'}."
        yield "Modelled", "that the actors work side by side: they share one device and a virtual clock."
    elif meta.get("clock") == "virtual":
        rest = trace.spans[trace.spans["phase"].isin(["prepare", "learn"])]
        learns = rest["detail"].fillna("").str.contains('"clock": "measured"').any()
        what = "generation times" if learns else "all times"
        yield "Modelled", f"{what}, by {by} on a virtual clock" + ("; no model was run." if simulated else ".")
        if learns:
            yield "Measured", "preparation and learning, on the device that ran them."
    else:
        yield "Unknown", "the trace does not say which clock its times come from."
    if simulated:
        yield "From the log", "response lengths."
    yield "Computed", "GPU-seconds and dollars from the allocations; idle is held time that no foreground span covers."
