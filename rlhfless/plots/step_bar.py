"""Plots one step as it was logged: a bar of its phases in seconds, the part that nobody named included."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import GREY, OUTLINE, PHASE_STYLES, ink_on
from rlhfless.plots.style import clean, hover, message_figure, number, styled
from rlhfless.plots.tables import figure_of

TITLE = "One step as logged"
COLOURS = {
    phase: PHASE_STYLES[style].colour
    for phase, style in {
        "generation": "decode", "waiting for generation": "start", "rewards and log probabilities": "prepare",
        "learning": "learn",
        "sending weights": "sync",
    }.items()
}  # fmt: skip
LITTLE = 0.005  # share that is rounded to nothing
LETTER_SHARE = 0.0085  # of the bar, of a letter


class _Data(NamedTuple):
    """Data of ``plot_step_bar``.

    Attributes:
        step: rows ``phase, kind, seconds, share``. missing: why there is nothing to show, or the empty text.
    """

    step: pd.DataFrame
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return ``step``."""
        return self.step


def _data(step: pd.DataFrame) -> _Data:
    """Return the data of ``plot_step_bar``; for the argument see there."""
    return _Data(step, "" if len(step) else "The log has no time of a step.")


def plot_step_bar(step: pd.DataFrame) -> DataFigure:
    """Plot one step by phase as one bar.

    Args:
        step: rows ``phase, kind, seconds, share`` of ``Diagnosis.step``; a phase's colour is that of its kind.

    Returns:
        A figure; without rows one that says that the log has no time of a step.
    """
    info = _data(step)
    if info.missing:
        return message_figure(TITLE, info.missing, info.to_frame())
    fig = figure_of(info.to_frame())
    for row in step.itertuples():
        colour, short = COLOURS.get(str(row.kind), GREY), str(row.phase).rpartition("/")[2]
        name = clean(f"{short} ({row.share:.0%})")
        fig.add_bar(
            x=[row.seconds], y=["step"], orientation="h", name=name, showlegend=row.share >= LITTLE,
            marker={"color": colour, "line": {"color": OUTLINE, "width": 1}},
            text=[name if row.share >= LETTER_SHARE * len(name) else ""], textposition="inside", insidetextanchor="middle",
            textangle=0, insidetextfont={"color": ink_on(colour)}, hoverinfo="text",
            hovertext=[hover([("seconds", number(row.seconds, "s")), ("share", f"{row.share:.1%}")], clean(str(row.phase)))],
        )  # fmt: skip
    total = float(step["seconds"].sum())
    fig.update_yaxes(visible=False)
    fig.update_xaxes(title="seconds", range=[0, 1.02 * total])
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "y": -0.6, "yanchor": "top", "traceorder": "normal"}
    return styled(fig, f"{TITLE}: {number(total, 's')}", height=230, barmode="stack", legend=legend)
