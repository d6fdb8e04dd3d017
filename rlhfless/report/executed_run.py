"""Report sections about an executed run: what it did, read from its trace, and what other schedules would have saved.

Inputs are a trace and the findings of ``report.study``; output are sections of the page.
"""

from __future__ import annotations

from collections.abc import Iterator

from rlhfless import plots
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import counted, number
from rlhfless.report.log_checks import calibrated_by, checks_table
from rlhfless.report.savings import savings_in_short, savings_tables
from rlhfless.report.schedules import evenly
from rlhfless.report.study import ExecutedRunFindings
from rlhfless.trace import Trace, step_metrics

MAX_TIMELINES = 12
MAX_SPANS = 40_000  # bars of all timelines that can be chosen in one place; above, they become heatmaps


def executed_section(page: Page, trace: Trace) -> None:
    """Add time, cost, idle GPUs, timelines and lengths of a trace with allocations."""
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


def executed_savings_section(page: Page, trace: Trace, found: ExecutedRunFindings) -> None:
    """Add what other schedules would have saved of the executed and billed time, and which part no schedule changes."""
    page.section("What could be saved")
    page.basis(_basis_of_savings(trace, found))
    for sentence in (*savings_in_short(found), _fixed(found)):
        page.text(sentence)
    if trace.allocations["usd_per_gpu_s"].nunique() > 1:
        page.text("The run's GPUs have several prices: the shares are of GPU-seconds, those of the money are others.")
    page.text(
        f"Shares of what {counted(len(found.took), 'step')} took and what was billed for them, from where to where: 5th to "
        "95th percentile of sums over resampled steps. Negative: the schedule loses, or the run had done it already. Not in "
        "the ranges: how far the profile is off, and that the best of several schedules is named."
    )
    savings_tables(page, found)
    if found.checks:
        checks_table(page, found.checks)


def _basis_of_savings(trace: Trace, found: ExecutedRunFindings) -> Iterator[tuple[str, str]]:
    yield "From the trace", "what the steps took and were billed, and all of it that is not generation."
    cluster = found.setting.cluster
    yield (
        "Modelled",
        f"generation under other schedules, on simulated engines by latency profile {found.setting.latency.name} on "
        f"{counted(cluster.gpus, f'{cluster.kind} GPU')} in actors of {cluster.gpus_per_actor}.",
    )
    own = trace.meta.get("cluster") or {}
    kinds, gpus = sorted(trace.allocations["kind"].unique()), own.get("nodes", 0) * own.get("gpus_per_node", 0)
    if kinds != [cluster.kind] or gpus not in (0, cluster.gpus):
        had = f"{counted(gpus, 'GPU') if gpus else 'an unknown number of GPUs'} of kind {' and '.join(kinds)}"
        yield "Not the run's own", f"the GPUs on which other schedules are modelled: the run had {had}."
    if found.calibrated.steps:
        yield (
            "Calibrated",
            calibrated_by(
                found.calibrated,
                "what prefill and decoding took and what the profile says of the same responses on the same actors",
            )
            + " Starts and syncs are as in the trace.",
        )
    else:
        yield (
            "Not calibrated",
            "no step tells which actor decoded what from beginning to end, so the profile is taken at its word.",
        )


def _fixed(found: ExecutedRunFindings) -> str:
    sums = found.took[["time_s", "gpu_s", "fixed_s", "fixed_gpu_s"]].sum()
    return (
        f"No schedule of generation changes the {number(sums['fixed_s'] / len(found.took), 's')} of a step outside generation "
        f"({max(0.0, sums['fixed_s']) / sums['time_s']:.0%} of its time), nor {sums['fixed_gpu_s'] / sums['gpu_s']:.0%} of the "
        "GPU-seconds that were billed: preparing, learning and whatever else came before or after it. They are part of both "
        "sides of every share."
    )


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
