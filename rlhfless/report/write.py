"""Writes the report: one HTML page about any trace or log, with what was done and what better schedules would have done.

What was executed is read from the trace. Everything else is simulated from the logged lengths, and the page says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless import __version__, plots
from rlhfless.analysis.log_texts import texts_of
from rlhfless.diagnosis import Diagnosis, diagnose
from rlhfless.plots.export.html_page import Page, page_path, write_page
from rlhfless.plots.style import counted, number
from rlhfless.report.diagnosis_section import diagnosis_section
from rlhfless.report.drawn_study import study_drawn
from rlhfless.report.executed_run import basis_of_savings, executed_section, fixed_in_words
from rlhfless.report.executed_study import study_executed
from rlhfless.report.expected import engine_is_slow, with_expected
from rlhfless.report.log_checks import checks_table, contradicted
from rlhfless.report.logged_run import logged_time_section
from rlhfless.report.method import assumed_part, reading_part
from rlhfless.report.not_stated import PRICE
from rlhfless.report.progress import Begin, silent
from rlhfless.report.schedules import MAX_STEPS
from rlhfless.report.settings import prices_table, settings_part
from rlhfless.report.simulated import OTHERS, basis_of_simulation, schedules_section, timelines_section
from rlhfless.report.stated import stated_in
from rlhfless.report.study import Assumptions, LoggedRunFindings, study_log
from rlhfless.simulate import SimulationConfig
from rlhfless.trace import ImportedLog, ImportOptions, OpenedLog, Trace, TraceError, read_log
from solver.model.errors import PlanningError

METHOD = "Assumptions and method"
SCALARS_ALONE = (
    "The log has no responses, so no schedule is simulated. With --simulate and --gpus, lengths are drawn from its scalars; "
    "the rollout log of the same run says more."
)
NO_GPUS = "No schedule is simulated, because the log does not say how many GPUs the run had: --gpus says it."
ENGINE_IS_SLOW = (
    "No schedule is simulated, because the engine is slow, or the latency profile is of a smaller model or faster GPUs than "
    "those of the run. --profile names the run's own, which rlhfless profile measures; a schedule does not mend an engine."
)
BY_ARITHMETIC = (
    "The diagnosis is arithmetic on what was logged: it needs no latency profile. What its table of levers expects is "
    "simulated."
)


@dataclass(frozen=True, eq=False)
class Report:
    """A report that was made.

    Attributes:
        said: the diagnosis, with what levers are expected to save where a simulation says so. html: the page.
    """

    said: Diagnosis
    html: str


def write_report(
    source: Trace | OpenedLog | ImportedLog | str | Path,
    out: str | Path,
    setting: SimulationConfig | None = None,
    assumptions: Assumptions | None = None,
    **made: Any,
) -> Path:
    """Write the page of ``make_report`` as one HTML file that needs no network and no kernel, and return its path.

    Args:
        source, setting, assumptions, made: see ``make_report``. out: the HTML file; it is replaced atomically.

    Raises:
        TraceError: as ``make_report``, or the file cannot be written. Others as ``make_report``.
    """
    path = page_path(out, TraceError)
    return write_page(path, make_report(source, setting, assumptions, **made).html, TraceError)


def make_report(
    source: Trace | OpenedLog | ImportedLog | str | Path,
    setting: SimulationConfig | None = None,
    assumptions: Assumptions | None = None,
    *,
    said: Diagnosis | None = None,
    draws: Sequence[OpenedLog] = (),
    max_steps: int = MAX_STEPS,
    begin: Begin = silent,
) -> Report:
    """Make the report of a trace or log.

    The sections of its page are the diagnosis, where the time went, other schedules and settings, timelines, and assumptions
    and method.

    Args:
        source: a trace, an opened or imported log, or the path of a trace folder or of a log of any supported format.
        setting: cluster, profile and objective of the simulated sections, which need responses of one run; None: nothing is
            simulated. Its ``phases`` applies to an executed trace only; for a log use ``assumptions``.
        assumptions: about a log's run; of an executed trace's only whether it is calibrated.
        said: what limits the run; by what ``setting`` and ``assumptions`` state when None.
        draws: draws of the lengths of a log without responses (``analysis.drawn_lengths``), of which ``source`` is the first.
        max_steps: at most so many steps are simulated, evenly chosen; fewer when steps have thousands of responses.
        begin: is called with the name of every part of the work when it begins.

    Raises:
        TraceError: the source is no trace or log, or holds several runs.
        PlanningError: the source holds lengths only, and they cannot be planned on the cluster.
        InputError: an assumption makes no sense.
    """
    log, stated = _opened(source), assumptions or Assumptions()
    if setting is not None and PRICE in stated.not_stated:  # money is named where somebody stated the price
        setting = replace(setting, cluster=replace(setting.cluster, usd_per_gpu_hour=0.0))
    executed = isinstance(log, OpenedLog) and len(log.trace.allocations) > 0
    other = "" if setting is None else ", and how other schedules would have run the same responses"
    page = Page(f"RLHFless report: {_name(log)}", f"{'What was executed' if executed else 'What limits the run'}{other}.")
    said = said or diagnose(log, stated_in(setting, stated))
    if isinstance(log, ImportedLog):
        _not_simulated(page, said, log, SCALARS_ALONE)
    elif executed:
        said = _executed(page, said, log, setting, max_steps, begin, calibrate=stated.calibrate)
    elif setting is None:
        _not_simulated(page, said, log, NO_GPUS)
    elif engine_is_slow(said):
        _not_simulated(page, said, log, ENGINE_IS_SLOW)
    else:
        found = (
            study_drawn(draws, setting, stated, max_steps, begin)
            if draws
            else study_log(log, setting, stated, max_steps, begin)
        )
        begin("drawing")
        said = with_expected(said, found)
        _logged(page, said, log, found, stated.prices)
    reading_part(page, log)
    begin("packing")
    footer = f"Written by rlhfless {__version__}. This file contains plotly.js and loads nothing from the network."
    return Report(said, page.render(footer))


def _not_simulated(page: Page, said: Diagnosis, log: OpenedLog | ImportedLog, why: str) -> None:
    """Add the diagnosis, why nothing is simulated, and the section that ends every page."""
    diagnosis_section(page, said)
    page.section(OTHERS)
    page.text(why)
    page.section(METHOD, folded=True)
    if isinstance(log, OpenedLog):
        page.facts(_facts(log))
    page.text(BY_ARITHMETIC)


def _logged(page: Page, said: Diagnosis, log: OpenedLog, findings: LoggedRunFindings, prices: Mapping[str, float]) -> None:
    """Add the five sections of a logged run.

    Args:
        prices: further ones by name, in USD per GPU-hour.
    """
    diagnosis_section(page, said)
    logged_time_section(page, findings, _facts(log))
    schedules_section(page, findings)
    settings_part(page, findings)
    of_run, of_steps = said.numbers.value("gpu_hours"), findings.gpu_counts[0].gpu_s / 3600.0
    whose, gpu_hours = ("The simulated steps'", of_steps) if of_run is None else ("The run's", of_run)
    prices_table(page, f"{whose} {number(gpu_hours, 'GPU-hours')}", gpu_hours, findings.setting.cluster.kind, prices)
    timelines_section(page, findings.schedules, None)
    page.section(METHOD, folded=True)
    assumed_part(page, findings)
    page.basis(basis_of_simulation(findings))
    page.text(BY_ARITHMETIC)


def _executed(
    page: Page, said: Diagnosis, log: OpenedLog, setting: SimulationConfig | None, max_steps: int, begin: Begin, *,
    calibrate: bool,
) -> Diagnosis:  # fmt: skip
    """Add the five sections of an executed run, and return its diagnosis with what levers are expected to save."""
    trace, findings, refusal = log.trace, None, NO_GPUS
    if setting is not None:
        try:
            findings = study_executed(trace, setting, max_steps, begin, calibrate=calibrate)
        except PlanningError as error:
            gpus, name = counted(setting.cluster.gpus, "GPU"), setting.latency.name
            refusal = f"No plan is possible on {gpus} with profile {name}: {error}"
    begin("drawing")
    said = said if findings is None else with_expected(said, findings)
    diagnosis_section(page, said)
    executed_section(page, trace, _facts(log))
    if findings is None:
        page.section(OTHERS, folded=True)
        page.text(refusal)
    else:
        if contradiction := contradicted(findings.checks, findings.calibrated):
            page.text(contradiction)
        if findings.checks:
            checks_table(page, findings.checks)
        schedules_section(page, findings)
    missing = bool(plots.lengths_info(trace).missing)
    timelines_section(page, None if findings is None else findings.schedules, trace, lengths=missing)
    page.section(METHOD, folded=True)
    if findings is not None:
        if len(findings.took):
            page.basis(basis_of_savings(trace, findings))
            page.text(fixed_in_words(findings))
        page.basis(basis_of_simulation(findings))
    page.text(BY_ARITHMETIC)
    return said


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
