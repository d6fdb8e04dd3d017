"""Plots how much faster drafts make decoding, by batch size and acceptance, and from which acceptance on they pay.

Input is a latency profile and a mean context. Every cell has the best draft length for its batch and acceptance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.heatmap import heatmap
from rlhfless.plots.lines import line, reference_line
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
        A figure, whose table has the parts ``map`` (``batch, rate, draft_tokens, speedup`` of the best length) and ``limits``
        (``batch, pays_from``: the lowest rate at which a draft pays, unknown where none does). Without batch sizes one that
        says so.
    """
    sizes = [2**k for k in range(latency.max_batch.bit_length())] if batches is None else batches
    rows, limits = [], []
    for batch in sizes:
        for rate in RATES:
            length, speedup = best_length(latency, batch, context_tokens, Acceptance.geometric(rate, max_draft_tokens))
            rows.append((batch, rate, length, speedup))
        limits.append((batch, _pays_from(latency, batch, context_tokens, max_draft_tokens)))
    cells = pd.DataFrame(rows, columns=["batch", "rate", "draft_tokens", "speedup"])
    limit = pd.DataFrame(limits, columns=["batch", "pays_from"])
    table = stacked(map=cells, limits=limit)
    if cells.empty:
        return message_figure(TITLE, "There are no batch sizes to show.", table)

    def text(row: Any) -> str:
        drafts = f"{row.draft_tokens} tokens per response" if row.draft_tokens else "do not pay"
        head = f"{row.batch} in the batch, {row.rate:.0%} accepted"
        return hover([("drafts", drafts), ("speed-up", f"{row.speedup:.2f}")], head)

    lengths = cells.pivot(index="rate", columns="batch", values="draft_tokens").astype(str).to_numpy()
    fig = figure_of(table)
    fig.add_trace(
        heatmap(
            cells, "batch", "rate", "speedup", text, zmin=1.0, colorscale=SCALE, text=lengths, texttemplate="%{text}",
            textfont={"size": 10}, colorbar={"title": {"text": "speed-up", "side": "right"}, "thickness": 14},
        )
    )  # fmt: skip
    fig.add_trace(
        line(
            limit, "batch", "pays_from", name="drafts pay from here on", line={"color": VERMILLION, "width": 3},
            showlegend=True, hovertemplate="%{x} in the batch: from %{y:.0%} on<extra></extra>",
        )
    )  # fmt: skip
    if acceptance is not None:
        rate = same_rate(acceptance)
        ends = [limit["batch"].iloc[0], limit["batch"].iloc[-1]]
        look = {"color": ORANGE, "dash": "dash", "width": 3}
        words = {"name": f"this log accepts {rate:.0%}", "hoverinfo": "name", "showlegend": True}
        fig.add_trace(reference_line(ends, [rate] * 2, look, **words))
    fig.update_xaxes(title="responses in the batch", type="category")
    fig.update_yaxes(title="share of drafted tokens accepted", range=[-0.025, 0.975], tickformat=".0%")
    note = (
        f"{clean(latency.name)}, {context_tokens:,.0f} tokens of context; numbers: best draft length in tokens, "
        "0 where no draft pays"
    )
    return styled(fig, TITLE, note, height=520, above=30, legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"})
