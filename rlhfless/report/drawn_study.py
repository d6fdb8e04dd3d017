"""The findings of a report about a log with scalars alone: those of every draw of its lengths, as one range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from rlhfless.analysis import GpuCount, gpu_counts
from rlhfless.report.progress import Begin, silent
from rlhfless.report.schedules import simulate_schedules
from rlhfless.report.study import AgainstSchedules, Assumptions, LoggedRunFindings, against_schedules, calibrate_log, study_log
from rlhfless.simulate import SimulationConfig
from rlhfless.trace import OpenedLog
from rlhfless.trace.metrics.cross_check import COUNTED

FURTHER_STEPS = 3  # that are simulated of each draw but the first


def study_drawn(
    logs: Sequence[OpenedLog], setting: SimulationConfig, stated: Assumptions, max_steps: int, begin: Begin = silent
) -> LoggedRunFindings:
    """Return what ``study_log`` finds of the first log, with savings and idle shares that cover all of them.

    Args:
        logs: draws of the same run (``analysis.drawn_lengths``). begin: is told every part of the work.

    Raises:
        TraceError, PlanningError, InputError: as ``study_log``.
    """
    findings = study_log(logs[0], setting, stated, max_steps, begin)
    begin("drawing other lengths")
    draws = [_further(log, setting, stated, min(max_steps, FURTHER_STEPS)) for log in logs[1:]]
    others = [draw.against for draw in draws]
    accounts = tuple(account for other in others for account in (other.own.account, *other.own.shuffled))
    return replace(
        findings,
        reserved=widened([findings.reserved, *(other.reserved for other in others)]),
        given_back=widened([findings.given_back, *(other.given_back for other in others)]),
        shuffled=(*findings.shuffled, *accounts),
        gpu_counts=_of_all_draws(findings.gpu_counts, [draw.counts for draw in draws]),
        checks=tuple(check for check in findings.checks if check.how != COUNTED),  # lengths were drawn to meet these
        router=None,  # it needs prompts that come again, and nobody knows which are long
    )


class _Draw(NamedTuple):
    """What a further draw of the lengths says of the run."""

    against: AgainstSchedules
    counts: tuple[GpuCount, ...]


def _further(log: OpenedLog, setting: SimulationConfig, stated: Assumptions, max_steps: int) -> _Draw:
    times = calibrate_log(log, setting, stated)
    setting, setup, phases, calibrated = times.setting, times.setup, times.phases, times.calibrated
    schedules = simulate_schedules(log.trace, setting, max_steps, dispatch=setup.dispatch, further=setup.shuffled)
    found = against_schedules(schedules, setting, setup, phases)
    counts = gpu_counts(schedules.logged, setting, setup, phases, factor=calibrated.factor)
    return _Draw(found, counts)


def _of_all_draws(first: Sequence[GpuCount], others: Sequence[Sequence[GpuCount]]) -> tuple[GpuCount, ...]:
    """Return the numbers of replicas that every draw could run, with the seconds of all draws beside each other."""
    tables = [{one.key: one for one in counts} for counts in others]
    found = []
    for count in first:
        key = count.key
        if all(key in table for table in tables):
            further = {
                f"{name}, draw {draw}": time_s
                for draw, table in enumerate(tables, start=2)
                for name, time_s in table[key].time_s.items()
            }
            found.append(replace(count, time_s={**count.time_s, **further}))
    return tuple(found)


def widened(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return one row per policy: the lowest low, the highest high and most, and the mean of means."""
    rows = pd.concat(tables)
    how = {name: "min" if name.endswith(" low") else "mean" if name.endswith(" mean") else "max" for name in rows.columns[1:]}
    return rows.groupby("policy", sort=False).agg(how).reset_index()
