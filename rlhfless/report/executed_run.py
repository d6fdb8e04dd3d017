"""Report sections about an executed run: what it did, read from its trace, and what other schedules would have saved.

Inputs are a trace and the findings of ``report.study``; output are sections of the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from rlhfless import plots
from rlhfless.analysis import Change, billed_uses, evenly, ranked
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.lengths import MAX_SVG_POINTS
from rlhfless.plots.style import counted, number, usd
from rlhfless.report.amounts import Amounts, more_than_idle
from rlhfless.report.changes import list_changes
from rlhfless.report.executed_study import ExecutedRunFindings
from rlhfless.report.log_checks import calibrated_by, checks_table
from rlhfless.report.not_stated import profile_in_words
from rlhfless.report.savings import percent, percent_range, savings_in_short, savings_tables
from rlhfless.report.schedules import SHOWN, to_do
from rlhfless.trace import Trace, allocation_metrics, decode_capacity, step_metrics
from rlhfless.trace.metrics.step_metrics import total_usd

MAX_TIMELINES = 12
MAX_SPANS = 40_000  # bars of all timelines that can be chosen in one place; above, they become heatmaps


def executed_first_screen(page: Page, trace: Trace, findings: ExecutedRunFindings | None) -> None:
    """Add what an executed run cost and wasted, how sure this is, where its GPU time went, and what to change.

    Args:
        findings: None where no plan is possible.
    """
    metrics = step_metrics(trace)
    total = metrics[["gpu_seconds", "idle_gpu_seconds"]].sum().astype(float)
    amounts = Amounts(float(total["gpu_seconds"]) / 3600.0, total_usd(metrics))
    idle = float(total["idle_gpu_seconds"] / total["gpu_seconds"]) if total["gpu_seconds"] > 0 else 0.0
    changes = [] if findings is None or findings.given_back.empty else ranked(_change(trace, findings))
    page.section("In short, by simulation")
    page.headline(_cost_of_execution(trace, amounts, idle, changes))
    condition = " Savings hold where released GPUs are not paid for, or others use them." if changes else ""
    page.text(f"How sure: {_how_sure(trace)}{condition}")
    if changes and changes[0].mean > idle:
        page.text(more_than_idle(idle))
    page.figure(plots.plot_overview(billed_uses(trace)))
    list_changes(page, changes, amounts)


def _cost_of_execution(trace: Trace, amounts: Amounts, idle: float, changes: Sequence[Change]) -> str:
    steps = counted(trace.allocations["step"].nunique(), "step")
    total = f"cost {amounts.of(1.0)} ({amounts.in_gpu_time})" if amounts.is_priced else f"took {amounts.in_gpu_time}"
    paid = f"{f'{amounts.of(idle)} ({percent(idle)})' if idle >= 0.0005 else 'none'} of it went to idle GPUs"
    change = (
        f"{changes[0].what}, and save {amounts.between(changes[0].low, changes[0].high)} "
        f"({percent_range(changes[0].low, changes[0].high)})"
        if changes
        else "no change that was simulated is certain to save anything"
    )
    return f"Your {steps} {total}; {paid}; {change}."


def _how_sure(trace: Trace) -> str:
    clock, profile = trace.meta.get("clock"), trace.meta.get("profile")
    if clock == "wall":
        times = "cost and waiting were measured"
    elif clock == "virtual" and trace.meta.get("charging") == "measured":
        times = "iterations were measured and overlapped on a virtual clock"
    elif clock == "virtual":
        times = f"times are those of {f'latency {profile_in_words(str(profile))}' if profile else 'a latency profile'}"
    else:
        times = "the trace does not say which clock its times come from"
    return f"{times}; savings are simulated; where one is a range, it is over resampled steps."


def _change(trace: Trace, findings: ExecutedRunFindings) -> Iterator[Change]:
    """The schedule that is advised, unless the run had it or one that ties with it."""
    best, own = findings.tied.iloc[0], trace.meta.get("policy")
    if own in set(findings.tied["policy"]):
        return
    trained = own and trace.meta.get("config")  # what simulated or executed plans has no such option
    lines = (f"rlhfless train ... --policy {best['policy']}",) if trained else ()
    how = SHOWN.get(str(best["policy"]), "see the schedules below")
    needs = (
        f"{best['policy']}: {how}. It saves money only where GPUs that are released early are not paid for, or other jobs use "
        "them."
    )
    low, mean, high = (float(best[f"GPU-seconds {end}"]) for end in ("low", "mean", "high"))
    what = to_do(best, findings.replicas) or "generate by another schedule"
    yield Change(what, lines, low, mean, high, float(best["time mean"]), needs)


def executed_section(page: Page, trace: Trace, facts: Iterable[tuple[str, str]] = ()) -> None:
    """Add time, cost, idle GPUs, timelines and lengths of a trace with allocations; before them the run's ``facts``."""
    page.section("What was executed", folded=True)
    page.facts(facts)
    page.basis(_basis_of_execution(trace))
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
    steps = sorted(int(step) for step in trace.allocations["step"].unique())
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
        page.text(f"The timeline shows generation only. Time and cost below are of whole steps, including {other_roles} GPUs.")
    page.figure(plots.plot_steps(trace))
    if not plots.lengths_info(trace).missing:
        of_steps = {f"step {steps[-1]}": steps[-1], "all steps": None}
        lengths = {name: plots.plot_lengths(trace, step, max_points=MAX_SVG_POINTS) for name, step in of_steps.items()}
        page.choice("Lengths of", lengths)


def _levers_table(page: Page, trace: Trace) -> None:
    """Add what each lever of a planned whole step was expected to save, and saved, where the trace says so."""
    levers = trace.meta.get("levers") or []
    if levers:
        rows = [
            (one["lever"], f"{one['expected']:.1%}", f"{one['saved']:.1%}") if one["used"] else (one["lever"], "not used", "")
            for one in levers
        ]
        page.table("Levers of the plan, each left out alone", ("lever", "expected to save", "saved"), rows)


def executed_savings_section(page: Page, trace: Trace, findings: ExecutedRunFindings) -> None:
    """Add what other schedules would have saved of the executed and billed time, and which part no schedule changes."""
    page.section("Possible savings", folded=True)
    page.basis(_basis_of_savings(trace, findings))
    for sentence in (*savings_in_short(findings), _fixed(findings)):
        page.text(sentence)
    if trace.allocations["usd_per_gpu_s"].nunique() > 1:
        page.text(
            "The run's GPUs have different prices. The shares below are of GPU-seconds; shares of the cost in USD differ."
        )
    page.text(
        f"Shares are of the time and the billed GPU-seconds of {counted(len(findings.took), 'step')}. Each range is the 5th to "
        "95th percentile over resampled steps. A negative share means that the schedule is worse than the executed one. "
        "The ranges leave out two errors: that of the latency profile, and the selection bias of naming the best schedule."
    )
    savings_tables(page, findings)
    if findings.checks:
        checks_table(page, findings.checks)


def _basis_of_savings(trace: Trace, findings: ExecutedRunFindings) -> Iterator[tuple[str, str]]:
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


def _fixed(findings: ExecutedRunFindings) -> str:
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
