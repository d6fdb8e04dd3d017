"""Plots the response lengths of several logs: the share of responses that are at most so long, a line per log.

The length of a response that was cut off is a lower bound; the legend says how many are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.lines import lines
from rlhfless.plots.palette import line_looks
from rlhfless.plots.style import clean, counted, hover, legend_below, message_figure, number, styled
from rlhfless.plots.tables import figure_of
from rlhfless.trace import Trace

TITLE = "Response lengths of several logs"
SHARES = np.linspace(0.0, 1.0, 101)
PLOT_PX, ABOVE_PX, BELOW_PX, LEGEND_PX = 320, 82, 70, 24


def length_quantiles(tokens: ArrayLike) -> pd.DataFrame:
    """Return ``share, tokens``: the length that each of ``SHARES`` of the responses does not exceed."""
    return pd.DataFrame({"share": SHARES, "tokens": np.quantile(np.asarray(tokens, dtype=float), SHARES)})


def plot_length_quantiles(traces: Mapping[str, Trace], step: int | None = None) -> DataFigure:
    """Plot the share of responses up to each length, a line per log; of one step alone where ``step`` is given."""
    tables, labels, cut_off_any = [], {}, False
    for log, trace in traces.items():
        rows = trace.rollouts if step is None else trace.rollouts[trace.rollouts["step"] == step]
        if rows.empty:
            continue
        cut_off = int(rows["finish_reason"].isin(["length", "aborted"]).sum())
        cut_off_any |= cut_off > 0
        words = counted(len(rows), "response") + (f", {cut_off:,} cut off" if cut_off else "")
        labels[log] = f"{clean(log, 40)} ({words})"
        tables.append(length_quantiles(rows["response_tokens"]).assign(log=log))
    title = TITLE if step is None else f"{TITLE}, step {step}"
    if not tables:
        return message_figure(title, "There are no responses.", pd.DataFrame(columns=["log", "share", "tokens"]))
    table = pd.concat(tables, ignore_index=True)[["log", "share", "tokens"]]
    looks = line_looks(list(labels))
    fig = figure_of(table)

    def style(log: Any, _: pd.DataFrame) -> dict[str, Any]:
        return {"name": labels[log], "line": looks[log]["line"]}

    fig.add_traces(lines(table, "tokens", "share", "log", style, _hover, mode="lines"))
    fig.update_xaxes(title="response length (tokens)", **_scale(table["tokens"]))
    fig.update_yaxes(title="share of responses up to that length", tickformat=".0%", rangemode="tozero")
    note = "a response that was cut off would have been longer" if cut_off_any else ""
    below = BELOW_PX + LEGEND_PX * ((len(labels) + 1) // 2)
    return styled(
        fig, title, note, height=ABOVE_PX + PLOT_PX + below, legend=legend_below(PLOT_PX), margin={"t": ABOVE_PX, "b": below},
    )  # fmt: skip


def _hover(row: Any) -> str:
    return hover([("share of responses", f"{row.share:.0%}"), ("at most", number(row.tokens, "tokens"))], clean(row.log, 40))


def _scale(tokens: pd.Series) -> dict[str, Any]:
    """Return a logarithmic axis with ticks at 1, 2, 5, 10, ...; lengths of 0 tokens need a linear one."""
    low, high = float(tokens.min()), float(tokens.max())
    if low <= 0:
        return {"rangemode": "tozero"}
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return {"type": "log", "tickvals": [digit * 10**decade for decade in decades for digit in (1, 2, 5)]}
