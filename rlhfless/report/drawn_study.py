"""The findings of a report about a log with scalars alone: those of every draw of its lengths, as one range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from rlhfless.analysis.drawn_lengths import DRAWN
from rlhfless.report.schedules import simulate_schedules
from rlhfless.report.study import AgainstSchedules, Assumptions, ReportData, against_schedules, calibrate_log, study_log
from rlhfless.simulate import SimulationConfig
from rlhfless.trace import OpenedLog

FURTHER_STEPS = 3  # that are simulated of each draw but the first


def study_drawn(logs: Sequence[OpenedLog], setting: SimulationConfig, stated: Assumptions, max_steps: int) -> ReportData:
    """Return what ``study_log`` finds of the first log, with savings and idle shares that cover all of them.

    Args:
        logs: draws of the same run (``analysis.drawn_lengths``).

    Raises:
        TraceError, PlanningError, InputError: as ``study_log``.
    """
    first = study_log(logs[0], setting, stated, max_steps)
    findings = first.findings
    others = [_further(log, setting, stated, min(max_steps, FURTHER_STEPS)) for log in logs[1:]]
    accounts = tuple(account for other in others for account in (other.account, *other.shuffled))
    return first._replace(
        findings=replace(
            findings,
            reserved=widened([findings.reserved, *(other.reserved for other in others)]),
            given_back=widened([findings.given_back, *(other.given_back for other in others)]),
            shuffled=(*findings.shuffled, *accounts),
            drawn=logs[0].trace.meta[DRAWN],
        )
    )


def _further(log: OpenedLog, setting: SimulationConfig, stated: Assumptions, max_steps: int) -> AgainstSchedules:
    setting, setup, phases, _, _ = calibrate_log(log, setting, stated)
    schedules = simulate_schedules(log.trace, setting, max_steps, dispatch=setup.dispatch, further=setup.shuffled)
    return against_schedules(schedules, setting, setup, phases)


def widened(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return one row per policy: the lowest low, the highest high and most, and the mean of means."""
    rows = pd.concat(tables)
    how = {name: "min" if name.endswith(" low") else "mean" if name.endswith(" mean") else "max" for name in rows.columns[1:]}
    return rows.groupby("policy", sort=False).agg(how).reset_index()
