"""Plots how long a response stands still when it moves in one step and in two, by the speed of the link.

Input is a latency profile, a context and a batch. In two steps the KV state is copied while the response decodes on, and only
the tokens since are transferred while it stands still (``solver.model.runtime_rules.Move``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BLUE, GREY, ORANGE, VERMILLION
from rlhfless.plots.style import clean, message_figure, styled
from rlhfless.plots.tables import figure_of
from solver.model.latency import LatencyModel
from solver.replanning.marginal_value import two_step_saves_s

TITLE = "How long a response pauses when it migrates"
SPEEDS_GBIT_PER_S = (1, 2.5, 5, 10, 25, 50, 100, 200, 256, 400, 900, 3600)
"""Compared link speeds: Ethernet and InfiniBand, PCIe 4 x16 (256), NVLink (3,600)."""


class _Data(NamedTuple):
    """Data of ``plot_two_step_gain``.

    Attributes:
        table: one row per link speed: ``gbit_per_s, one_step_s, rest_s, rest_tokens, auto_s, saved_tokens``: seconds that the
            response stands still in one step, in two (for the tokens decoded during the copy), and as the executor chooses;
            and how many iterations the choice saves.
        iteration_s: seconds of an iteration of the sender.
        node_gbit_per_s: of the profile's own link inside a node; NaN where transfers take no time.
        profile, context_tokens, batch: of the latency model, the response, and the sender.
        missing: why there is nothing to show, or the empty text.
    """

    table: pd.DataFrame
    iteration_s: float
    node_gbit_per_s: float
    profile: str
    context_tokens: int
    batch: int
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.table


def _data(
    latency: LatencyModel, context_tokens: int, batch: int = 32, *, gbit_per_s: Sequence[float] = SPEEDS_GBIT_PER_S
) -> _Data:
    """Return the data of ``plot_two_step_gain``, with the same arguments."""
    iteration_s, rows = latency.one_iteration_s(batch, batch * context_tokens), []
    bits = 8 * latency.kv_bytes_per_token
    for speed in gbit_per_s if bits else ():
        linked = with_link(latency, speed)
        one_step_s = linked.transfer_s(context_tokens)
        rest_tokens = math.ceil(one_step_s / iteration_s)
        auto_s = one_step_s - two_step_saves_s(linked, context_tokens, iteration_s)
        rest_s = linked.transfer_s(rest_tokens)
        rows.append((speed, one_step_s, rest_s, rest_tokens, auto_s, (one_step_s - auto_s) / iteration_s))
    columns = ["gbit_per_s", "one_step_s", "rest_s", "rest_tokens", "auto_s", "saved_tokens"]
    missing = "" if bits else f"The profile {latency.name} does not say how many bytes a KV token has."
    if bits and not rows:
        missing = "There are no link speeds to show."
    own = latency.transfer_per_kv_token_s
    return _Data(
        pd.DataFrame(rows, columns=columns), iteration_s, bits / own / 1e9 if own and bits else math.nan, latency.name,
        context_tokens, batch, missing,
    )  # fmt: skip


def with_link(latency: LatencyModel, gbit_per_s: float) -> LatencyModel:
    """Return the latency model with another link between actors.

    Example:
        >>> import rlhfless as rl
        >>> slow = with_link(rl.load_profile("l40s-qwen2.5-3b-tp2"), 10)
        >>> f"{slow.transfer_s(2000) - slow.transfer_base_s:.3f} s"
        '0.059 s'
    """
    return replace(latency, transfer_per_kv_token_s=8 * latency.kv_bytes_per_token / (gbit_per_s * 1e9))


def plot_two_step_gain(
    latency: LatencyModel, context_tokens: int, batch: int = 32, *, gbit_per_s: Sequence[float] = SPEEDS_GBIT_PER_S
) -> DataFigure:
    """Plot the seconds for which a response stands still when it moves in one step and in two, by link speed.

    Args:
        latency: of the model and its GPUs; it knows the bytes of a KV token. context_tokens: of the response that moves.
        batch: responses of the sender, all with such a context.
        gbit_per_s: speeds of the link in Gbit/s, in rising order.

    Returns:
        A figure; without bytes per token or speeds one that says so.
    """
    info = _data(latency, context_tokens, batch, gbit_per_s=gbit_per_s)
    if info.missing:
        return message_figure(TITLE, clean(info.missing), info.to_frame())
    table, fig = info.table, figure_of(info.to_frame())
    lines = (("one_step_s", "one step", VERMILLION, "solid"), ("rest_s", "two steps", BLUE, "solid"),
             ("auto_s", "as the executor chooses", ORANGE, "dot"))  # fmt: skip
    for column, name, colour, dash in lines:
        fig.add_scatter(
            x=table["gbit_per_s"], y=table[column] * 1e3, mode="lines+markers", name=name, line={"color": colour, "dash": dash},
            customdata=table[["rest_tokens", "saved_tokens"]],
            hovertemplate=f"{name}, %{{x}} Gbit/s: %{{y:.1f}} ms<br>%{{customdata[0]}} tokens decoded during the copy, "
            "%{customdata[1]:.1f} iterations saved<extra></extra>",
        )  # fmt: skip
    ends = [table["gbit_per_s"].iloc[0], table["gbit_per_s"].iloc[-1]]
    fig.add_scatter(
        x=ends, y=[info.iteration_s * 1e3] * 2, mode="lines", name="one decoding iteration", hoverinfo="name",
        line={"color": GREY, "dash": "dash"},
    )  # fmt: skip
    if math.isfinite(info.node_gbit_per_s):
        seconds = table[["one_step_s", "rest_s"]]
        fig.add_scatter(
            x=[info.node_gbit_per_s] * 2, y=[seconds.min().min() * 1e3, seconds.max().max() * 1e3], mode="lines",
            name="inside a node", hoverinfo="name", line={"color": GREY, "dash": "dot"},
        )  # fmt: skip
    fig.update_xaxes(title="network speed (Gbit/s)", type="log")
    fig.update_yaxes(title="pause (ms)", type="log")
    note = (
        f"{clean(info.profile)}, {info.context_tokens:,} tokens of context, {info.batch} responses in the batch; two steps pay "
        "where they save more than an iteration"
    )
    return styled(fig, TITLE, note, height=480, above=30, legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"})
