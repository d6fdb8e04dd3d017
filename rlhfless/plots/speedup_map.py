"""Plots how much faster drafts make decoding, by batch size and acceptance, and from which acceptance on they pay.

Input is a latency profile and a mean context. Every cell has the best draft length for its batch and acceptance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import ORANGE, VERMILLION
from rlhfless.plots.style import clean, hover, message_figure, styled
from rlhfless.plots.tables import figure_of, stacked
from solver.model.acceptance import Acceptance
from solver.model.latency import LatencyModel
from solver.timing.draft_length import best_length

TITLE = "Speed-up of decoding by speculative decoding"
RATES = tuple(round(0.05 * k, 2) for k in range(20))
"""Compared acceptance rates: the probability that a drafted token is accepted if all tokens before it were."""

HALVINGS = 20  # of the interval in which drafts begin to pay
SCALE = ((0.0, "rgba(127,127,127,0.25)"), (0.001, "rgba(0,114,178,0.10)"), (1.0, "rgba(0,114,178,1.0)"))
"""Grey where drafts do not pay, then see-through blue to blue."""


class _Data(NamedTuple):
    """Data of ``plot_speedup_map``.

    Attributes:
        table: one row per batch and acceptance rate: ``batch, rate, draft_tokens, speedup`` of the best length.
        limits: ``batch, pays_from``: the lowest rate at which a draft pays; NaN where none does.
        log_rate: the rate that gives the log's tokens per pass; NaN without a log.
        profile, context_tokens: of the latency model, and mean KV tokens of a response.
        missing: why there is nothing to show, or the empty text.
    """

    table: pd.DataFrame
    limits: pd.DataFrame
    log_rate: float
    profile: str
    context_tokens: float
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return the map and the limits below each other."""
        return stacked(map=self.table, limits=self.limits)


def _data(
    latency: LatencyModel,
    context_tokens: float,
    acceptance: Acceptance | None = None,
    *,
    max_draft_tokens: int = 8,
    batches: Sequence[int] | None = None,
) -> _Data:
    """Return the data of ``plot_speedup_map``, with the same arguments."""
    if batches is None:
        batches = [2**k for k in range(latency.max_batch.bit_length())]
    rows, limits = [], []
    for batch in batches:
        for rate in RATES:
            length, speedup = best_length(latency, batch, context_tokens, Acceptance.geometric(rate, max_draft_tokens))
            rows.append((batch, rate, length, speedup))
        limits.append((batch, _pays_from(latency, batch, context_tokens, max_draft_tokens)))
    return _Data(
        pd.DataFrame(rows, columns=["batch", "rate", "draft_tokens", "speedup"]),
        pd.DataFrame(limits, columns=["batch", "pays_from"]),
        float("nan") if acceptance is None else same_rate(acceptance),
        latency.name,
        context_tokens,
        "" if rows else "There are no batch sizes to show.",
    )


def same_rate(acceptance: Acceptance) -> float:
    """Return the constant acceptance rate with the same tokens per pass as ``acceptance`` at its longest draft.

    Example:
        >>> round(same_rate(Acceptance([0.5, 0.25, 0.125])), 3)
        0.5
    """
    most = acceptance.max_draft_tokens
    wanted = acceptance.tokens_per_pass(most)
    return _bisected(lambda rate: Acceptance.geometric(rate, most).tokens_per_pass(most) >= wanted)


def _pays_from(latency: LatencyModel, batch: int, context_tokens: float, most: int) -> float:
    return _bisected(lambda rate: best_length(latency, batch, context_tokens, Acceptance.geometric(rate, most))[0] > 0)


def _bisected(holds: Callable[[float], bool]) -> float:
    """Return the lowest rate from which on ``holds`` is true; NaN where it is true for none."""
    if not holds(1.0):
        return float("nan")
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def plot_speedup_map(
    latency: LatencyModel,
    context_tokens: float,
    acceptance: Acceptance | None = None,
    *,
    max_draft_tokens: int = 8,
    batches: Sequence[int] | None = None,
) -> DataFigure:
    """Plot the speed-up of the best draft length over no drafts, by batch size and acceptance rate.

    Args:
        latency: of the model and its GPUs. context_tokens: mean KV tokens of a response.
        acceptance: measured on a log; drawn as the rate that gives its tokens per pass.
        max_draft_tokens: longest draft. batches: sizes in rising order; powers of two up to the slots when None.

    Returns:
        A figure; without batch sizes one that says so.
    """
    info = _data(latency, context_tokens, acceptance, max_draft_tokens=max_draft_tokens, batches=batches)
    if info.missing:
        return message_figure(TITLE, info.missing, info.to_frame())
    speedup, length = (info.table.pivot(index="rate", columns="batch", values=name) for name in ("speedup", "draft_tokens"))
    texts = [
        [
            hover(
                [("drafts", f"{n} tokens per response" if n else "do not pay"), ("speed-up", f"{s:.2f}")],
                f"{batch} in the batch, {rate:.0%} accepted",
            )
            for batch, n, s in zip(speedup.columns, length.loc[rate], speedup.loc[rate], strict=True)
        ]
        for rate in speedup.index
    ]
    fig = figure_of(info.to_frame())
    fig.add_heatmap(
        x=speedup.columns, y=speedup.index, z=speedup.to_numpy(), zmin=1.0, colorscale=SCALE, hovertext=texts, hoverinfo="text",
        text=[[f"{n}" for n in row] for row in length.to_numpy()], texttemplate="%{text}", textfont={"size": 10},
        colorbar={"title": {"text": "speed-up", "side": "right"}, "thickness": 14},
    )  # fmt: skip
    fig.add_scatter(
        x=info.limits["batch"], y=info.limits["pays_from"], mode="lines+markers", name="drafts pay from here on",
        line={"color": VERMILLION, "width": 3}, showlegend=True,
        hovertemplate="%{x} in the batch: from %{y:.0%} on<extra></extra>",
    )  # fmt: skip
    if np.isfinite(info.log_rate):
        ends = [info.limits["batch"].iloc[0], info.limits["batch"].iloc[-1]]
        fig.add_scatter(
            x=ends, y=[info.log_rate] * 2, mode="lines", name=f"this log accepts {info.log_rate:.0%}", hoverinfo="name",
            line={"color": ORANGE, "dash": "dash", "width": 3}, showlegend=True,
        )  # fmt: skip
    fig.update_xaxes(title="responses in the batch", type="category")
    fig.update_yaxes(title="share of drafted tokens accepted", range=[-0.025, 0.975], tickformat=".0%")
    note = (
        f"{clean(info.profile)}, {info.context_tokens:,.0f} tokens of context; numbers: best draft length in tokens, "
        "0 where no draft pays"
    )
    return styled(fig, TITLE, note, height=520, above=30, legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"})
