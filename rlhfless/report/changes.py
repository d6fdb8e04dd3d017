"""Report section on what to change: lines of the framework's own configuration, each with what it saves, the largest first.

``changes_of`` collects the changes of all parts of the findings. Another part adds its own to ``LoggedRunFindings.further``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rlhfless.analysis import FRAMEWORK_DEFAULTS, Change, GpuCount, configuration_lines, ranked
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import counted
from rlhfless.report.amounts import Amounts, amounts_of
from rlhfless.report.drafts import draft_changes
from rlhfless.report.savings import percent, percent_range
from rlhfless.report.study import LoggedRunFindings

LONGEST_LINE = 80  # letters of a line that a sentence quotes


def changes_of(findings: LoggedRunFindings) -> list[Change]:
    """Return the changes that would have saved some of the run's cost, the largest saving first; none that is made already."""
    drafts = draft_changes(findings.drafts, findings.setup.framework, _generation_share(findings))
    return ranked([*_gpus(findings), *drafts, *_router(findings), *_overlaps(findings), *findings.further])


def in_a_sentence(change: Change) -> str:
    """Return the change as the middle of a sentence, with its first line of configuration where that is short."""
    line = _without_comment(change.lines[0]) if change.lines else ""
    return f"{change.what} ({line})" if line and len(line) <= LONGEST_LINE else change.what


def _without_comment(line: str) -> str:
    return line.partition("#")[0].strip()


def changes_section(page: Page, findings: LoggedRunFindings) -> None:
    """Add what to change of a logged run."""
    changes = changes_of(findings)
    amounts = amounts_of(findings)
    list_changes(page, changes, amounts)
    page.text(" ".join(_notes(findings, changes)))


def list_changes(page: Page, changes: Sequence[Change], amounts: Amounts) -> None:
    """Add a section with the changes, each with its saving, its lines and what it needs."""
    page.section("What to change")
    if not changes and amounts.is_known:
        page.text("No change that was simulated is certain to save some of the cost of this run.")
    for place, change in enumerate(changes, start=1):
        page.heading(f"{place}. {change.what[0].upper()}{change.what[1:]}: {_saves(amounts, change)}")
        if change.lines:
            page.code("", change.lines)
        if change.needs:
            page.text(change.needs)


def _saves(amounts: Amounts, change: Change) -> str:
    share = percent_range(change.low, change.high)
    saved = f"saves {amounts.between(change.low, change.high)} ({share})" if amounts.is_known else f"saves {share}"
    longer = f", takes {percent(-change.time)} more time" if change.time <= -0.005 else ""
    return saved + longer


def _notes(findings: LoggedRunFindings, changes: list[Change]) -> Iterator[str]:
    if len(changes) > 1:
        yield "Each saving is of the run as it was, so savings do not add up."
    if changes:
        yield "Ranges are the 5th to 95th percentile."
    if not findings.setup.synchronous:
        yield "Numbers of replicas are not compared, because this run learns while it generates."
    elif len({count.gpus_per_actor for count in findings.gpu_counts}) == 1:
        size = counted(findings.gpu_counts[0].gpus_per_actor, "GPU")
        yield f"Only replicas of {size} have a latency profile, so no other size was compared."
    if findings.setup.framework not in FRAMEWORK_DEFAULTS:
        yield "The framework of the log is unknown, so there are no lines of its configuration."


def _gpus(findings: LoggedRunFindings) -> Iterator[Change]:
    """Fewer replicas by the objective, and the size that is fastest on all GPUs.

    Nothing where the run learns while it generates, as no step waits for its last response.
    """
    if not findings.setup.synchronous:
        return
    own, *others = findings.gpu_counts
    weight = findings.setting.objective.time_weight
    certain = [one for one in others if one.saved(own)[0] > 0]
    fewer = [one for one in certain if one.gpus_per_actor == own.gpus_per_actor and one.replicas < own.replicas]
    best = min([own, *fewer], key=lambda one: weight * np.log(one.seconds) + (1 - weight) * np.log(one.gpu_s))
    if best is not own:
        yield _count_change(findings, own, best, "")
    sizes = [one for one in certain if one.gpus_per_actor != own.gpus_per_actor]
    fastest = min([own, *sizes], key=lambda one: one.gpu_s)
    if fastest is not own:
        yield _count_change(findings, own, fastest, "The size has a latency profile of its own, of the same model and GPUs.")


def _count_change(findings: LoggedRunFindings, own: GpuCount, best: GpuCount, needs: str) -> Change:
    setup, per_node = findings.setup, findings.setting.cluster.gpus_per_node
    low, mean, high = best.saved(own)
    already = configuration_lines(setup.framework, own.replicas, own.gpus_per_actor, per_node)
    so = {_without_comment(line) for line in already}
    lines = configuration_lines(setup.framework, best.replicas, best.gpus_per_actor, per_node)
    lines = tuple(line for line in lines if _without_comment(line) not in so)
    if setup.colocated and best.gpus != own.gpus:
        needs += "Responses are assigned as the run did, and all GPUs are held until a step ends. "
        needs += (
            "Preparation and learning are taken to need the same GPU-seconds on fewer GPUs."
            if findings.phases.seconds
            else "Preparation and learning also take longer on fewer GPUs; the log does not say how long."
        )
    if not lines and setup.framework in FRAMEWORK_DEFAULTS:
        needs = f"{needs} The documentation of {setup.framework} does not say how to spread these replicas over nodes.".strip()
    size, replicas = counted(best.gpus_per_actor, "GPU"), counted(best.replicas, "replica")
    what = f"use {replicas} instead of {own.replicas:,}, of {size} each"
    if best.gpus_per_actor != own.gpus_per_actor:
        what = f"use {replicas} of {size} instead of {own.replicas:,} of {own.gpus_per_actor}"
    return Change(what, lines, low, mean, high, 1.0 - best.seconds / own.seconds, needs)


def _generation_share(findings: LoggedRunFindings) -> float:
    """Share of the steps' time that is generation."""
    generation_s = float(findings.account.steps["generation_s"].mean())
    whole_s = generation_s + (findings.phases.seconds if findings.setup.synchronous else 0.0)
    return generation_s / whole_s if whole_s else 0.0


def _router(findings: LoggedRunFindings) -> Iterator[Change]:
    router = findings.router
    if router is None or not router.is_recommended:
        return
    share, setting = _generation_share(findings), findings.setting
    lines = (
        "actor_rollout_ref.rollout.router_config_path=FOLDER/router.yaml",
        f"rlhfless export LOG --verl-router FOLDER --tokenizer MODEL --gpus {setting.cluster.gpus} "
        f"--profile {setting.latency.name}   # writes FOLDER",
    )
    needs = "The router assigns every batch by lengths that this log predicts, so it helps with prompts that come again."
    yield Change(
        "let a router plan every batch", lines, share * router.low, share * router.mean, share * router.high,
        share * router.mean, needs,
    )  # fmt: skip


def _overlaps(findings: LoggedRunFindings) -> Iterator[Change]:
    """The best overlap of preparation and learning with generation."""
    if not findings.overlaps:
        return
    best = max(findings.overlaps, key=lambda one: one.mean)
    what = "accumulate gradients of finished groups" if best.learns else "prepare finished responses"
    line = "preparation: overlap and learning: stream" if best.learns else "preparation: overlap"
    needs = (
        f"The update is the same up to rounding. No line of {findings.setup.framework} does this; training with RLHFless does, "
        f"with {line}."
    )
    yield Change(f"{what} on GPUs that wait for a step's last responses", (), best.low, best.mean, best.high, best.mean, needs)
