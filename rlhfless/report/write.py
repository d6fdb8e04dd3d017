"""Writes the report: one HTML page about any trace or log, with what was done and what better schedules would have done.

What was executed is read from the trace. Everything else is simulated from the logged lengths, and the page says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from rlhfless import __version__, plots
from rlhfless.analysis import Calibration
from rlhfless.analysis.log_texts import texts_of
from rlhfless.diagnosis import Stated, diagnose
from rlhfless.latency import load_profile, usd_per_gpu_hour
from rlhfless.plots.export.html_page import Page, page_path, write_page
from rlhfless.plots.style import counted
from rlhfless.report.diagnosis_section import diagnosis_section
from rlhfless.report.executed_run import executed_first_screen, executed_savings_section, executed_section
from rlhfless.report.executed_study import study_executed
from rlhfless.report.first_screen import first_screen
from rlhfless.report.log_checks import contradicted
from rlhfless.report.logged_run import run_sections
from rlhfless.report.not_stated import DEFAULT_PROFILE, GPUS, GPUS_ASSUMED, PRICE, PROFILE, PROFILE_ASSUMED, price_assumed
from rlhfless.report.progress import Begin, silent
from rlhfless.report.schedules import MAX_STEPS, Schedules
from rlhfless.report.simulated import predicted_front, schedules_section, weights_section
from rlhfless.report.study import Assumptions, ReportData, study_log
from rlhfless.simulate import SimulationConfig
from rlhfless.trace import ImportOptions, OpenedLog, Trace, TraceError, open_log
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError


def default_setting() -> SimulationConfig:
    """Return the default setting of a report: 16 GPUs in two nodes at list price."""
    latency = load_profile(DEFAULT_PROFILE)
    return SimulationConfig(Cluster(2, 8, latency.gpus_per_actor, latency.kind, usd_per_gpu_hour(latency.kind)), latency)


def write_report(
    source: Trace | OpenedLog | str | Path,
    out: str | Path,
    setting: SimulationConfig | None = None,
    assumptions: Assumptions | None = None,
    *,
    max_steps: int = MAX_STEPS,
    study: ReportData | None = None,
    begin: Begin = silent,
) -> Path:
    """Write the report of a trace or log as one HTML file that needs no network and no kernel.

    Args:
        source: a trace, an opened log, or the path of a trace folder or of a log of any supported format; of one run.
        out: the HTML file; it is replaced atomically.
        setting: cluster, profile and objective of the simulated sections; ``default_setting()`` when None. Its ``phases``
            applies to an executed trace only; for a log use ``assumptions``.
        assumptions: about a log's run; of an executed trace's only whether it is calibrated.
        max_steps: at most so many steps are simulated, evenly chosen; fewer when steps have thousands of responses.
        study: what ``study_log`` found of this log, if it is computed already.
        begin: is called with the name of every part of the work when it begins.

    Raises:
        TraceError: the source is no trace or log, holds several runs, or the file cannot be written.
        PlanningError: the source holds lengths only, and they cannot be planned on the cluster.
        InputError: an assumption makes no sense.
    """
    path = page_path(out, TraceError)
    text = report_html(source, setting, assumptions, max_steps=max_steps, study=study, begin=begin)
    return write_page(path, text, TraceError)


def report_html(
    source: Trace | OpenedLog | str | Path,
    setting: SimulationConfig | None = None,
    assumptions: Assumptions | None = None,
    *,
    max_steps: int = MAX_STEPS,
    study: ReportData | None = None,
    begin: Begin = silent,
) -> str:
    """Return the page of ``write_report`` as text; the same arguments and exceptions."""
    log = _opened(source)
    trace, default = log.trace, {}
    if setting is None:
        setting = default_setting()
        default = {GPUS: GPUS_ASSUMED, PROFILE: PROFILE_ASSUMED, PRICE: price_assumed(setting.cluster.kind)}
    executed = len(trace.allocations) > 0
    stated = assumptions or Assumptions(not_stated=default)
    what = "What was executed, and " if executed else "What a logged run wasted, and "
    page = Page(f"RLHFless report: {_name(trace)}", f"{what}how other schedules would have run the same responses.")
    diagnosis_section(page, diagnose(log, _stated(setting, stated)))
    if executed:
        _executed(page, log, setting, max_steps, begin, calibrate=assumptions is None or assumptions.calibrate)
    else:
        study = study or study_log(log, setting, stated, max_steps, begin)
        begin("drawing")
        _logged(page, log, stated, study)
    if log.summary is not None:
        page.section("How the log was read", folded=True)
        preview = log.summary.preview
        for line in str(log.summary).removesuffix(preview).splitlines():
            page.text(line)
        if preview:
            page.printed(preview)
    begin("packing")
    return page.render(f"Written by rlhfless {__version__}. This file contains plotly.js and loads nothing from the network.")


def _executed(page: Page, log: OpenedLog, setting: SimulationConfig, max_steps: int, begin: Begin, *, calibrate: bool) -> None:
    """Add what was executed and, where the run can be planned, what other schedules would have saved of it."""
    trace = log.trace
    findings, refusal = None, ""
    try:
        findings = study_executed(trace, setting, max_steps, begin, calibrate=calibrate)
    except PlanningError as error:
        refusal = str(error)
    begin("drawing")
    if findings is not None and (contradiction := contradicted(findings.checks, findings.calibrated)):
        page.text(contradiction)
    executed_first_screen(page, trace, findings)
    executed_section(page, trace, _facts(log))
    try:
        if findings is not None:
            if len(findings.took):
                executed_savings_section(page, trace, findings)
            _schedules(page, findings.schedules, findings.setting, findings.calibrated, bool(plots.lengths_info(trace).missing))
    except PlanningError as error:
        refusal = str(error)
    if refusal:
        page.section("What better schedules would have done", folded=True)
        page.text(
            f"No plan is possible on {counted(setting.cluster.gpus, 'GPU')} with profile {setting.latency.name}: {refusal}"
        )


def _logged(page: Page, log: OpenedLog, stated: Assumptions, study: ReportData) -> None:
    """Add what a logged run cost, and what to change; then folded, where this comes from."""
    setting, calibrated, schedules, findings = study
    first_screen(page, findings)
    run_sections(page, findings, stated.prices, _facts(log))
    _schedules(page, schedules, setting, calibrated, True)


def _schedules(page: Page, schedules: Schedules, setting: SimulationConfig, calibrated: Calibration, lengths: bool) -> None:
    schedules_section(page, schedules, setting, lengths, calibrated)
    weights_section(page, schedules, setting, predicted_front(schedules, setting))


def _stated(setting: SimulationConfig, stated: Assumptions) -> Stated:
    """Return what the user stated about the GPUs, without what was assumed."""
    cluster, assumed = setting.cluster, stated.not_stated
    return Stated(
        gpus=None if GPUS in assumed else cluster.gpus,
        usd_per_gpu_hour=None if PRICE in assumed else cluster.usd_per_gpu_hour,
        max_response_tokens=setting.max_response_tokens,
    )


def _opened(source: Trace | OpenedLog | str | Path) -> OpenedLog:
    if isinstance(source, OpenedLog):
        return source
    if isinstance(source, Trace):
        return OpenedLog(source, pd.DataFrame({"step": []}), str(source.meta.get("framework") or ""))
    return open_log(source, ImportOptions(keep=texts_of(source)))


def _name(trace: Trace) -> str:
    return Path(trace.source).resolve().name if trace.source else f"run {trace.run}"


def _facts(log: OpenedLog) -> Iterator[tuple[str, str]]:
    trace = log.trace
    rollouts, meta = trace.rollouts, trace.meta
    lengths, steps = rollouts["response_tokens"], trace.steps
    yield "run", trace.run
    yield "steps", f"{len(steps):,} ({steps[0]} to {steps[-1]})"
    yield "responses", f"{len(rollouts):,} to {counted(rollouts['prompt_id'].nunique(), 'prompt')}"
    yield "response lengths", f"{lengths.sum():,} tokens; median {lengths.median():,.0f}, longest {lengths.max():,}"
    reasons = rollouts["finish_reason"]
    known_share, truncated = reasons.notna().mean(), (reasons == "length").mean()
    share = f"{truncated:.1%}" if known_share == 1 else f"{truncated:.1%} to {truncated + 1 - known_share:.1%}"
    yield "cut off by the limit", f"{share} of the responses" if known_share > 0 else "unknown"
    sizes = {name: len(getattr(trace, name)) for name in ("allocations", "spans", "events", "plans")}
    if recorded := ", ".join(counted(size, name.removesuffix("s")) for name, size in sizes.items() if size):
        yield "recorded", recorded
    if len(log.scalars):
        yield "step times", f"logged for {counted(len(log.scalars), 'step')}"
    for key in ("policy", "engine", "clock", "charging", "device", "profile", "imported_from", "framework"):
        if meta.get(key) not in (None, "", "none"):
            yield key.replace("_", " "), str(meta[key])
    cluster = meta.get("cluster")
    if isinstance(cluster, dict):
        yield "cluster", ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in cluster.items() if value is not None)
