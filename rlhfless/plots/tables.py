"""Puts the tables of a plot's data below each other, for ``to_frame`` of the info classes."""

from __future__ import annotations

import pandas as pd


def stacked(**tables: pd.DataFrame) -> pd.DataFrame:
    """Return tables as one, with a first column ``table`` that names them. Columns that a table does not have are empty there.

    stacked(policies=points, bound=curve)  # table, policy, time_s, gpu_seconds
    """
    named = [table.dropna(axis="columns", how="all").assign(table=name) for name, table in tables.items() if len(table)]
    if not named:
        return pd.DataFrame(columns=["table"])
    whole = pd.concat(named, ignore_index=True)
    return whole[["table", *whole.columns.drop("table")]]
