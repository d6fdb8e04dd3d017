"""Report section on where the GPU time of a run went: GPU-seconds by use, waste, stragglers, and what was measured.

Inputs are the run's trace, as executed or simulated from its log, and its findings; output is a section of the page. What is
simulated is called so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from rlhfless import plots
from rlhfless.analysis import FRAMEWORK_DEFAULTS, Account, evenly
from rlhfless.analysis.assumptions import PROFILE
from rlhfless.analysis.gpu_counts import gpu_in_words
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import counted, number, usd
from rlhfless.report.log_checks import checks_table, contradicted
from rlhfless.report.savings import percent_range
from rlhfless.report.study import Findings
from rlhfless.report.words import EXECUTED, words_of
from rlhfless.trace import Trace, allocation_metrics, decode_capacity, step_metrics
from rlhfless.trace.metrics.step_metrics import total_usd
from rlhfless.trace.schema.prices import AS_STATED
from solver.step.choose import share_text

MAX_STEPS_SHOWN = 12  # of a table of steps, and of a menu of timelines


def time_section(
    page: Page, trace: Trace, account: Account, findings: Findings | None, facts: Iterable[tuple[str, str]] = ()
) -> None:
    """Add the GPU-seconds of a run by use, time, cost and waste, the last responses of its steps, and what was measured.

    Args:
        trace: the run's own, or the likeliest of its completed log. account: its GPU-seconds.
        findings: None where a run has nothing beside its trace. facts: names and values of the run.
    """
    words = words_of(trace)
    page.section(words.heading, folded=words.folded)
    if findings is not None:
        if contradiction := contradicted(findings.times.checks, findings.times.calibrated, words):
            page.text(contradiction)
        for sentence in waste_in_words(findings):
            page.text(sentence)
        if findings.drawn:
            page.text(findings.drawn)
    page.figure(plots.plot_overview(account.lines))
    page.basis(_of_execution(trace) if findings is None or words is EXECUTED else _of_simulation(findings))
    page.facts(facts)
    whole = findings is None or findings.times.whole_steps
    page.cards(_cards(trace, words.steps if whole else f"generation of {words.steps}"))
    if findings is not None and findings.times.checks:
        checks_table(page, findings.times.checks, findings.times.calibrated, words)
    _uses_table(page, account)
    _levers_table(page, trace)
    page.figure(plots.plot_steps(trace))
    if len(account.steps) and not (findings and findings.drawn):  # nobody knows which prompt had a drawn length
        _stragglers(page, account)


def waste_in_words(findings: Findings) -> Iterator[str]:
    """Return what the GPUs did in sentences, and where the order of dispatch is unknown, how much this changes.

    Where no GPU was idle, the figure of the uses says so.
    """
    times, lines = findings.times, findings.account.lines
    setup, words = times.setup, words_of(findings.traces[0])
    idle = lines[lines["kind"] == "idle"]
    if max(findings.idle_shares) > 0:
        causes = "; ".join(f"{row.use} {row.share:.0%}" for row in idle.head(3).itertuples() if row.share >= 0.005)
        of_what = words.of_gpu_seconds if times.whole_steps else "of the GPU-seconds of generation alone"
        shares = percent_range(*findings.idle_shares)
        where = "" if words is EXECUTED else _on_gpus(findings)
        yield f"{where}{shares} {of_what} are idle" + (f": {causes}." if causes else ".")
    if not setup.order_known:
        others = [one.idle_share for one in findings.accounts[1:]]
        yield (
            f"The log does not record the order in which prompts were assigned to actors. In the order of its rows "
            f"{findings.account.idle_share:.1%} of the GPU-seconds are idle; in random orders, "
            f"{sum(others) / len(others):.1%} on average."
        )
    if times.phases.basis == "unknown":
        yield times_unknown(setup.framework)
    elif len(findings.account.steps):
        generation = findings.account.steps["generation_s"].mean()
        yield (
            f"Generation takes {number(generation, 's')} of a step. The other phases take "
            f"{number(times.phases.seconds, 's')} ({times.phases.basis}); scheduling generation does not change them."
        )
    if not setup.synchronous:
        yield (
            "This run trains asynchronously, on responses from older weights, so learning does not wait for the last response "
            "of a step. Learning overlaps generation and is left out here."
        )


def _on_gpus(findings: Findings) -> str:
    """Return on which GPUs a logged run is simulated, as the start of a sentence."""
    times = findings.times
    cluster, learner = times.setting.cluster, times.setup.counted_learner_gpus
    actors = f"room for {counted(cluster.max_actors, 'actor')} of {counted(cluster.gpus_per_actor, 'GPU')}"
    learns = f" and {learner:,} of the learner" if learner else ""
    kind = "GPU" if PROFILE in findings.not_stated else gpu_in_words(cluster.kind)
    return f"On {counted(cluster.gpus, kind)} ({actors}){learns}, "


def times_unknown(framework: str) -> str:
    """Return what to do where the log has no times of preparation and learning; with the framework's option that logs them."""
    logged = FRAMEWORK_DEFAULTS[framework].phase_times if framework in FRAMEWORK_DEFAULTS else ""
    return (
        "The log has no times of preparation and learning, so all shares are of generation alone; those of whole steps are "
        "smaller. State the times with --prepare-s and --learn-s, or import the run's scalar log into the same trace folder"
        + (f": {logged}." if logged else ".")
    )


def _of_simulation(findings: Findings) -> Iterator[tuple[str, str]]:
    if findings.drawn:
        yield "Drawn", "response lengths, from the mean, the longest and the share of cut responses of every logged step."
        yield "One draw", "all numbers without a range, here and below, are of one draw of independent lognormal lengths."
    else:
        yield "From the log", "response lengths."
    yield (
        "Modelled",
        "when each response ran, assigned to actors as in the run, on simulated engines with the latency profile below.",
    )
    if findings.times.phases.basis != "unknown":
        yield findings.times.phases.basis.capitalize(), "seconds of preparation, learning and sending weights."


def _of_execution(trace: Trace) -> Iterator[tuple[str, str]]:
    meta = trace.meta
    simulated, device, profile = meta.get("engine") == "simulated", meta.get("device"), meta.get("profile")
    by = f"latency profile {profile}" if profile else "a latency profile that the trace does not name"
    if meta.get("clock") == "wall":
        yield "Measured", f"all times, on {device or 'a device that the trace does not name'}."
    elif meta.get("clock") == "virtual" and meta.get("charging") == "measured":
        yield "Measured", f"the iterations of each actor, on {device or 'a device that the trace does not name'}."
        yield "Modelled", "running in parallel: the actors took turns on one device, and a virtual clock overlaps their times."
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
    price = f" ({meta[AS_STATED]})" if AS_STATED in meta else ""
    idle = "A GPU is idle while it is allocated and computes nothing."
    yield "Computed", f"GPU-seconds and cost{price}, from the allocations. {idle}"


def _cards(trace: Trace, which: str) -> list[tuple[str, str]]:
    metrics = step_metrics(trace)
    total = metrics[["time_s", "gpu_seconds", "idle_gpu_seconds"]].sum(min_count=1).astype(float)
    share = total["idle_gpu_seconds"] / total["gpu_seconds"] if total["gpu_seconds"] > 0 else 0.0
    empty = decode_capacity(allocation_metrics(trace)).empty_share
    cards = [
        (f"time, {which}", number(total["time_s"], "s", 5)),
        (f"GPU-seconds, {which}", number(total["gpu_seconds"], digits=5)),
        ("idle GPU-seconds", f"{number(total['idle_gpu_seconds'], digits=5)} ({share:.1%})" if share else ""),
        ("of the paid batch slots were empty", "" if math.isnan(empty) else f"{empty:.1%}"),
        ("cost", usd(total_usd(metrics))),
    ]
    return [card for card in cards if card[1]]


def _uses_table(page: Page, account: Account) -> None:
    priced = bool((account.lines["usd"] > 0).any())
    rows = [
        (
            row.use, row.kind, number(row.gpu_s), *([usd(row.usd)] if priced else []), f"{row.share:.1%}", row.basis,
        )
        for row in account.lines.itertuples()
    ]  # fmt: skip
    steps = counted(len(account.steps), "step") if len(account.steps) else "all steps"
    head = ("use", "work or idle", "GPU-seconds", *(["cost"] if priced else []), "share", "where its times come from")
    page.table(f"GPU-seconds by use, sum of {steps}", head, rows, text_columns=2)
    if account.slot_idle_gpu_s:
        page.text(
            f"A slot is room for one response in a replica's batch. Empty slots amount to "
            f"{number(account.slot_idle_gpu_s)} GPU-seconds. They do not count as idle: decoding is bound by memory "
            "bandwidth, so a GPU with a partly filled batch is busy."
        )


def _levers_table(page: Page, trace: Trace) -> None:
    """Add what each lever of a planned whole step was expected to save, and saved, where the trace says so."""
    levers = trace.meta.get("levers") or []
    if levers:
        rows = [
            (one["lever"], share_text(one["expected"]), share_text(one["saved"])) if one["used"]
            else (one["lever"], "not used", "")
            for one in levers
        ]  # fmt: skip
        page.table(
            "What each optimisation of the plan saves: the plan against the same without it",
            ("optimisation", "expected to save", "saved"),
            rows,
        )


def _stragglers(page: Page, account: Account) -> None:
    page.heading("Stragglers")
    columns = ("step", "prompt", "sample", "tokens", "median tokens", "generation (s)", "of it after 90% were complete (s)")
    shown = set(evenly(account.steps["step"].tolist(), MAX_STEPS_SHOWN))
    last = [
        (
            str(row.step), str(row.prompt_id), str(row.sample), f"{row.response_tokens:,}", f"{row.median_tokens:,.0f}",
            number(row.generation_s), number(row.tail_s),
        )
        for row in account.steps.itertuples() if row.step in shown
    ]  # fmt: skip
    page.table(
        "The last response of each step, and how much of the generation came after 90% of the responses were complete",
        columns,
        last,
        2,
    )
