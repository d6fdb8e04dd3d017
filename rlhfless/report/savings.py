"""Report text and tables of possible savings, with the same wording for logged and for executed runs.

Input are the savings as numbers (``report.study.Savings``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pandas as pd

from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import MINUS
from rlhfless.report.study import Savings

TOLD = 0.0005  # share of the time that is not rounded to 0.0%


def savings_in_short(savings: Savings) -> Iterator[str]:
    """Return the range and the maximum: of time on reserved GPUs, of GPU-seconds where GPUs can be released."""
    time, advised, best = savings.best_time, savings.tied.iloc[0], savings.best_cost
    yield (
        f"On reserved GPUs, only time can be saved. The best of these schedules ({time['policy']}) saves "
        f"{saved(time, 'time')} of a step's time; {at_most(time, 'time')} is possible with any schedule."
    )
    yield (
        "If GPUs are released as soon as an actor is done, the best of the schedules that any framework could run "
        f"({advised['policy']}) saves {_cost_and_time(advised)}."
    )
    if best["policy"] not in set(savings.tied["policy"]):
        yield f"The best of all of them ({best['policy']}) saves {_cost_and_time(best)}."


def _cost_and_time(row: pd.Series) -> str:
    """Return in words what a schedule saves of the GPU-seconds, what time it takes, and the most that is possible then."""
    cost = f"{saved(row, 'GPU-seconds')} of the GPU-seconds and of their cost"
    return f"{cost} {time_in_words(row)}; any schedule that takes as long saves {at_most(row, 'GPU-seconds')}"


def time_in_words(row: pd.Series) -> str:
    """Return the range of the time that a schedule saves, or that it takes more."""
    return f"and {saved(row, 'time')} of the time" if row["time high"] >= TOLD else f"for {more(row, 'time')} time"


def savings_tables(page: Page, savings: Savings) -> None:
    """Add tables of every schedule: first those that minimise time, then those that weigh time and cost."""
    for caption, table, kinds, heads in (
        (
            "Reserved GPUs: time saved by schedules that minimise time",
            savings.reserved, ("time",), ("time saved", "any schedule, at most"),
        ),
        (
            f"GPUs released when an actor is done: savings at time weight {savings.setting.objective.time_weight:g}",
            savings.given_back, ("time", "GPU-seconds"),
            ("time saved", "any schedule, at most", "GPU-seconds saved", "any schedule that takes as long, at most"),
        ),
    ):  # fmt: skip
        rows = [(str(row["policy"]), *(cell for kind in kinds for cell in _cells(row, kind))) for _, row in table.iterrows()]
        page.table(caption, ("schedule", *heads), merged(rows))
    page.text(
        "The most that any schedule can save follows from the lower bound of generation, which assumes known lengths and free "
        "migration. Preparation and learning stay unchanged, after generation; a larger or an earlier learner can save more."
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


def savings_frame(savings: pd.DataFrame, kinds: tuple[str, ...]) -> pd.DataFrame:
    """Return savings as texts: one row per schedule, and per kind (``time``, ``GPU-seconds``) the range and the most.

    Args:
        savings: rows of ``Savings.reserved`` or ``Savings.given_back``.
    """
    heads = [head for kind in kinds for head in (f"{kind} saved", f"any schedule, at most ({kind})")]
    rows = [[cell for kind in kinds for cell in _cells(row, kind)] for _, row in savings.iterrows()]
    return pd.DataFrame(rows, columns=heads, index=pd.Index(savings["policy"].astype(str), name="schedule"))


def _cells(row: pd.Series, kind: str) -> tuple[str, str]:
    return _range(row, kind), percent(row[f"{kind} most"])


def at_most(row: pd.Series, kind: str) -> str:
    """Return in words the most that any schedule saves of ``kind``: ``time`` or ``GPU-seconds``."""
    maximum = row[f"{kind} most"]
    return f"at most {percent(maximum)}" if maximum > 0 else "nothing"


def saved(row: pd.Series, kind: str) -> str:
    """Return in words the range that a schedule saves of ``kind``: ``time`` or ``GPU-seconds``."""
    low, high = row[f"{kind} low"], row[f"{kind} high"]
    if high <= 0:
        return f"nothing ({percent(low)} to {percent(high)})"
    return _range(row, kind)


def more(row: pd.Series, kind: str) -> str:
    """Return in words the range that a schedule takes more of ``kind``, where it saves none: ``1.0% to 2.0% more``."""
    low, high = (percent(max(0.0, -float(row[f"{kind} {end}"]))) for end in ("high", "low"))
    if high == percent(0.0):
        return "no more"
    return f"{low} more" if low == high else f"{low} to {high} more"


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
