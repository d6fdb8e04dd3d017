"""A plotly figure that has its data as a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import plotly.graph_objects as go


class DataFigure(go.Figure):  # type: ignore[misc]  # plotly is not typed
    """A plotly figure with the numbers that it draws.

    Pages, pictures and notebooks contain the drawing only; copies of the figure keep the table.

    Attributes:
        table: tidy rows with units in the names of columns, and names as the log has them. A figure of several tables has a
            first column ``table``. It is set as a table, or as a function that makes it when it is first read: dashboards
            draw a hundred thousand spans again and again, and read no table.

    Example::

        figure = plot_plane(results)
        figure.table  # policy, time_s, gpu_seconds, ...
    """

    _rows: pd.DataFrame | Callable[[], pd.DataFrame] = pd.DataFrame()

    @property
    def table(self) -> pd.DataFrame:
        if callable(self._rows):
            self._rows = self._rows()
        return self._rows

    @table.setter
    def table(self, rows: pd.DataFrame | Callable[[], pd.DataFrame]) -> None:
        self._rows = rows

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"_rows": self.table})
