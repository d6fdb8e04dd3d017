"""Plots the value that policies reach against the sharpness of the forecast that they plan with.

Input is one ``ValueOfInformation``: values relative to the random split, the information limit and the proven bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.lines import line, lines
from rlhfless.plots.palette import BOUND, VERMILLION, policy_styles
from rlhfless.plots.style import clean, hover, message_figure, number, styled
from rlhfless.plots.tables import figure_of

if TYPE_CHECKING:
    from rlhfless.analysis.value_of_information import ValueOfInformation

TITLE = "What better length forecasts are worth"
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def plot_value_of_information(result: ValueOfInformation) -> DataFigure:
    """Plot value against the forecast, the least sharp on the left: a line per policy, the information limit, the bound.

    Returns:
        A figure, whose table has ``forecast, policy, value, low, high``, with the information limit and the lower bound as
        policies; without runs one that says so.
    """
    values, limits = _values(result), result.limits.reset_index(drop=True)
    bound = pd.DataFrame({"forecast": limits["forecast"], "policy": "lower bound", "value": result.bound})
    table = pd.concat([values, limits.assign(policy="information limit"), bound], ignore_index=True)
    if values.empty:
        return message_figure(TITLE, "There are no runs to show.", table)
    policies = values["policy"].unique().tolist()
    styles = {
        policy: (style, dash)
        for (policy, style), dash in zip(policy_styles(policies).items(), DASHES * len(policies), strict=False)
    }

    def style(policy: str, rows: pd.DataFrame) -> dict[str, Any]:
        (colour, symbol), dash = styles[policy]
        return {
            "name": clean(policy), "line": {"color": colour, "dash": dash},
            "marker": {"symbol": symbol, "size": 9, "color": colour},
            "error_y": {"type": "data", "array": rows["high"] - rows["value"], "thickness": 1, "width": 3},
        }  # fmt: skip

    def text(row: Any) -> str:
        spread = ("2 standard errors", f"{row.low:.3f} to {row.high:.3f}")
        return hover([("weighted time and cost", number(row.value)), spread], clean(f"{row.policy}, {row.of}"))

    fig = figure_of(table)
    shown = values.assign(of=values["forecast"], forecast=values["forecast"].map(clean))
    fig.add_traces(lines(shown, "forecast", "value", "policy", style, text))
    best = limits.assign(forecast=limits["forecast"].map(clean))
    fig.add_trace(
        line(
            best, "forecast", "value", name="best with this forecast (estimated)", mode="lines",
            line={"color": VERMILLION, "dash": "dash"}, hovertemplate="%{x}: %{y:.3f}<extra>best with this forecast</extra>",
        )
    )  # fmt: skip
    fig.add_hline(y=result.bound, line={"color": BOUND, "dash": "dash", "width": 2})
    fig.update_xaxes(title="forecast quality →", type="category")
    fig.update_yaxes(title="weighted time and cost, random = 1 (lower is better)")
    note = f"dashed grey: lower bound with known lengths, {result.bound:.3f}; bars: 2 standard errors over drawn lengths"
    return styled(fig, TITLE, note, height=460)


def _values(result: ValueOfInformation) -> pd.DataFrame:
    """Return a row per forecast and policy: ``forecast, policy, value, low, high``.

    The last two are 2 standard errors of the ratio to random on either side.
    """
    columns = ["forecast", "policy", "value", "low", "high"]
    if result.runs.empty:
        return pd.DataFrame({name: [] for name in columns})
    table = result.summary()
    error = 2 * table["over_random_error"] * table["value"]
    return table.assign(low=table["value"] - error, high=table["value"] + error)[columns]
