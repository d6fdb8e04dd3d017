"""Tables of plots: the figure of a table, and several tables below each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from rlhfless.plots.data_figure import DataFigure


def figure_of(table: pd.DataFrame | Callable[[], pd.DataFrame], **panels: Any) -> DataFigure:
    """Return an empty figure that has ``table``; ``panels`` are arguments of plotly's ``make_subplots``, such as ``rows``."""
    fig = DataFigure()
    fig.table = table
    return fig.set_subplots(**panels) if panels else fig


def stacked(**tables: pd.DataFrame) -> pd.DataFrame:
    """Return tables as one, with a first column ``table`` that names them. Columns that a table does not have are empty there.

    stacked(policies=points, bound=curve)  # table, policy, time_s, gpu_seconds
    """
    named = [table.dropna(axis="columns", how="all").assign(table=name) for name, table in tables.items() if len(table)]
    if not named:
        return pd.DataFrame(columns=["table"])
    whole = pd.concat(named, ignore_index=True)
    return whole[["table", *whole.columns.drop("table")]]
