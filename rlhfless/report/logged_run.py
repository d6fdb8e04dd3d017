"""Report section on where the GPU time of a logged run went: by simulation of its own schedule, and what its log measured.

Nothing here is measured but what the table of measurements holds: times come from a profile that is scaled to the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rlhfless import plots
from rlhfless.analysis import FRAMEWORK_DEFAULTS
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import counted, number, usd
from rlhfless.report.log_checks import checks_table, contradicted
from rlhfless.report.savings import percent_range
from rlhfless.report.study import LoggedRunFindings


def logged_time_section(page: Page, findings: LoggedRunFindings, facts: Iterable[tuple[str, str]] = ()) -> None:
    """Add the GPU-seconds of a logged run by use, the last responses of its steps, and what its log measured.

    Args:
        facts: names and values of the run.
    """
    page.section("Where the time went, by simulation of the run's own schedule", folded=True)
    if contradiction := contradicted(findings.checks, findings.calibrated):
        page.text(contradiction)
    for sentence in idle_in_words(findings):
        page.text(sentence)
    if findings.drawn:
        page.text(findings.drawn)
    page.figure(plots.plot_account(findings.account.lines, findings.account.slot_idle_gpu_s))
    page.basis(_basis(findings))
    page.facts(facts)
    if findings.checks:
        checks_table(page, findings.checks)
    priced = findings.setting.cluster.usd_per_gpu_hour > 0
    rows = [
        (
            row.use, "idle" if row.idle else "work", number(row.gpu_s), *([usd(row.usd)] if priced else []),
            f"{row.share:.1%}", row.basis,
        )
        for row in findings.account.lines.itertuples()
    ]  # fmt: skip
    head = ("use", "work or idle", "GPU-seconds", *(["cost"] if priced else []), "share", "source of times")
    page.table("GPU-seconds by use, sum of all simulated steps", head, rows, text_columns=2)
    page.text(
        f"A slot is room for one response in a replica's batch. Empty slots amount to "
        f"{number(findings.account.slot_idle_gpu_s)} GPU-seconds. They do not count as idle: decoding is bound by memory "
        "bandwidth, so a GPU with a partly filled batch is busy."
    )
    page.heading("Stragglers: the last response of each step")
    columns = ("step", "prompt", "sample", "tokens", "median tokens", "generation (s)", "after 90% were complete (s)")
    last = [
        (
            str(row.step), str(row.prompt_id), str(row.sample), f"{row.response_tokens:,}", f"{row.median_tokens:,.0f}",
            number(row.generation_s), number(row.tail_s),
        )
        for row in findings.account.steps.itertuples()
    ]  # fmt: skip
    page.table(
        "The last response of each step, and the time of generation after 90% of its responses were complete", columns, last, 2
    )


def idle_in_words(findings: LoggedRunFindings) -> Iterator[str]:
    """Return what the GPUs did in sentences, and where the order of dispatch is unknown, how much this changes."""
    setup, cluster, lines = findings.setup, findings.setting.cluster, findings.account.lines
    idle = lines[lines["idle"]].sort_values("gpu_s", ascending=False)
    causes = "; ".join(f"{row.use} {row.share:.0%}" for row in idle.head(3).itertuples() if row.share >= 0.005)
    shares = percent_range(*findings.idle_shares)
    of_what = "of the GPU-seconds of the simulated steps" if setup.synchronous else "of the GPU-seconds of generation alone"
    yield (
        f"On {counted(cluster.gpus, _kind(cluster.kind))} ({counted(cluster.max_actors, 'actor')} of "
        f"{counted(cluster.gpus_per_actor, 'GPU')}), {shares} {of_what} are idle" + (f": {causes}." if causes else ".")
    )
    if not setup.order_known:
        yield (
            f"The log does not record the order in which prompts were assigned to actors. In the order of its rows "
            f"{findings.account.idle_share:.1%} of the GPU-seconds are idle; in random orders, "
            f"{sum(order.idle_share for order in findings.shuffled) / len(findings.shuffled):.1%} on average."
        )
    if findings.phases.basis == "unknown":
        yield times_unknown(setup.framework)
    else:
        generation = findings.account.steps["generation_s"].mean()
        yield (
            f"Generation takes {number(generation, 's')} of a step. The other phases take "
            f"{number(findings.phases.seconds, 's')} ({findings.phases.basis}), which generation schedules leave unchanged."
        )
    if not setup.synchronous:
        yield (
            "This run trains asynchronously, on responses of older weights, so learning does not wait for a step's last "
            "response. Learning overlaps generation and is left out here."
        )


def times_unknown(framework: str) -> str:
    """Return what to do where the log has no times of preparation and learning; with the framework's option that logs them."""
    logged = FRAMEWORK_DEFAULTS[framework].phase_times if framework in FRAMEWORK_DEFAULTS else ""
    return (
        "The log has no times of preparation and learning, so all shares are of generation alone; shares of whole steps are "
        "smaller. State the times with --prepare-s and --learn-s, or import the run's scalar log into the same trace folder"
        + (f": {logged}." if logged else ".")
    )


def _kind(kind: str) -> str:
    return "emulated GPU" if kind == "cpu" else f"{kind.upper()} GPU"


def _basis(findings: LoggedRunFindings) -> Iterator[tuple[str, str]]:
    if findings.drawn:
        yield "Drawn", "response lengths, from the mean, the longest and the share of cut responses of every logged step."
        yield "One draw", "all numbers without a range, here and below, are of lognormal lengths, with independent responses."
    else:
        yield "From the log", "response lengths."
    yield (
        "Modelled",
        "when each response ran, assigned to actors as in the run, on simulated engines with the latency profile below.",
    )
    if findings.phases.basis != "unknown":
        yield findings.phases.basis.capitalize(), "seconds of preparation, learning and sending weights."
