"""Plots the value that policies reach against the sharpness of the forecast that they plan with.

Input is one ``ValueOfInformation``: values relative to the random split, the information limit and the proven bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BOUND, VERMILLION, policy_styles
from rlhfless.plots.style import clean, hover, message_figure, number, styled
from rlhfless.plots.tables import figure_of

if TYPE_CHECKING:
    from rlhfless.analysis.value_of_information import ValueOfInformation

TITLE = "What better length forecasts are worth"
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


class _Data(NamedTuple):
    """Data of ``plot_value_of_information``.

    Attributes:
        table: one row per forecast and policy: ``forecast, policy, value``, and ``low, high``, 2 standard errors on either side
            of the ratio to random. limits: ``forecast, value``, the information limit.
        bound: no policy's value is lower.
        missing: why there is nothing to show, or the empty text.
    """

    table: pd.DataFrame
    limits: pd.DataFrame
    bound: float
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return the policies, the limit and the bound below each other."""
        more = [self.limits.assign(policy="information limit")]
        more += [pd.DataFrame({"forecast": self.limits["forecast"], "policy": "lower bound", "value": self.bound})]
        return pd.concat([self.table, *more], ignore_index=True)


def _data(result: ValueOfInformation) -> _Data:
    """Return the data of ``plot_value_of_information``."""
    if result.runs.empty:
        empty = pd.DataFrame({"forecast": [], "policy": [], "value": [], "low": [], "high": []})
        return _Data(empty, result.limits, result.bound, "There are no runs to show.")
    table = result.summary()
    error = 2 * table["over_random_error"] * table["value"]
    table = table.assign(low=table["value"] - error, high=table["value"] + error)
    return _Data(table[["forecast", "policy", "value", "low", "high"]], result.limits.reset_index(drop=True), result.bound)


def plot_value_of_information(result: ValueOfInformation) -> DataFigure:
    """Plot value against the forecast, the least sharp on the left: a line per policy, the information limit, the bound.

    Returns:
        A figure; without runs one that says so.
    """
    info = _data(result)
    if info.missing:
        return message_figure(TITLE, info.missing, info.to_frame())
    fig = figure_of(info.to_frame())
    policies = list(dict.fromkeys(info.table["policy"]))
    for (policy, style), dash in zip(policy_styles(policies).items(), DASHES * len(policies), strict=False):
        rows = info.table[info.table["policy"] == policy]
        fig.add_scatter(
            x=[clean(name) for name in rows["forecast"]], y=rows["value"], name=clean(policy), mode="lines+markers",
            line={"color": style.colour, "dash": dash}, marker={"symbol": style.symbol, "size": 9, "color": style.colour},
            error_y={"type": "data", "array": rows["high"] - rows["value"], "thickness": 1, "width": 3},
            hovertext=[
                hover(
                    [("weighted time and cost", number(value)), ("2 standard errors", f"{low:.3f} to {high:.3f}")],
                    clean(f"{policy}, {forecast}"),
                )
                for forecast, _, value, low, high in rows.itertuples(index=False)
            ],
            hoverinfo="text",
        )  # fmt: skip
    fig.add_scatter(
        x=[clean(name) for name in info.limits["forecast"]], y=info.limits["value"], name="best with this forecast (estimated)",
        mode="lines", line={"color": VERMILLION, "dash": "dash"},
        hovertemplate="%{x}: %{y:.3f}<extra>best with this forecast</extra>",
    )  # fmt: skip
    fig.add_hline(y=info.bound, line={"color": BOUND, "dash": "dash", "width": 2})
    fig.update_xaxes(title="forecast quality →", type="category")
    fig.update_yaxes(title="weighted time and cost, random = 1 (lower is better)")
    note = f"dashed grey: lower bound with known lengths, {info.bound:.3f}; bars: 2 standard errors over drawn lengths"
    return styled(fig, TITLE, note, height=460)
