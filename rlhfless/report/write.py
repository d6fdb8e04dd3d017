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
from rlhfless.diagnosis import Diagnosis, Stated, diagnose
from rlhfless.plots.export.html_page import Page, page_path, write_page
from rlhfless.plots.style import counted
from rlhfless.report.diagnosis_section import diagnosis_section
from rlhfless.report.executed_run import executed_first_screen, executed_savings_section, executed_section
from rlhfless.report.executed_study import study_executed
from rlhfless.report.expected import expected_savings
from rlhfless.report.first_screen import first_screen
from rlhfless.report.log_checks import contradicted
from rlhfless.report.logged_run import run_sections
from rlhfless.report.not_stated import PRICE
from rlhfless.report.progress import Begin, silent
from rlhfless.report.schedules import MAX_STEPS, Schedules
from rlhfless.report.simulated import predicted_front, schedules_section, weights_section
from rlhfless.report.study import Assumptions, ReportData, study_log
from rlhfless.simulate import SimulationConfig
from rlhfless.trace import ImportedLog, ImportOptions, OpenedLog, Trace, TraceError, read_log
from solver.model.errors import PlanningError


def write_report(
    source: Trace | OpenedLog | ImportedLog | str | Path,
    out: str | Path,
    setting: SimulationConfig | None = None,
    assumptions: Assumptions | None = None,
    *,
    said: Diagnosis | None = None,
    max_steps: int = MAX_STEPS,
    study: ReportData | None = None,
    begin: Begin = silent,
) -> Path:
    """Write the report of a trace or log as one HTML file that needs no network and no kernel.

    Args:
        source: a trace, an opened or imported log, or the path of a trace folder or of a log of any supported format.
        out: the HTML file; it is replaced atomically.
        setting: cluster, profile and objective of the simulated sections, which need responses of one run; None: nothing is
            simulated. Its ``phases`` applies to an executed trace only; for a log use ``assumptions``.
        assumptions: about a log's run; of an executed trace's only whether it is calibrated.
        said: what limits the run; by what ``setting`` and ``assumptions`` state when None.
        max_steps: at most so many steps are simulated, evenly chosen; fewer when steps have thousands of responses.
        study: what ``study_log`` found of this log, if it is computed already.
        begin: is called with the name of every part of the work when it begins.

    Raises:
        TraceError: the source is no trace or log, holds several runs, or the file cannot be written.
        PlanningError: the source holds lengths only, and they cannot be planned on the cluster.
        InputError: an assumption makes no sense.
    """
    path = page_path(out, TraceError)
    text = report_html(source, setting, assumptions, said=said, max_steps=max_steps, study=study, begin=begin)
    return write_page(path, text, TraceError)


def report_html(
    source: Trace | OpenedLog | ImportedLog | str | Path,
    setting: SimulationConfig | None = None,
    assumptions: Assumptions | None = None,
    *,
    said: Diagnosis | None = None,
    max_steps: int = MAX_STEPS,
    study: ReportData | None = None,
    begin: Begin = silent,
) -> str:
    """Return the page of ``write_report`` as text; the same arguments and exceptions."""
    log, stated = _opened(source), assumptions or Assumptions()
    executed = isinstance(log, OpenedLog) and len(log.trace.allocations) > 0
    other = "" if setting is None else ", and how other schedules would have run the same responses"
    page = Page(f"RLHFless report: {_name(log)}", f"{'What was executed' if executed else 'What limits the run'}{other}.")
    said = said or diagnose(log, _stated(setting, stated))
    if isinstance(log, OpenedLog) and not executed and setting is not None:
        study = study or study_log(log, setting, stated, max_steps, begin)
        said = said.with_expected(expected_savings(study.findings))
    diagnosis_section(page, said)
    if isinstance(log, OpenedLog) and executed:
        _executed(page, log, setting, max_steps, begin, calibrate=stated.calibrate)
    elif isinstance(log, OpenedLog) and study is not None:
        begin("drawing")
        _logged(page, log, stated, study)
    else:
        page.section("Other schedules")
        page.text(_not_simulated(log))
    if log.summary is not None:
        page.section("How the log was read", folded=True)
        preview = log.summary.preview
        for line in str(log.summary).removesuffix(preview).splitlines():
            page.text(line)
        if preview:
            page.printed(preview)
    begin("packing")
    return page.render(f"Written by rlhfless {__version__}. This file contains plotly.js and loads nothing from the network.")


def _not_simulated(log: OpenedLog | ImportedLog) -> str:
    """Return why no other schedule is on the page, and what simulates some."""
    if isinstance(log, ImportedLog):
        return (
            "The log has no responses, so no schedule is simulated. With --simulate and --gpus, lengths are drawn from its "
            "scalars; the rollout log of the same run says more."
        )
    return "No schedule is simulated, because the log does not say how many GPUs the run had: --gpus says it."


def _executed(
    page: Page, log: OpenedLog, setting: SimulationConfig | None, max_steps: int, begin: Begin, *, calibrate: bool
) -> None:
    """Add what was executed and, where the run can be planned, what other schedules would have saved of it."""
    trace = log.trace
    findings, refusal = None, ""
    if setting is None:
        refusal = "No schedule is simulated, because the trace does not say how many GPUs there were: --gpus says it."
    else:
        try:
            findings = study_executed(trace, setting, max_steps, begin, calibrate=calibrate)
        except PlanningError as error:
            refusal = (
                f"No plan is possible on {counted(setting.cluster.gpus, 'GPU')} with profile {setting.latency.name}: {error}"
            )
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
        assert setting is not None
        refusal = f"No plan is possible on {counted(setting.cluster.gpus, 'GPU')} with profile {setting.latency.name}: {error}"
    if refusal:
        page.section("What better schedules would have done", folded=True)
        page.text(refusal)


def _logged(page: Page, log: OpenedLog, stated: Assumptions, study: ReportData) -> None:
    """Add what a logged run cost, and what to change; then folded, where this comes from."""
    setting, calibrated, schedules, findings = study
    first_screen(page, findings)
    run_sections(page, findings, stated.prices, _facts(log))
    _schedules(page, schedules, setting, calibrated, True)


def _schedules(page: Page, schedules: Schedules, setting: SimulationConfig, calibrated: Calibration, lengths: bool) -> None:
    schedules_section(page, schedules, setting, lengths, calibrated)
    weights_section(page, schedules, setting, predicted_front(schedules, setting))


def _stated(setting: SimulationConfig | None, stated: Assumptions) -> Stated:
    """Return what the user stated about the GPUs, without what was assumed."""
    if setting is None:
        return Stated()
    return Stated(
        gpus=setting.cluster.gpus,
        usd_per_gpu_hour=None if PRICE in stated.not_stated else setting.cluster.usd_per_gpu_hour,
        max_response_tokens=setting.max_response_tokens,
    )


def _opened(source: Trace | OpenedLog | ImportedLog | str | Path) -> OpenedLog | ImportedLog:
    if isinstance(source, OpenedLog | ImportedLog):
        return source
    if isinstance(source, Trace):
        return OpenedLog(source, pd.DataFrame({"step": []}), str(source.meta.get("framework") or ""))
    return read_log(source, ImportOptions(keep=texts_of(source)))


def _name(log: OpenedLog | ImportedLog) -> str:
    if isinstance(log, ImportedLog):
        return log.source.resolve().name
    return Path(log.trace.source).resolve().name if log.trace.source else f"run {log.trace.run}"


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
