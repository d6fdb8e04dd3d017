"""Numbers of figures with their fast settings, each made once for all tests of this folder."""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd

from rlhfless.paper import FIGURES, Caption, Numbers, Sources

NOWHERE = Sources(None)  # stated models and the shipped run only, so that every machine tests the same
BESIDE = Sources.beside()


@cache
def found(name: str) -> Numbers:
    """A figure's numbers."""
    figure = FIGURES[name]
    return figure.numbers(figure.fast, NOWHERE)


def table(name: str, **where: Any) -> pd.DataFrame:
    """Those rows of a figure that have these values."""
    rows = found(name).table
    for column, value in where.items():
        rows = rows[rows[column] == value]
    assert len(rows), f"figure {name} has no rows with {where}"
    return rows


def caption(name: str) -> Caption:
    """A figure's caption."""
    figure = FIGURES[name]
    return figure.caption(figure.fast, found(name))
