"""Report text and tables of possible savings, with the same wording for logged and for executed runs.

Input are the savings as numbers (``report.study.Savings``) and the names of policies on the page.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import MINUS
from rlhfless.report.schedules import SHOWN
from rlhfless.report.study import Savings


def savings_in_short(found: Savings) -> Iterator[str]:
    """Return the range and the maximum: of time on reserved GPUs, of GPU-seconds where GPUs can be released."""
    time, cost = found.best_time, found.best_cost
    yield (
        f"If the GPUs are reserved and only time can be saved: {_saved(time, 'time')} of a step's time by {_name(time)}, "
        f"{_most(time, 'time')} by any schedule."
    )
    slower = f", in {_change(-cost['time mean'])} time" if abs(cost["time mean"]) >= 0.005 else ""
    yield (
        f"If GPUs can be given back as soon as an actor is done: {_saved(cost, 'GPU-seconds')} of the GPU-seconds, and of the "
        f"money, by {_name(cost)}{slower}; {_most(cost, 'GPU-seconds')} by any schedule that takes as long."
    )


def savings_tables(page: Page, found: Savings) -> None:
    """Add tables of every schedule: first those that minimise time, then those that weigh time and cost."""
    for caption, table, kinds, heads in (
        (
            "All GPUs are paid for in any case: schedules that want the least time",
            found.reserved, ("time",), ("time", "any schedule at most"),
        ),
        (
            f"GPUs are given back: schedules that weigh time and cost at {found.setting.objective.time_weight:g}",
            found.given_back, ("time", "GPU-seconds"),
            ("time", "of any schedule at most", "GPU-seconds", "of any that takes as long at most"),
        ),
    ):  # fmt: skip
        rows = [(_name(row), *(cell for kind in kinds for cell in _cells(row, kind))) for _, row in table.iterrows()]
        page.table(caption, ("schedule", *heads), rows)
    page.text(
        "What any schedule could save at most is the bound of generation, which knows all lengths and moves responses for "
        "nothing. Preparation and learning stay as they were, after generation; a larger or an earlier learner can save more."
    )


def _cells(row: pd.Series, kind: str) -> tuple[str, str]:
    return _range(row, kind), _percent(row[f"{kind} most"])


def _most(row: pd.Series, kind: str) -> str:
    most = row[f"{kind} most"]
    return f"at most {_percent(most)}" if most > 0 else "nothing"


def _saved(row: pd.Series, kind: str) -> str:
    low, high = row[f"{kind} low"], row[f"{kind} high"]
    if high <= 0:
        return f"nothing ({_percent(low)} to {_percent(high)})"
    return _range(row, kind)


def _range(row: pd.Series, kind: str) -> str:
    low, high = (_percent(row[f"{kind} {end}"]) for end in ("low", "high"))
    return low if low == high else f"{low} to {high}"


def _percent(share: float) -> str:
    text = f"{abs(share):.0%}" if abs(share) >= 0.1 else f"{abs(share):.1%}"
    return f"{MINUS}{text}" if share < 0 and text.strip("0.%") else text


def _change(share: float) -> str:
    return f"{_percent(abs(share))} {'more' if share > 0 else 'less'}"


def _name(row: pd.Series) -> str:
    return SHOWN[row["policy"]][0] if row["policy"] in SHOWN else str(row["policy"])
