"""Plots how long a response stands still when it moves in one step and in two, by the speed of the link.

Input is a latency profile, a context and a batch. In two steps the KV state is copied while the response decodes on, and only
the tokens since are transferred while it stands still (``solver.model.runtime_rules.Move``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.lines import lines, reference_line
from rlhfless.plots.palette import BLUE, GREY, ORANGE, VERMILLION
from rlhfless.plots.style import clean, message_figure, styled
from rlhfless.plots.tables import figure_of
from solver.model.latency import LatencyModel
from solver.replanning.marginal_value import two_step_saves_s

TITLE = "How long a response pauses when it migrates"
SPEEDS_GBIT_PER_S = (1, 2.5, 5, 10, 25, 50, 100, 200, 256, 400, 900, 3600)
"""Compared link speeds: Ethernet and InfiniBand, PCIe 4 x16 (256), NVLink (3,600)."""


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
        A figure, whose table has ``gbit_per_s, one_step_s, rest_s`` (of the tokens decoded during the copy), ``rest_tokens,
        auto_s`` (as the executor chooses) and ``saved_tokens`` (iterations that the choice saves); without bytes per token or
        speeds one that says so.
    """
    table = _pauses(latency, context_tokens, batch, gbit_per_s)
    if table.empty:
        no_speeds = "There are no link speeds to show."
        unknown = f"The profile {clean(latency.name)} does not say how many bytes a KV token has."
        return message_figure(TITLE, no_speeds if latency.kv_bytes_per_token else unknown, table)
    ways = {"one_step_s": ("one step", VERMILLION, "solid"), "rest_s": ("two steps", BLUE, "solid"),
            "auto_s": ("as the executor chooses", ORANGE, "dot")}  # fmt: skip

    def style(way: str, rows: pd.DataFrame) -> dict[str, Any]:
        name, colour, dash = ways[way]
        return {
            "name": name, "line": {"color": colour, "dash": dash}, "customdata": rows[["rest_tokens", "saved_tokens"]],
            "hovertemplate": f"{name}, %{{x}} Gbit/s: %{{y:.1f}} ms<br>%{{customdata[0]}} tokens decoded during the copy, "
            "%{customdata[1]:.1f} iterations saved<extra></extra>",
        }  # fmt: skip

    fig = figure_of(table)
    each = table.melt(["gbit_per_s", "rest_tokens", "saved_tokens"], list(ways), var_name="way", value_name="pause_s")
    fig.add_traces(lines(each.assign(pause_ms=each["pause_s"] * 1e3), "gbit_per_s", "pause_ms", "way", style))
    iteration_s = latency.one_iteration_s(batch, batch * context_tokens)
    ends = [table["gbit_per_s"].iloc[0], table["gbit_per_s"].iloc[-1]]
    iteration = {"name": "one decoding iteration", "hoverinfo": "name"}
    fig.add_trace(reference_line(ends, [iteration_s * 1e3] * 2, {"color": GREY, "dash": "dash"}, **iteration))
    if latency.transfer_per_kv_token_s:
        own, seconds = 8 * latency.kv_bytes_per_token / latency.transfer_per_kv_token_s / 1e9, table[["one_step_s", "rest_s"]]
        least, most = seconds.min().min() * 1e3, seconds.max().max() * 1e3
        inside = {"name": "inside a node", "hoverinfo": "name"}
        fig.add_trace(reference_line([own] * 2, [least, most], {"color": GREY, "dash": "dot"}, **inside))
    fig.update_xaxes(title="network speed (Gbit/s)", type="log")
    fig.update_yaxes(title="pause (ms)", type="log")
    note = (
        f"{clean(latency.name)}, {context_tokens:,} tokens of context, {batch} responses in the batch; two steps pay "
        "where they save more than an iteration"
    )
    return styled(fig, TITLE, note, height=480, above=30, legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"})


def _pauses(latency: LatencyModel, context_tokens: int, batch: int, gbit_per_s: Sequence[float]) -> pd.DataFrame:
    """Return a row per link speed; none where the bytes of a KV token are unknown."""
    iteration_s, rows = latency.one_iteration_s(batch, batch * context_tokens), []
    for speed in gbit_per_s if latency.kv_bytes_per_token else ():
        linked = with_link(latency, speed)
        one_step_s = linked.transfer_s(context_tokens)
        rest_tokens = math.ceil(one_step_s / iteration_s)
        auto_s = one_step_s - two_step_saves_s(linked, context_tokens, iteration_s)
        rest_s = linked.transfer_s(rest_tokens)
        rows.append((speed, one_step_s, rest_s, rest_tokens, auto_s, (one_step_s - auto_s) / iteration_s))
    return pd.DataFrame(rows, columns=["gbit_per_s", "one_step_s", "rest_s", "rest_tokens", "auto_s", "saved_tokens"])
