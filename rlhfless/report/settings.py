"""Report text on other settings of a run: numbers, sizes and kinds of its replicas, drafts, a router, and prices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rlhfless import plots
from rlhfless.analysis import FRAMEWORK_DEFAULTS, RunSetup, configuration_lines
from rlhfless.analysis.assumptions import PRICE, PROFILE
from rlhfless.analysis.gpu_counts import gpu_in_words
from rlhfless.latency import list_prices
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import counted, number, usd
from rlhfless.report.drafts import draft_lines, saved_by_drafts
from rlhfless.report.not_stated import profile_in_words
from rlhfless.report.savings import percent_range
from rlhfless.report.splits import splits_part
from rlhfless.report.study import Findings


def settings_part(page: Page, findings: Findings) -> None:
    """Add other numbers, sizes and kinds of replicas, divisions of the GPUs, the plan of every step, drafts and a router."""
    _replicas(page, findings)
    splits_part(page, findings)
    for found in findings.drafts:
        page.text(saved_by_drafts(found))
        if lines := draft_lines(found, findings.times.setup.framework):
            page.code("", lines)
    if findings.router is not None:
        page.text(f"With a router, verl can plan every batch by lengths predicted from this log. {findings.router}")
    page.heading("How many actors the solver plans per step")
    planned = findings.planned
    unknown = planned["known"] < 0.5
    page.text(
        f"The solver planned {counted(len(planned), 'step')}, with lengths predicted from earlier responses to the same prompts"
        + (
            f". In {counted(int(unknown.sum()), 'step')} most prompts were new, so their lengths are guesses."
            if unknown.any()
            else "."
        )
    )
    page.figure(plots.plot_steps(planned))


def _replicas(page: Page, findings: Findings) -> None:
    page.heading("More, fewer or other replicas")
    if not findings.times.setup.synchronous:
        page.text("Numbers of replicas are not compared, because this run learns while it generates.")
        return
    counts = findings.counts
    own = next(counts.itertuples())
    rows = [_row(findings, own, one) for one in counts.itertuples()]
    lines = any(row[-1] for row in rows)
    head = (
        "GPUs",
        "replicas",
        "whole steps (s)" if findings.times.whole_steps else "generation (s)",
        "time saved",
        "cost saved",
        "what to set in your framework",
    )
    first, how = (
        ("the run's GPUs first", "prompts are split equally")
        if findings.times.own_plans else ("the run's own first", "responses are assigned as the run did")
    )  # fmt: skip
    page.table(
        f"The simulated steps on other replicas, {first}: {how}, and all GPUs are held until a step ends",
        head if lines else head[:-1], [row if lines else row[:-1] for row in rows], text_columns=2,
    )  # fmt: skip
    page.text(" ".join(_notes(findings)))


def _row(findings: Findings, own: Any, one: Any) -> tuple[str, ...]:
    """Return a row of the table from rows of ``counts_frame``."""
    setup, per_node = findings.times.setup, findings.times.setting.cluster.gpus_per_node
    lines: tuple[str, ...] = ()
    if one.Index and _has_lines(setup):
        so = {_plain(line) for line in configuration_lines(setup.framework, own.replicas, own.gpus_per_actor, per_node)}
        theirs = configuration_lines(setup.framework, one.replicas, one.gpus_per_actor, per_node)
        lines = tuple(_plain(line) for line in theirs if _plain(line) not in so)
    saved = ("", "")
    if one.Index or findings.own_took is not None:
        saved = _share(one.time_saved_low, one.time_saved_high), _share(one.cost_saved_low, one.cost_saved_high)
    kind = "GPU" if PROFILE in findings.not_stated else gpu_in_words(one.kind)
    gpus, replicas = counted(one.gpus, kind), f"{one.replicas:,} of {counted(one.gpus_per_actor, 'GPU')}"
    return gpus, replicas, number(one.time_s), *saved, " ".join(lines)


def _plain(line: str) -> str:
    return line.partition("#")[0].strip()


def _share(low: float, high: float) -> str:
    return "unknown" if math.isnan(low) else percent_range(low, high)


def _notes(findings: Findings) -> Iterator[str]:
    yield ("Ranges are the 5th to 95th percentile over resampled steps, and cover every assignment that the run may have used.")
    times, setup = findings.times, findings.times.setup
    if (took := findings.own_took) is not None and len(took):
        otherwise = ", as it planned them otherwise" if times.own_plans else ""
        yield (
            f"Savings are relative to what the run itself took for these steps: {number(took['time_s'].sum(), 's')} and "
            f"{number(took['gpu_s'].sum())} GPU-seconds{otherwise}."
        )
    if setup.counted_learner_gpus:
        yield f"GPUs include the {setup.counted_learner_gpus:,} of the learner."
    if setup.colocated and not times.phases.seconds and times.phases.basis == "unknown":
        yield "Preparation and learning also take longer on fewer GPUs; the log does not say how long."
    elif setup.colocated and setup.learner_gpus:
        yield f"Preparation and learning take as long on any number of GPUs: they use {counted(setup.learner_gpus, 'GPU')}."
    elif setup.colocated and times.phases.seconds:
        yield "Preparation and learning are taken to need the same GPU-seconds on any number of GPUs."
    assumed = findings.not_stated
    if PROFILE in assumed:
        yield (
            f"Times are of {profile_in_words(times.setting.latency.name)}, which stands in for your model and GPUs. Name your "
            "own with --profile to compare other sizes of replicas and kinds of GPUs."
        )
    if times.setting.cluster.usd_per_gpu_hour > 0 and findings.counts["kind"].nunique() > 1:
        whose = "their list prices" + ("" if PRICE in assumed else ", scaled as your price is to the list price of your own")
        yield f"Other kinds of GPUs cost {whose}."
    sizes = findings.gpu_counts.table[["gpu_kind", "gpus_per_actor"]].drop_duplicates()
    if len(sizes) == 1 and PROFILE not in assumed:
        size = counted(int(sizes["gpus_per_actor"].iloc[0]), "GPU")
        yield f"Only replicas of {size} have a latency profile, so no other size was compared."
    if not times.executed and setup.framework not in FRAMEWORK_DEFAULTS:
        yield "The framework of the log is unknown, so there are no lines of its configuration."
    elif not times.executed and not _has_lines(setup):
        yield "Lines of the configuration are left out, because those that we know are of a learner on the GPUs of the actors."


def _has_lines(setup: RunSetup) -> bool:
    """Whether the learner's GPUs are those that the lines of its framework are of."""
    default = FRAMEWORK_DEFAULTS.get(setup.framework)
    return default is not None and default.colocated == setup.colocated


def prices_table(page: Page, what: str, gpu_hours: float, kind: str, prices: Mapping[str, float], *, named: bool) -> None:
    """Add what some GPU-hours cost at the list prices of their kind and at further ones.

    Args:
        what: took so many hours, in words. prices: further ones by name, in USD per GPU-hour. named: the kind is the run's, and
            not that of a profile that stands in, whose list price says nothing of the run.
    """
    priced = [
        (row["market"], float(row["usd_per_gpu_hour"]), f"{row['source']}, {row['date']}")
        for row in list_prices() if named and row["kind"] == kind
    ]  # fmt: skip
    priced += [(name, price, "stated by you") for name, price in prices.items()]
    rows = [(name, number(price, "USD"), usd(gpu_hours * price), source) for name, price, source in priced if price > 0]
    if not rows:
        return
    page.table(
        f"{what} at other prices" + (f" of {kind.upper()} GPUs" if named else ""),
        ("price", "per GPU-hour", "cost", "source"), rows,
    )  # fmt: skip
    if named and not any("spot" in name for name, *_ in rows):
        page.text(
            f"The shipped price table has no spot price of {kind.upper()} GPUs; state yours with --usd-per-gpu-hour spot=USD."
        )
    page.text("Spot GPUs can be preempted during a step; these costs leave out the work that is lost then.")
