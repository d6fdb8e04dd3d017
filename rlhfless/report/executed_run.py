"""Report sections about an executed run: what it did, read from its trace, and what other schedules would have saved.

Inputs are a trace and the findings of ``report.executed_study``; output are sections of the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from rlhfless import plots
from rlhfless.analysis import billed_uses, evenly
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.lengths import MAX_SVG_POINTS
from rlhfless.plots.style import counted, number, usd
from rlhfless.report.executed_study import ExecutedRunFindings
from rlhfless.report.log_checks import calibrated_by
from rlhfless.trace import Trace, allocation_metrics, decode_capacity, step_metrics
from rlhfless.trace.metrics.step_metrics import total_usd

MAX_TIMELINES = 12
MAX_SPANS = 40_000  # bars of all timelines that can be chosen in one place; above, they become heatmaps


def executed_section(page: Page, trace: Trace, facts: Iterable[tuple[str, str]] = ()) -> None:
    """Add time, cost, GPU-seconds by use, idle GPUs and lengths of a trace with allocations, and the run's ``facts``."""
    page.section("Where the time went")
    page.figure(plots.plot_overview(billed_uses(trace)))
    page.basis(_basis_of_execution(trace))
    page.facts(facts)
    metrics = step_metrics(trace)
    total = metrics[["time_s", "gpu_seconds", "idle_gpu_seconds"]].sum(min_count=1).astype(float)
    share = total["idle_gpu_seconds"] / total["gpu_seconds"] if total["gpu_seconds"] > 0 else 0.0
    empty = decode_capacity(allocation_metrics(trace)).empty_share
    cards = [
        ("time, all steps", number(total["time_s"], "s", 5)),
        ("GPU-seconds billed", number(total["gpu_seconds"], digits=5)),
        ("idle GPU-seconds", f"{number(total['idle_gpu_seconds'], digits=5)} ({share:.1%})"),
        ("of the paid decode capacity stood empty", "" if math.isnan(empty) else f"{empty:.1%}"),
        ("cost", usd(total_usd(metrics))),
    ]
    page.cards([card for card in cards if card[1]])
    _levers_table(page, trace)
    page.figure(plots.plot_steps(trace))
    if not plots.lengths_info(trace).missing:
        steps = _steps(trace)
        of_steps = {f"step {steps[-1]}": steps[-1], "all steps": None}
        lengths = {name: plots.plot_lengths(trace, step, max_points=MAX_SVG_POINTS) for name, step in of_steps.items()}
        page.choice("Lengths of", lengths)


def executed_timelines(page: Page, trace: Trace) -> None:
    """Add the timelines of the steps that were executed."""
    page.heading("As executed")
    steps = _steps(trace)
    shown = evenly(steps, MAX_TIMELINES)
    if len(shown) < len(steps):
        page.text(f"The menu offers {len(shown)} of {len(steps):,} steps, evenly spaced.")
    max_spans = MAX_SPANS // len(shown)
    roles = trace.allocations["role"]
    generates = [role for role in roles.unique() if role in ("decode", "prefill")] or list(roles.unique())
    timelines = {f"step {step}": plots.plot_timeline(trace, step, roles=generates, max_spans=max_spans) for step in shown}
    page.choice("Step", timelines, f"step {shown[-1]}")
    if set(roles) - set(generates):
        other_roles = ", ".join(sorted(set(roles) - set(generates)))
        page.text(f"The timelines show generation only. Time and cost are of whole steps, including {other_roles} GPUs.")


def _steps(trace: Trace) -> list[int]:
    return sorted(int(step) for step in trace.allocations["step"].unique())


def _levers_table(page: Page, trace: Trace) -> None:
    """Add what each lever of a planned whole step was expected to save, and saved, where the trace says so."""
    levers = trace.meta.get("levers") or []
    if levers:
        rows = [
            (one["lever"], f"{one['expected']:.1%}", f"{one['saved']:.1%}") if one["used"] else (one["lever"], "not used", "")
            for one in levers
        ]
        page.table("Levers of the plan, each left out alone", ("lever", "expected to save", "saved"), rows)


def basis_of_savings(trace: Trace, findings: ExecutedRunFindings) -> Iterator[tuple[str, str]]:
    """Return where the savings of an executed run come from, in words."""
    yield "From the trace", "time and billed GPU-seconds of the steps, and their phases outside generation."
    cluster = findings.setting.cluster
    yield (
        "Modelled",
        f"generation under other schedules, on simulated engines with latency profile {findings.setting.latency.name}, on "
        f"{counted(cluster.gpus, f'{cluster.kind} GPU')}, {cluster.gpus_per_actor} per actor.",
    )
    recorded = trace.meta.get("cluster") or {}
    kinds, gpus = sorted(trace.allocations["kind"].unique()), recorded.get("nodes", 0) * recorded.get("gpus_per_node", 0)
    if kinds != [cluster.kind] or gpus not in (0, cluster.gpus):
        had = f"{counted(gpus, 'GPU') if gpus else 'an unknown number of GPUs'} of kind {' and '.join(kinds)}"
        yield "Other GPUs", f"the run had {had}; other schedules are modelled on the GPUs named above."
    if findings.calibrated.steps:
        yield (
            "Calibrated",
            calibrated_by(
                findings.calibrated,
                "measured to simulated time, for prefill and decoding of the same responses on the same actors",
            )
            + " Times of starts and weight syncs are those of the trace.",
        )
    else:
        yield (
            "Not calibrated",
            "the profile is used unchanged. In every step responses migrated, actors are unknown, or more actors ran than fit.",
        )


def fixed_in_words(findings: ExecutedRunFindings) -> str:
    """Return in words what no schedule of generation changes."""
    sums = findings.took[["time_s", "gpu_s", "fixed_s", "fixed_gpu_s"]].sum()
    return (
        "Phases outside generation, such as preparation and learning, take "
        f"{number(sums['fixed_s'] / len(findings.took), 's')} of a step "
        f"({max(0.0, sums['fixed_s']) / sums['time_s']:.0%} of its time) and "
        f"{sums['fixed_gpu_s'] / sums['gpu_s']:.0%} of the billed GPU-seconds. Generation schedules leave them unchanged; "
        "every share includes them."
    )


def _basis_of_execution(trace: Trace) -> Iterator[tuple[str, str]]:
    meta = trace.meta
    simulated, device, profile = meta.get("engine") == "simulated", meta.get("device"), meta.get("profile")
    by = f"latency profile {profile}" if profile else "a latency profile that the trace does not name"
    if meta.get("clock") == "wall":
        yield "Measured", f"all times, on {device or 'a device that the trace does not name'}."
    elif meta.get("clock") == "virtual" and meta.get("charging") == "measured":
        yield "Measured", f"the iterations of each actor, on {device or 'a device that the trace does not name'}."
        yield "Modelled", "parallel execution: the actors took turns on one device, and a virtual clock overlaps their times."
    elif meta.get("clock") == "virtual":
        rest = trace.spans[trace.spans["phase"].isin(["prepare", "learn"])]
        learns = rest["detail"].fillna("").str.contains('"clock": "measured"').any()
        what = "generation times" if learns else "all times"
        yield "Modelled", f"{what}, from {by}, on a virtual clock" + ("; no model was run." if simulated else ".")
        if learns:
            yield "Measured", "preparation and learning, on the device that ran them."
    else:
        yield "Unknown", "the trace does not say which clock its times come from."
    if simulated:
        yield "From the log", "response lengths."
    yield "Computed", "GPU-seconds and cost, from the allocations. Idle time is allocated time without a foreground span."
