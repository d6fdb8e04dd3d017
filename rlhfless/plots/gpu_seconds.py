"""Plots a run's GPU-seconds by use: work by phase, idle time by cause.

Input are the lines of an ``Account``.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
import plotly.graph_objects as go

from rlhfless.plots.palette import BLUE, VERMILLION
from rlhfless.plots.style import clean, cost_line, hover, lines_of, message_figure, number, styled

TITLE = "Where the GPU-seconds went"
LABEL_CHARS = 22  # of a line of a bar's name: longer ones leave a telephone no room for the bars
KINDS = ((False, "work", BLUE, ""), (True, "idle", VERMILLION, "/"))


class AccountInfo(NamedTuple):
    """The bars: ``use, idle, gpu_s, usd, share``, work first, each group in descending order.

    Attributes:
        idle_share: of all GPU-seconds. missing: why there is nothing to show, or the empty text.
    """

    lines: pd.DataFrame
    idle_share: float
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return ``lines``."""
        return self.lines


def account_info(lines: pd.DataFrame) -> AccountInfo:
    """Return the data of ``plot_account`` from ``Account.lines``."""
    shown = lines[lines["gpu_s"] > 0].reset_index(drop=True)
    if shown.empty:
        return AccountInfo(shown, 0.0, "No GPU was allocated.")
    return AccountInfo(shown, float(shown.loc[shown["idle"], "gpu_s"].sum() / shown["gpu_s"].sum()))


def plot_account(lines: pd.DataFrame, empty_slots_gpu_s: float = 0.0) -> go.Figure:
    """Plot one bar per use of GPUs, its length in GPU-seconds; idle bars are hatched.

    Args:
        lines: ``Account.lines``. empty_slots_gpu_s: of decoding, lost to empty slots; the second line names them.
    """
    info = account_info(lines)
    if info.missing:
        return message_figure(TITLE, info.missing)
    fig = go.Figure()
    for idle, name, colour, pattern in KINDS:
        rows = info.lines[info.lines["idle"] == idle]
        if rows.empty:
            continue
        texts = [
            hover(
                [("GPU-seconds", number(row.gpu_s)), ("share", f"{row.share:.1%}"), *cost_line(row.usd)],
                clean(row.use),
            )
            for row in rows.itertuples()
        ]
        fig.add_bar(
            x=rows["gpu_s"], y=[lines_of(clean(use), LABEL_CHARS) for use in rows["use"]], orientation="h", name=name,
            hovertext=texts, hoverinfo="text",
            marker={"color": colour, "pattern": {"shape": pattern, "fgcolor": "white", "size": 7}},
            text=[f"{share:.1%}" for share in rows["share"]], textposition="outside", cliponaxis=False,
        )  # fmt: skip
    fig.update_yaxes(autorange="reversed", automargin=True)
    fig.update_xaxes(title="GPU-seconds", range=[0, 1.25 * info.lines["gpu_s"].max()])
    empty = empty_slots_gpu_s / float(info.lines["gpu_s"].sum())
    subtitle = f"{info.idle_share:.1%} of the GPU-seconds are idle"
    subtitle += f"; {empty:.1%} are empty slots: room for more responses in decoding batches" if empty > 0 else ""
    return styled(fig, TITLE, subtitle, height=162 + 34 * len(info.lines), barmode="overlay", bargap=0.3)
