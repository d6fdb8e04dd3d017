"""Report sections about a logged run: what to change, where its GPU-seconds went, and what it could save.

Turns the findings of ``report.study`` into plain sentences and tables. Nothing is measured: times come from a profile or from
the log itself, and every section names its source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pandas as pd

from rlhfless import plots
from rlhfless.analysis import FRAMEWORK_DEFAULTS, prices_of
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import counted, number, usd
from rlhfless.report.changes import changes_section
from rlhfless.report.drafts import saved_by_drafts
from rlhfless.report.log_checks import checks_table
from rlhfless.report.overlaps import overlaps_section
from rlhfless.report.savings import merged, percent_range, savings_in_short, savings_tables
from rlhfless.report.study import LoggedRunFindings
from rlhfless.report.what_ifs import what_ifs_section


def idle_in_words(findings: LoggedRunFindings) -> Iterator[str]:
    """Return what the GPUs did in sentences, and where the order of dispatch is unknown, how much this changes."""
    setup, cluster, lines = findings.setup, findings.setting.cluster, findings.account.lines
    idle = lines[lines["idle"]].sort_values("gpu_s", ascending=False)
    causes = "; ".join(f"{row.use} {row.share:.0%}" for row in idle.head(3).itertuples() if row.share >= 0.005)
    of_run, of_steps = percent_range(*findings.idle_of_run), percent_range(*findings.idle_shares)
    of_what = "of the run's GPU-seconds" if setup.synchronous else "of the GPU-seconds of generation alone"
    where = "" if of_run == of_steps else f". In the simulated steps, {of_steps} are"
    yield (
        f"On {counted(cluster.gpus, _kind(cluster.kind))} ({counted(cluster.max_actors, 'actor')} of "
        f"{counted(cluster.gpus_per_actor, 'GPU')}), {of_run} {of_what} are idle" + (f"{where}: {causes}." if causes else ".")
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


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def run_sections(
    page: Page, findings: LoggedRunFindings, prices: Mapping[str, float], facts: Iterable[tuple[str, str]] = ()
) -> None:
    """Add the sections: what to change, and folded the GPU-seconds by use, possible savings and what-if variants.

    Args:
        prices: further ones by name, in USD per GPU-hour. facts: names and values of the run.
    """
    changes_section(page, findings)
    page.section("Your run", folded=True)
    page.facts(facts)
    for sentence in idle_in_words(findings):
        page.text(sentence)
    page.basis(_basis(findings))
    if findings.checks:
        checks_table(page, findings.checks)
    page.figure(plots.plot_account(findings.account.lines, findings.account.slot_idle_gpu_s))
    rows = [
        (
            row.use,
            "idle" if row.idle else "work",
            number(row.gpu_s),
            usd(row.usd) or "unknown",
            f"{row.share:.1%}",
            row.basis,
        )
        for row in findings.account.lines.itertuples()
    ]
    head = ("use", "work or idle", "GPU-seconds", "cost", "share", "source of times")
    page.table("GPU-seconds by use, sum of all analysed steps", head, rows, text_columns=2)
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
    page.heading("Planned number of actors per step")
    planned = findings.planned
    unknown = planned["known"] < 0.5
    page.text(
        f"The solver planned {counted(len(planned), 'step')}, with lengths predicted from the prompts' previous responses"
        + (
            f". In {counted(int(unknown.sum()), 'step')} most prompts were new, so their lengths are guesses."
            if unknown.any()
            else "."
        )
    )
    page.figure(plots.plot_planned_steps(planned))
    page.section("Possible savings", folded=True)
    for sentence in savings_in_short(findings):
        page.text(sentence)
    page.text(
        "Shares are of the run's own whole steps. Each range covers resampled steps (5th to 95th percentile) and every way in "
        "which the run may have assigned responses. A negative share means that the schedule is worse than the run's own. "
        "The ranges leave out two errors: that of the latency profile, and the selection bias of naming the best schedule."
    )
    savings_tables(page, findings)
    overlaps_section(page, findings.overlaps, findings.setup)
    _needs(page, findings)
    _what_if(page, findings, prices)
    if findings.ways is not None:
        what_ifs_section(page, findings.ways, findings.setup, drawn=bool(findings.drawn))


def _basis(findings: LoggedRunFindings) -> Iterator[tuple[str, str]]:
    if findings.drawn:
        yield "Drawn", "response lengths, from the mean, the longest and the share of cut responses of every logged step."
        yield "One draw", "all numbers without a range, here and below: of lognormal lengths, with independent responses."
    else:
        yield "From the log", "response lengths."
    yield (
        "Modelled",
        "when each response ran, assigned to actors as in the run, on simulated engines with the latency profile below.",
    )
    for text in findings.setup.assumed:
        yield "Assumed", f"{text}."
    if findings.phases.basis != "unknown":
        yield findings.phases.basis.capitalize(), "seconds of preparation, learning and sending weights."


def _what_if(page: Page, findings: LoggedRunFindings, prices: Mapping[str, float]) -> None:
    page.section("One setting changed", folded=True)
    page.text("Each row changes one setting of the last steps of the log. Time and cost are of generation alone.")
    rows = []
    for row in findings.what_if.itertuples():
        if row.missing:
            rows.append((row.change, "", f"{row.gpus}", f"cannot run: {row.missing}", "", "", "", ""))
            continue
        rows.append(
            (
                row.change, str(row.policy), f"{row.gpus}", f"{row.actors:.3g}", number(row.time_s, "s"),
                f"{row.time_share:.2f}x", number(row.gpu_s), f"{usd(row.usd) or 'unknown'} ({row.usd_share:.2f}x)",
            )
        )  # fmt: skip
    head = ("change", "schedule", "GPUs", "actors", "time", "relative time", "GPU-seconds", "cost (relative)")
    page.table("Generation with one setting changed; 1.00x is the unchanged run", head, merged(rows, 1), text_columns=2)
    kind = findings.setting.cluster.kind
    money = [
        (row.price, number(row.usd_per_gpu_hour, "USD"), usd(row.usd) or "none", row.source)
        for row in at_prices(findings, prices).itertuples()
    ]
    if money:
        page.table(
            f"The unchanged run at other prices of {_kind(kind)}s",
            ("price", "per GPU-hour", "cost", "source"),
            money,
        )
        if not any("spot" in name for name, *_ in money):
            page.text(f"The shipped price table has no spot price of {_kind(kind)}s; state yours with --price spot=USD.")
        page.text("Spot GPUs can be preempted during a step; these costs leave out the work that is lost then.")


def at_prices(findings: LoggedRunFindings, prices: Mapping[str, float]) -> pd.DataFrame:
    """Return what the steps as they were cost at the shipped prices of their GPUs and at further ones.

    Args:
        prices: USD per GPU-hour by name.

    Returns:
        Rows ``price, usd_per_gpu_hour, usd, source``; a price of 0 is left out.
    """
    priced = [
        (row.market, row.usd_per_gpu_hour, f"{row.source}, {row.date}")
        for row in prices_of(findings.setting.cluster.kind).itertuples()
    ]
    priced += [(name, usd, "stated by you") for name, usd in prices.items()]
    gpu_hours = findings.what_if.iloc[0]["gpu_s"] / 3600
    rows = [(name, usd, gpu_hours * usd, source) for name, usd, source in priced if usd]
    return pd.DataFrame(rows, columns=["price", "usd_per_gpu_hour", "usd", "source"])


def _needs(page: Page, findings: LoggedRunFindings) -> None:
    """Say what the schedules need, and which actor sizes were compared."""
    advice, setup = findings.advice, findings.setup
    compared = ", ".join(str(size.gpus_per_actor) for size in advice.sizes)
    one_size = len(advice.sizes) == 1
    page.text(
        (f"Only actors of {counted(advice.sizes[0].gpus_per_actor, 'GPU')} have a profile. " if one_size else
         f"Actors of {compared} GPUs were compared, each with its own profile. ")
        + f"On reserved GPUs, {counted(advice.reserved.replicas, 'replica')} of "
        + f"{counted(advice.reserved.gpus_per_actor, 'GPU')} "
        + f"{_are(advice.reserved.replicas)} the fastest. If GPUs can be released early, "
        + f"{counted(advice.elastic.right_sized, 'replica')} of "
        + f"{counted(advice.elastic.gpus_per_actor, 'GPU')} {_are(advice.elastic.right_sized)} best at time weight "
        + f"{advice.time_weight:g}."
    )  # fmt: skip
    if setup.colocated:
        page.text(
            "This run learns on the GPUs that generate, so fewer replicas would leave the learner fewer GPUs. Releasing GPUs "
            "early pays off only if the learner has GPUs of its own, or if another job can use the released GPUs."
        )
    page.text(
        "Schedules that assign all responses beforehand (random, spread, solver) need only a dispatcher. fold, solver+replan, "
        "rlhfuse and rlhfless migrate running responses, so the engine must support migration."
    )
    for found in findings.drafts:
        page.text(saved_by_drafts(found))
    if findings.router is not None:
        page.text(f"A router can make verl plan every batch with lengths predicted from this log. {findings.router}")
