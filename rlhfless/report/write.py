"""Writes the report: one HTML page about any trace or log, with what was done and what better schedules would have done.

What was executed is read from the trace. Everything else is simulated from the logged lengths, and the page says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlhfless import __version__
from rlhfless.analysis import Assumptions, account
from rlhfless.analysis.assumptions import PRICE, PROFILE
from rlhfless.analysis.drawn_lengths import StepSizes, lacking_options
from rlhfless.analysis.gpu_counts import gpu_in_words
from rlhfless.analysis.log_texts import opened_log
from rlhfless.diagnosis import Diagnosis, diagnose
from rlhfless.errors import InputError
from rlhfless.plots.clock import clock_words
from rlhfless.plots.export.html_page import Page, page_path, write_page
from rlhfless.plots.style import counted, number
from rlhfless.report.diagnosis_section import diagnosis_section
from rlhfless.report.expected import expected_in_words, refusal_of_slow_engine, with_expected, with_simulated
from rlhfless.report.files import WRITTEN, kind_of
from rlhfless.report.method import assumed_part, reading_part
from rlhfless.report.not_stated import NO_PRICE
from rlhfless.report.notebook import LogSource, write_report_notebook
from rlhfless.report.progress import Begin, silent
from rlhfless.report.schedules import MAX_STEPS
from rlhfless.report.settings import prices_table, settings_part
from rlhfless.report.simulated import OTHERS, basis_of_simulation, fixed_in_words, schedules_section, timelines_section
from rlhfless.report.stated import stated_in
from rlhfless.report.study import Findings, study
from rlhfless.report.where_time_went import time_section
from rlhfless.simulate import SimulationConfig
from rlhfless.trace import ImportedLog, OpenedLog, Trace, TraceError
from rlhfless.trace.importers.names import NAMES
from rlhfless.trace.schema.prices import AS_STATED
from solver.model.errors import PlanningError

METHOD = "Assumptions and method"
SCALARS_ALONE = "The log has no responses, so no schedule is simulated."
NO_GPUS = "No schedule is simulated, because the log does not say how many GPUs the run had: state it with --gpus."
BY_ARITHMETIC = "The diagnosis is arithmetic on what was logged: it needs no latency profile."


@dataclass(frozen=True, eq=False)
class Report:
    """A report that was made.

    Attributes:
        said: the diagnosis, with what levers are expected to save where a simulation says so. html: the page.
        findings: what was simulated; None where nothing was.
    """

    said: Diagnosis
    html: str
    findings: Findings | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis for JSON, with what was simulated as ``simulated`` (docs/diagnosis_json.md)."""
        return self.said.to_dict() | ({} if self.findings is None else {"simulated": self.findings.to_dict()})

    def to_json(self) -> str:
        """Return ``to_dict`` as a JSON text."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def save(self, out: str | Path) -> Path:
        """Write the page, or its numbers where the name ends in ``.json``; the file is replaced atomically.

        Raises:
            InputError: the name ends otherwise; a notebook (``write_report``) is made of a log's file.
            TraceError: the file cannot be written.
        """
        path = page_path(out, TraceError)
        if kind_of(path) == WRITTEN[".ipynb"]:
            raise InputError(f"{path}: a notebook is made of a log's file: rlhfless report LOG -o {path.name} writes it")
        return write_page(path, self.to_json() if kind_of(path) == WRITTEN[".json"] else self.html, TraceError)


def write_report(
    source: Trace | OpenedLog | ImportedLog | str | Path,
    out: str | Path,
    setting: SimulationConfig | None = None,
    assumptions: Assumptions | None = None,
    *,
    read_from: LogSource | None = None,
    profile: str = "",
    **made: Any,
) -> Path:
    """Write the report of a trace or log as what the end of the file's name says, and return its path.

    A page (``.html``, ``.htm``) needs no network and no kernel; ``.json`` has its numbers. A notebook (``.ipynb``) has cells
    that make the report; it reads the log again.

    Args:
        source, setting, assumptions, made: see ``make_report``.
        out: the file; replaced atomically. read_from: where and how a notebook reads the log. profile: its name or file, for a
            notebook.

    Raises:
        InputError: its name ends otherwise, or a notebook cannot read the log, which has no responses, no GPUs or no file.
        TraceError: as ``make_report``, or the file cannot be written. Others as ``make_report``.
    """
    return written_report(source, out, setting, assumptions, read_from=read_from, profile=profile, **made)[0]


def written_report(
    source: Trace | OpenedLog | ImportedLog | str | Path,
    out: str | Path,
    setting: SimulationConfig | None = None,
    assumptions: Assumptions | None = None,
    *,
    read_from: LogSource | None = None,
    profile: str = "",
    **made: Any,
) -> tuple[Path, Report | None]:
    """Return the path of ``write_report``, and the report where one was made: a notebook makes it when it runs."""
    path = page_path(out, TraceError)
    if kind_of(path) != WRITTEN[".ipynb"]:
        report = make_report(source, setting, assumptions, **made)
        return report.save(path), report
    if isinstance(source, ImportedLog) or made.get("draws"):
        raise InputError(f"{path}: the log has scalars alone, whose report is a page; a name that ends in .html is needed")
    if setting is None:
        raise InputError(
            f"{path}: the log does not say how many GPUs the run had, which a notebook needs; give gpus (--gpus N)"
        )
    if read_from is None:
        raise InputError(
            f"{path}: a notebook reads its log again, and this run was not read from a file; load it from the log's path, or "
            "give a name that ends in .html"
        )
    stated = assumptions or Assumptions()
    return write_report_notebook(read_from, path, profile, setting, stated, max_steps=made.get("max_steps", MAX_STEPS)), None


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
        assumptions: about a log's run; of an executed trace's only prices, a tokenizer and whether the profile is scaled.
        said: what limits the run; by what ``setting`` and ``assumptions`` state when None.
        draws: draws of the lengths of a log without responses (``analysis.drawn_lengths``), of which ``source`` is the first.
        max_steps: at most so many steps are simulated, evenly chosen; fewer when steps have thousands of responses.
        begin: is called with the name of every part of the work when it begins.

    Raises:
        TraceError: the source is no trace or log, or holds several runs.
        PlanningError: the source holds lengths only, and they cannot be planned on the cluster.
        InputError: an assumption makes no sense.
    """
    log, stated = opened_log(source), assumptions or Assumptions()
    own = log.trace if isinstance(log, OpenedLog) and len(log.trace.allocations) else None
    other = "" if setting is None else ", and what other schedules would have saved"
    page = Page(f"RLHFless report: {_name(log)}{_title(log.framework)}", f"What limits the run{other}.")
    said = said or diagnose(log, stated_in(setting, stated, log.framework))
    findings, refusal = None, NO_GPUS
    if isinstance(log, ImportedLog):
        refusal = f"{SCALARS_ALONE} {_how_to_simulate(log, said)}"
    elif setting is not None and (slow := refusal_of_slow_engine(log, said)):
        refusal = slow
    elif setting is not None:
        try:
            findings = study(log, setting, stated, max_steps, begin, draws=draws)
        except PlanningError as error:
            if own is None:
                raise
            gpus, name = counted(setting.cluster.gpus, "GPU"), setting.latency.name  # the page still says what was measured
            refusal = f"No plan is possible on {gpus} with profile {name}: {error}"
        begin("drawing")
    said = replace(said, simulated=refusal) if findings is None else with_simulated(with_expected(said, findings), findings)
    own = own if findings is None else findings.traces[0]
    diagnosis_section(page, said)
    if own is not None:
        assert isinstance(log, OpenedLog)
        time_section(page, own, account(own) if findings is None else findings.account, findings, _facts(log, said))
    if findings is None:
        page.section(OTHERS, folded=own is not None)
        page.text(refusal)
    else:
        schedules_section(page, findings)
        _settings(page, said, findings, stated.prices)
    if own is not None:
        timelines_section(page, None if findings is None else findings.schedules, own)
    page.section(METHOD, folded=True)
    if isinstance(log, OpenedLog) and own is None:
        page.facts(_facts(log, said))
    if findings is not None:
        _method(page, findings)
    if own is not None and AS_STATED in own.meta:
        price = str(own.meta[AS_STATED])
        page.text(f"{price[0].upper()}{price[1:]}.")
    page.text(" ".join(filter(None, [BY_ARITHMETIC, "" if findings is None else expected_in_words(said, findings)])))
    reading_part(page, log)
    begin("packing")
    footer = f"Written by rlhfless {__version__}. This file contains plotly.js and loads nothing from the network."
    return Report(said, page.render(footer), findings)


def _settings(page: Page, said: Diagnosis, findings: Findings, prices: Mapping[str, float]) -> None:
    """Add other replicas, plans of every step and prices.

    Args:
        prices: further ones by name, in USD per GPU-hour.
    """
    settings_part(page, findings)
    of_run, of_steps = said.numbers.value("gpu_hours"), float(findings.counts["gpu_s"].iloc[0]) / 3600.0
    simulated = "The simulated steps'" if findings.times.whole_steps else "The simulated generation's"
    whose, gpu_hours = (simulated, of_steps) if of_run is None else ("The run's", of_run)
    kind, assumed = findings.times.setting.cluster.kind, findings.not_stated
    named = PROFILE not in assumed or assumed.get(PRICE, NO_PRICE) != NO_PRICE
    prices_table(page, f"{whose} {number(gpu_hours, 'GPU-hours')}", gpu_hours, kind, prices, named=named)


def _method(page: Page, findings: Findings) -> None:
    """Add what was assumed, and where simulated numbers come from."""
    assumed_part(page, findings)
    page.basis(basis_of_simulation(findings))
    if len(findings.took) and findings.times.whole_steps:
        page.text(fixed_in_words(findings))


def _how_to_simulate(log: ImportedLog, said: Diagnosis) -> str:
    """Return with which options lengths are drawn from a log of scalars; where none helps, what does."""
    responses = said.numbers.value("responses_per_step")
    sizes = StepSizes(typical_responses=None if responses is None else max(1, round(responses))).or_of(log.facts)
    lacking = lacking_options(log, sizes)
    if lacking is None:
        return "The rollout log of the same run has them."
    options = ["--simulate", "--gpus", *lacking]
    groups = "" if sizes.samples_per_prompt else " (--samples-per-prompt, too, where you know it)"
    return (
        f"With {', '.join(options[:-1])} and {options[-1]}{groups}, lengths are drawn from its scalars; the rollout log of the "
        "same run says more."
    )


def _path_in_words(path: Path) -> str:
    """Return a file's name with its folder, as many logs are called console.log."""
    return "/".join(path.resolve().parts[-2:]).lstrip("/")


def _title(framework: str) -> str:
    return f" ({NAMES[framework].title})" if framework in NAMES else ""


def _name(log: OpenedLog | ImportedLog) -> str:
    if isinstance(log, ImportedLog):
        return _path_in_words(log.source)
    return _path_in_words(Path(log.trace.source)) if log.trace.source else f"run {log.trace.run}"


def _facts(log: OpenedLog, said: Diagnosis) -> Iterator[tuple[str, str]]:
    trace = log.trace
    rollouts, meta = trace.rollouts, trace.meta
    lengths, steps = rollouts["response_tokens"], trace.steps
    yield "run", trace.run
    yield "steps", f"{len(steps):,} ({steps[0]} to {steps[-1]})" if len(steps) > 1 else f"1 (step {steps[0]})"
    yield "responses", f"{len(rollouts):,} to {counted(rollouts['prompt_id'].nunique(), 'prompt')}"
    yield "response lengths", f"{counted(lengths.sum(), 'token')}; median {lengths.median():,.0f}, longest {lengths.max():,}"
    reasons = rollouts["finish_reason"]
    known_share, truncated = reasons.notna().mean(), (reasons == "length").mean()
    share = f"{truncated:.1%}" if known_share == 1 else f"{truncated:.1%} to {truncated + 1 - known_share:.1%}"
    if known_share == 0 and (cut := said.numbers.value("cut_share")) is not None:
        yield "cut off by the limit", f"{cut:.1%} of the responses, by their lengths"
    else:
        yield "cut off by the limit", f"{share} of the responses" if known_share > 0 else "unknown"
    sizes = {name: len(getattr(trace, name)) for name in ("allocations", "spans", "events", "plans")}
    if recorded := ", ".join(counted(size, name.removesuffix("s")) for name, size in sizes.items() if size):
        yield "recorded", recorded
    if len(log.scalars):
        yield "step times", f"logged for {counted(len(log.scalars), 'step')}"
    if clock := clock_words(meta):
        yield "times", clock
    for key in ("policy", "engine", "device", "imported_from", "framework"):
        if meta.get(key) not in (None, "", "none"):
            yield key.replace("_", " "), str(meta[key])
    if isinstance(meta.get("cluster"), dict):
        yield "cluster", _cluster_in_words(meta["cluster"])


def _cluster_in_words(cluster: Mapping[str, Any]) -> str:
    nodes, per_node, per_actor = (cluster.get(name) for name in ("nodes", "gpus_per_node", "gpus_per_actor"))
    kind = gpu_in_words(str(cluster.get("kind") or ""))
    parts = [f"{counted(nodes, 'node')} of {counted(per_node, kind)}"] if nodes and per_node else []
    parts += [f"{counted(per_actor, 'GPU')} per actor"] if per_actor else []
    if (price := cluster.get("usd_per_gpu_hour") or 0.0) > 0:
        parts.append(f"{number(price, 'USD')} per GPU-hour ({cluster.get('market') or 'unknown market'})")
    if cluster.get("prewarmed"):
        parts.append(f"{counted(cluster['prewarmed'], 'actor')} warm before the step")
    return ", ".join(parts) or "unknown"
