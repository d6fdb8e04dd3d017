"""Report table of what schedules would have saved.

Input are the savings as numbers (``report.study.Findings``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import MINUS
from rlhfless.report.study import Findings


def savings_table(page: Page, findings: Findings) -> None:
    """Add what every schedule would have saved: of time where all GPUs are held, of time and GPU-seconds where they are not."""
    weight = findings.times.setting.objective.time_weight
    held, released = (table.set_index("policy") for table in (findings.reserved, findings.given_back))
    rows = [
        (
            str(policy),
            _replicas(released.loc[policy] if policy in released.index else held.loc[policy]),
            *(_cells(held.loc[policy], "time") if policy in held.index else ("", "")),
            *(_cells(released.loc[policy], kind)[0] if policy in released.index else "" for kind in ("time", "GPU-seconds")),
            _cells(released.loc[policy], "GPU-seconds")[1] if policy in released.index else "",
        )
        for policy in dict.fromkeys([*held.index, *released.index])
    ]
    head = (
        "schedule", "replicas", "GPUs held: time saved", "most of any schedule", "GPUs released: time saved",
        "GPU-seconds saved", "most of any schedule that takes as long",
    )  # fmt: skip
    of = "whole steps" if findings.times.whole_steps else "generation"
    page.table(
        f"What schedules would save of {of}. GPUs held until the step ends: schedules for the least time. GPUs released when "
        f"their actor is done: schedules at time weight {weight:g}", head, merged(rows),
    )  # fmt: skip
    page.text(
        f"Percentages are relative to the run's own {of}. A range covers resampled steps (5th to 95th percentile) and every "
        "assignment that the run may have used; it leaves out the error of the latency profile. A negative number means that "
        "the schedule is worse than the run. The most that any schedule can save follows from the lower bound of generation, "
        "which assumes that lengths are known and that migration is free."
    )


def merged(rows: Iterable[Sequence[str]], name: int = 0) -> list[tuple[str, ...]]:
    """Return table rows with those that differ in nothing but one column as one row, whose names stand beside each other.

    Args:
        name: index of that column.
    """
    names: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        names.setdefault((*row[:name], *row[name + 1 :]), []).append(row[name])
    return [(*rest[:name], ", ".join(of), *rest[name:]) for rest, of in names.items()]


def _replicas(row: pd.Series) -> str:
    low, high = int(row["replicas low"]), int(row["replicas high"])
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _cells(row: pd.Series, kind: str) -> tuple[str, str]:
    return _range(row, kind), percent(row[f"{kind} most"])


def _range(row: pd.Series, kind: str) -> str:
    return percent_range(float(row[f"{kind} low"]), float(row[f"{kind} high"]))


def percent_range(low: float, high: float) -> str:
    """Return a range of shares, as one number where both ends read the same."""
    least, most = percent(low), percent(high)
    return least if least == most else f"{least} to {most}"


def percent(share: float) -> str:
    """Return a share as a percentage of two digits, with a minus where it is negative."""
    text = f"{abs(share):.0%}" if abs(share) >= 0.1 else f"{abs(share):.1%}"
    return f"{MINUS}{text}" if share < 0 and text.strip("0.%") else text
