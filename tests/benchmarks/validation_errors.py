"""Signed relative errors of predictions, and their quantiles by group.

Knows numbers only; nothing of what was predicted or measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

AIM_MEDIAN, AIM_P90 = 0.05, 0.15


def signed_error(predicted: float, measured: float) -> float:
    """Relative error, above 0 where the prediction is too long."""
    return predicted / measured - 1.0


def summary(errors: Sequence[float]) -> dict[str, float]:
    """Of signed errors: how many, the median with its sign, and the median and 90th percentile of their sizes."""
    signed = np.asarray(errors, dtype=float)
    sizes = np.abs(signed)
    return {
        "cases": len(signed),
        "median_signed": float(np.median(signed)),
        "median_size": float(np.median(sizes)),
        "p90_size": float(np.quantile(sizes, 0.9)),
        "worst_size": float(sizes.max()),
    }


def by_group(
    cases: Iterable[Mapping[str, Any]], error: str, group: Callable[[Mapping[str, Any]], str]
) -> dict[str, dict[str, float]]:
    """``summary`` of the field ``error`` of the cases of each group, in order of appearance, and of all of them together."""
    errors: dict[str, list[float]] = {}
    for case in cases:
        errors.setdefault(group(case), []).append(case[error])
    together = [one for own in errors.values() for one in own]
    return {name: summary(own) for name, own in errors.items()} | {"all": summary(together)}


def meets_aim(row: Mapping[str, float]) -> bool:
    """Whether a summary's median is within 5 % and its 90th percentile within 15 %."""
    return row["median_size"] <= AIM_MEDIAN and row["p90_size"] <= AIM_P90


def table(head: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    """Summaries as a table in Markdown."""
    lines = [
        f"| {head} | cases | signed median | median size | 90th percentile | worst | aim met |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        shown = f"{row['median_signed']:+.1%} | {row['median_size']:.1%} | {row['p90_size']:.1%} | {row['worst_size']:.0%}"
        lines.append(f"| {name} | {row['cases']} | {shown} | {'yes' if meets_aim(row) else 'no'} |")
    return "\n".join(lines)
