"""A plotly figure that has its data as a table."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go


class DataFigure(go.Figure):  # type: ignore[misc]  # plotly is not typed
    """A plotly figure with the numbers that it draws.

    Pages, pictures and notebooks contain the drawing only; copies of the figure keep the table.

    Attributes:
        table: tidy rows with units in the names of columns, and names as the log has them. A figure of several tables has a
            first column ``table``.

    Example::

        figure = plot_plane(results)
        figure.table  # policy, time_s, gpu_seconds, ...
    """

    table: pd.DataFrame = pd.DataFrame()

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"table": self.table})
