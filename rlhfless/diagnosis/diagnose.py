"""``diagnose``: asks every section of the arithmetic what it finds in a log, and ranks what limits the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pandas as pd

from rlhfless.diagnosis.asynchronous import asynchronous
from rlhfless.diagnosis.completion import completion
from rlhfless.diagnosis.counts import counts
from rlhfless.diagnosis.diagnosis import Diagnosis
from rlhfless.diagnosis.engine_profile import engine_lines
from rlhfless.diagnosis.engine_speed import engine_speed
from rlhfless.diagnosis.gpus import NOT_STATED, GpusInWords, gpus_in_words
from rlhfless.diagnosis.groups import groups
from rlhfless.diagnosis.held_gpus import held_gpus
from rlhfless.diagnosis.impossible import without_impossible
from rlhfless.diagnosis.lengths import lengths
from rlhfless.diagnosis.levers import whole_step_levers, with_lines, without_schedules
from rlhfless.diagnosis.logged_run import LoggedRun, Stated
from rlhfless.diagnosis.memory import memory
from rlhfless.diagnosis.numbers import Collected, Finding, Part
from rlhfless.diagnosis.phases import phases, step_bar, synchronous, with_stated_phases
from rlhfless.diagnosis.prompts import prompts
from rlhfless.diagnosis.runs import each_run, runs
from rlhfless.diagnosis.tool_waits import tool_waits
from rlhfless.diagnosis.whole_run import time_alone, whole_run
from rlhfless.trace import ImportedLog, OpenedLog, Trace, allocation_metrics, gpu_seconds_if_held, read_log, response_limit
from rlhfless.trace.clock import clock_words
from rlhfless.trace.importers import model_config
from rlhfless.trace.importers.scalars import runs_of
from rlhfless.trace.metrics.phase_costs import gpus_by_step
from rlhfless.trace.metrics.step_times import with_step_times
from rlhfless.trace.schema.prices import AS_STATED

Section = Callable[[LoggedRun, Collected], Part]
"""Returns what it finds in a run; the parts of the sections before it are given."""

SECTIONS: tuple[Section, ...] = (
    held_gpus, phases, whole_run, asynchronous, lengths, counts, engine_lines, tool_waits, engine_speed, prompts, memory,
    completion, groups, whole_step_levers,
)  # fmt: skip
"""In this order: each may use the numbers of those before it."""


def diagnose(log: ImportedLog | OpenedLog | Trace | pd.DataFrame | str | Path, stated: Stated | None = None) -> Diagnosis:
    """Return what limits a run, by arithmetic on its log; no GPU, latency profile or simulation is needed.

    Args:
        log: an opened or imported log, a trace, a frame with one row per response, or a path.
        stated: facts that the log may lack, such as the number of GPUs.

    Raises:
        TraceError: the path is not a log.

    Example:
        >>> import pandas as pd
        >>> log = pd.DataFrame({"step": 0, "prompt_id": range(64), "sample": 0, "response_tokens": [100] * 63 + [1000]})
        >>> round(diagnose(log).numbers["slot_idle_share_at_most"].value, 3)
        0.886
    """
    whole, each = logged_runs(log, stated or Stated())
    each = [with_stated_phases(one) for one in each]
    if len(each) == 1:
        return _diagnosed(each[0], collect(each[0]))
    compared = Collected()
    compared.add(runs(whole, compared))
    return replace(_diagnosed(whole, compared), runs=tuple(_diagnosed(run, collect(run)) for run in each))


def logged_runs(
    log: ImportedLog | OpenedLog | Trace | pd.DataFrame | str | Path, stated: Stated
) -> tuple[LoggedRun, list[LoggedRun]]:
    """Return what the arithmetic needs of a log: of all of it, and of each of its runs."""
    if isinstance(log, pd.DataFrame):
        log = Trace(log)
    if isinstance(log, Trace):
        log = OpenedLog(log, pd.DataFrame({"step": []}), str(log.meta.get("framework") or ""))
    if isinstance(log, str | Path):
        log = read_log(log)
    trace = log.trace if isinstance(log, OpenedLog) else None if log.rollouts is None else log.trace()
    source = Path(trace.source or "log").name if trace is not None else Path(log.source).name  # type: ignore[union-attr]
    whole = LoggedRun(
        source, log.framework, log.scalars, engine=log.engine, facts=log.facts, stated=stated,
        notes=() if log.summary is None else tuple(log.summary.notes),
    )  # fmt: skip
    if trace is None:
        if log.format is model_config.FORMAT:  # type: ignore[union-attr]
            whole = replace(whole, config=str(log.source))  # type: ignore[union-attr]
        return whole, _by_run(whole)
    facts, price = {**_recorded(trace), **whole.facts}, str(trace.meta.get(AS_STATED, ""))
    clock = clock_words(trace.meta) if len(trace.allocations) else ""
    whole = replace(whole, facts=facts, responses=trace.rollouts, price=price, clock=clock)
    return whole, [_with_responses(whole, trace, name) for name in trace.runs]


def _with_responses(whole: LoggedRun, trace: Trace, name: str) -> LoggedRun:
    tables = {table: getattr(trace, table) for table in ("rollouts", "allocations", "spans", "events")}
    of_run = trace.with_rows(**{table: frame[frame["run"] == name] for table, frame in tables.items()})
    logged = of_run.with_rows(allocations=of_run.allocations.iloc[:0])
    steps = _with_held_steps(with_step_times(whole.steps, logged).scalars, of_run.allocations)
    named, held = name if len(trace.runs) > 1 else "", allocation_metrics(of_run)
    facts = {**whole.facts, **_if_held(of_run)}
    return replace(whole, steps=steps, responses=of_run.rollouts, allocations=held, facts=facts, run=named)


def _if_held(of_run: Trace) -> dict[str, float]:
    """Return the GPUs of an executed run, and their GPU-seconds if all were held throughout; nothing where they are unknown."""
    gpu_s = gpu_seconds_if_held(of_run) if len(of_run.allocations) else math.nan
    return {} if math.isnan(gpu_s) else {"gpus_if_held": float(max(gpus_by_step(of_run).values())), "gpu_s_if_held": gpu_s}


def _with_held_steps(steps: pd.DataFrame, allocations: pd.DataFrame) -> pd.DataFrame:
    """Return the steps with the seconds of each whole one: of an executed run, from its first GPU to the release of its last.

    Args:
        allocations: of one run; empty where a framework logged it.
    """
    if allocations.empty or ("step_s" in steps.columns and steps["step_s"].notna().any()):
        return steps
    of_step = allocations.groupby("step")
    held = (of_step["end_s"].max() - of_step["start_s"].min()).rename("step_s").reset_index()
    return steps.drop(columns="step_s", errors="ignore").merge(held, on="step", how="outer").sort_values("step")


def _recorded(trace: Trace) -> dict[str, float]:
    """Return what an executed run recorded of its GPUs and its limit, as facts of the run."""
    cluster, limit = trace.meta.get("cluster"), response_limit(trace.meta)
    facts = {}
    if isinstance(cluster, dict):
        nodes, gpus_per_node = (cluster.get(name) for name in ("nodes", "gpus_per_node"))
        if isinstance(nodes, int) and isinstance(gpus_per_node, int) and min(nodes, gpus_per_node) > 0:
            facts["gpus"] = float(nodes * gpus_per_node)
    return {**facts, "max_response_tokens": float(limit)} if isinstance(limit, int) and limit > 0 else facts


def _by_run(whole: LoggedRun) -> list[LoggedRun]:
    """The runs of a log of scalars: its column ``run`` names them where there are several."""
    several = len(runs_of(whole.steps)) > 1
    return [replace(run, run=name if several else "") for name, run in each_run(whole)]


def _diagnosed(run: LoggedRun, found: Collected) -> Diagnosis:
    return Diagnosis(
        run.source, run.framework, run.run, ranked(found.findings), found.numbers, step_bar(run),
        tuple(with_lines(found.levers, run.framework)), tuple(found.cannot_say), tuple(found.notes), run.notes,
        clock=run.clock, gpus=_gpus(run, found),
    )  # fmt: skip


def _gpus(run: LoggedRun, found: Collected) -> GpusInWords:
    """The GPUs of one logged run in words; those of an executed one are in its trace, those of several runs in each of them."""
    if len(run.allocations) or len(runs_of(run.steps)) > 1:
        return NOT_STATED
    derived = found.numbers.get("gpus") or found.numbers.get("gpus_generate")
    return gpus_in_words(run, derived, apart=synchronous(run) is False)


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings, the ones that cost most of the run's time or GPU-hours first.

    A limit stands before the tail, whose lengths it cut, and a slow engine before both, as no schedule mends it. Those of which
    only a share of responses is known stand last, by that share.
    """
    findings = tuple(findings)
    tail = max((one.at_stake for one in findings if one.kind == "tail"), default=0.0)

    def rank(one: Finding) -> tuple[bool, float, int]:
        if one.kind == "engine":
            return True, max(one.at_stake, tail), 2
        if one.kind == "limit" and (one.costs is not None or tail):
            return True, max(one.costs or 0.0, tail), 1
        return one.costs is not None, one.at_stake if one.costs is None else one.costs, 0

    return tuple(sorted(findings, key=rank, reverse=True))


def collect(run: LoggedRun) -> Collected:
    """Return what all sections find."""
    run, impossible = without_impossible(run)
    found = Collected(notes=list(impossible))
    for section in SECTIONS:
        found.add(section(run, found))
    without_schedules(found)
    found.add(time_alone(found))
    return found
