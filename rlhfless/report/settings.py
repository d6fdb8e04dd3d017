"""Report text on other settings of a logged run: numbers, sizes and kinds of its replicas, drafts, a router, and prices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from rlhfless import plots
from rlhfless.analysis import FRAMEWORK_DEFAULTS, configuration_lines
from rlhfless.analysis.gpu_counts import GpuCount
from rlhfless.latency import list_prices
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import counted, number, usd
from rlhfless.report.drafts import draft_lines, saved_by_drafts
from rlhfless.report.savings import percent_range
from rlhfless.report.study import LoggedRunFindings


def settings_part(page: Page, findings: LoggedRunFindings) -> None:
    """Add other numbers, sizes and kinds of replicas, the plan of every step, drafts and a router."""
    _replicas(page, findings)
    for found in findings.drafts:
        page.text(saved_by_drafts(found))
        if lines := draft_lines(found, findings.setup.framework):
            page.code("", lines)
    if findings.router is not None:
        page.text(f"A router can make verl plan every batch with lengths predicted from this log. {findings.router}")
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


def _replicas(page: Page, findings: LoggedRunFindings) -> None:
    page.heading("Other numbers, sizes and kinds of replicas")
    if not findings.setup.synchronous:
        page.text("Numbers of replicas are not compared, because this run learns while it generates.")
        return
    own, *others = findings.gpu_counts
    rows = [_row(findings, own, one) for one in (own, *others)]
    lines = any(row[-1] for row in rows)
    head = ("GPUs", "replicas", "whole steps (s)", "time saved", "cost saved", "lines of the configuration")
    page.table(
        "The simulated steps with other replicas, the run's own first: responses are assigned as the run did, and all GPUs are "
        "held until a step ends",
        head if lines else head[:-1], [row if lines else row[:-1] for row in rows], text_columns=2,
    )  # fmt: skip
    page.text(" ".join(_notes(findings)))


def _row(findings: LoggedRunFindings, own: GpuCount, one: GpuCount) -> tuple[str, ...]:
    setup, per_node = findings.setup, findings.setting.cluster.gpus_per_node
    lines: tuple[str, ...] = ()
    if one is not own:
        so = {_plain(line) for line in configuration_lines(setup.framework, own.replicas, own.gpus_per_actor, per_node)}
        theirs = configuration_lines(setup.framework, one.replicas, one.gpus_per_actor, per_node)
        lines = tuple(_plain(line) for line in theirs if _plain(line) not in so)
    saved = ("", "") if one is own else (_share(one.saved_time(own)), _share(one.saved_cost(own)))
    gpus, replicas = counted(one.gpus, f"{one.kind.upper()} GPU"), f"{one.replicas:,} of {counted(one.gpus_per_actor, 'GPU')}"
    return gpus, replicas, number(one.seconds), *saved, " ".join(lines)


def _plain(line: str) -> str:
    return line.partition("#")[0].strip()


def _share(saved: tuple[float, float, float]) -> str:
    return "unknown" if math.isnan(saved[1]) else percent_range(saved[0], saved[2])


def _notes(findings: LoggedRunFindings) -> Iterator[str]:
    yield (
        "Ranges are the 5th to 95th percentile over resampled steps, and cover every way in which the run may have assigned "
        "responses."
    )
    if findings.setup.colocated:
        yield (
            "Preparation and learning are taken to need the same GPU-seconds on any number of GPUs."
            if findings.phases.seconds
            else "Preparation and learning also take longer on fewer GPUs; the log does not say how long."
        )
    if len({(one.kind, one.gpus_per_actor) for one in findings.gpu_counts}) == 1:
        size = counted(findings.gpu_counts[0].gpus_per_actor, "GPU")
        yield f"Only replicas of {size} have a latency profile, so no other size was compared."
    if findings.setup.framework not in FRAMEWORK_DEFAULTS:
        yield "The framework of the log is unknown, so there are no lines of its configuration."


def prices_table(page: Page, what: str, gpu_hours: float, kind: str, prices: Mapping[str, float]) -> None:
    """Add what some GPU-hours cost at the list prices of their kind and at further ones.

    Args:
        what: took so many hours, in words. prices: further ones by name, in USD per GPU-hour.
    """
    priced = [
        (row["market"], float(row["usd_per_gpu_hour"]), f"{row['source']}, {row['date']}")
        for row in list_prices() if row["kind"] == kind
    ]  # fmt: skip
    priced += [(name, price, "stated by you") for name, price in prices.items()]
    rows = [(name, number(price, "USD"), usd(gpu_hours * price), source) for name, price, source in priced if price > 0]
    if not rows:
        return
    page.table(
        f"{what} at other prices of {kind.upper()} GPUs",
        ("price", "per GPU-hour", "cost", "source"), rows,
    )  # fmt: skip
    if not any("spot" in name for name, *_ in rows):
        page.text(f"The shipped price table has no spot price of {kind.upper()} GPUs; state yours with --price spot=USD.")
    page.text("Spot GPUs can be preempted during a step; these costs leave out the work that is lost then.")
