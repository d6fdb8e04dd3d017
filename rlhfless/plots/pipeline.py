"""Plots pipeline schedules: what every device runs when, and the memory that the fullest device holds.

Input is one ``PipelinePlan``, or several by label, one above the other on one time axis; ``ExecutedPlan`` has measured times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.lines import line
from rlhfless.plots.palette import BLUE, BOUND, COLOURS
from rlhfless.plots.style import clean, hover, message_figure, styled
from rlhfless.plots.tables import figure_of
from rlhfless.plots.tracks import bars_by_style, place_panels

if TYPE_CHECKING:
    from solver.pipeline import ExecutedPlan, PipelinePlan

    AnyPlan = PipelinePlan | ExecutedPlan

TITLE = "Pipeline schedule"
PASSES = {"F": "forward", "B": "backward", "I": "backward, inputs", "W": "backward, weights"}
PALER = {"F": 0.55, "B": 0.0, "I": 0.0, "W": 0.3}
"""How much white the colour of a chain is mixed with, by pass."""

CHAIN_COLOURS = (BLUE, *(colour for colour in COLOURS if colour != BLUE))
DEVICE_PX, MEMORY_PX, GAP_PX, MEMORY_GAP_PX = 16, 90, 64, 14


class _Data(NamedTuple):
    """Data of ``plot_pipeline``.

    Attributes:
        operations: one row per operation of every plan: ``plan, operation, chain, stage, micro_batch, device, start, end,
            memory``.
        memory: ``plan, time, memory``: what the fullest device holds from ``time`` on.
        plans: one row per plan: ``plan, latency, latency_bound, peak_memory, memory_bound, devices``.
        missing: why there is nothing to show, or the empty text.
    """

    operations: pd.DataFrame
    memory: pd.DataFrame
    plans: pd.DataFrame
    missing: str = ""


def _data(plans: AnyPlan | Mapping[str, AnyPlan]) -> _Data:
    """Return the data of ``plot_pipeline``."""
    labelled = plans if isinstance(plans, Mapping) else {"schedule": plans}
    operations = [plan.table().assign(plan=label) for label, plan in labelled.items()]
    numbers = ("latency", "latency_bound", "peak_memory", "memory_bound")
    rows = [
        {"plan": label, **{name: getattr(plan, name) for name in numbers}, "devices": plan.problem.devices}
        for label, plan in labelled.items()
    ]
    memory = [_fullest(table).assign(plan=label) for label, table in zip(labelled, operations, strict=True)]
    if not rows:
        empty = pd.DataFrame(columns=["plan"])
        return _Data(empty, empty, empty, "There is no schedule to show.")
    return _Data(pd.concat(operations, ignore_index=True), pd.concat(memory, ignore_index=True), pd.DataFrame(rows))


def _fullest(table: pd.DataFrame) -> pd.DataFrame:
    """Return what the fullest device holds over time: what it held when its last operation began, nothing after its end."""
    ends = table.groupby("device", as_index=False)["end"].max().rename(columns={"end": "start"}).assign(memory=0.0)
    changes = pd.concat([table[["device", "start", "memory"]], ends])
    changes = changes.pivot_table(index="start", columns="device", values="memory", aggfunc="last").ffill().fillna(0.0)
    return changes.max(axis=1).rename_axis("time").reset_index(name="memory")


def plot_pipeline(plans: AnyPlan | Mapping[str, AnyPlan]) -> DataFigure:
    """Plot one schedule, or several by label above each other: devices over time, and below the memory of the fullest device.

    A chain has one colour; forward passes are paler. Every operation has a hover text. A plan beside its ``ExecutedPlan`` shows
    where measured times differ.

    Returns:
        A figure; without schedules one that says so.

    Example:
        >>> from rlhfless.plots import plot_pipeline
        >>> from solver.pipeline import fused, schedule_pipeline, serial
        >>> problem = fused((4, 2, 8), (4, 1, 8), activations=(2, 1))
        >>> figure = plot_pipeline({"serial": serial(problem), "fused": schedule_pipeline(problem)})
        >>> figure.layout.xaxis4.title.text
        'time'
    """
    info = _data(plans)
    if info.missing:
        return message_figure(TITLE, info.missing, info.operations)
    heights = [px for devices in info.plans["devices"] for px in (max(60, DEVICE_PX * devices), MEMORY_PX)]
    above = [0, MEMORY_GAP_PX, *[GAP_PX, MEMORY_GAP_PX] * (len(info.plans) - 1)]
    fig = figure_of(info.operations, rows=len(heights), cols=1, shared_xaxes="all", row_heights=heights)
    operations = _told(info.operations)
    styles = _styles(operations)
    ends = place_panels(fig, heights, above)
    for place, plan in enumerate(info.plans.itertuples(index=False)):
        row = 2 * place + 1
        rows = operations[operations["plan"] == plan.plan]
        for drawn in bars_by_style(rows, styles, "style", at="device", start="start", end="end"):
            fig.add_trace(drawn | {"showlegend": place == 0}, row=row, col=1)
        memory = info.memory[info.memory["plan"] == plan.plan]
        fullest = line(
            memory, "time", "memory", mode="lines", name="memory", line={"shape": "hv", "color": BOUND, "width": 1.5},
            showlegend=False, hovertemplate="time %{x}<br>memory of the fullest device %{y:.4g}<extra></extra>",
        )  # fmt: skip
        fig.add_trace(fullest, row=row + 1, col=1)
        fig.add_hline(y=plan.memory_bound, line={"color": BOUND, "dash": "dash", "width": 1}, row=row + 1, col=1)
        fig.add_vline(x=plan.latency_bound, line={"color": BOUND, "dash": "dash", "width": 1.5}, row=row, col=1)
        fig.update_yaxes(title="device", autorange="reversed", dtick=max(1, plan.devices // 8), row=row, col=1)
        fig.update_yaxes(title="memory", rangemode="tozero", nticks=4, row=row + 1, col=1)
        fig.update_xaxes(showticklabels=False, row=row, col=1)
        if len(info.plans) > 1:
            fig.add_annotation(
                text=f"<b>{clean(plan.plan)}</b>: latency {plan.latency:.4g}, memory {plan.peak_memory:.4g}",
                x=0, xref="paper", y=ends[row - 1], yref="paper",
                xanchor="left", yanchor="bottom", showarrow=False,
            )  # fmt: skip
    fig.update_xaxes(title="time (units of the problem)", showticklabels=True, row=len(heights), col=1)
    fig.update_layout(barmode="overlay", bargap=0.08)
    return styled(fig, _title(info), _note(), height=sum(heights) + sum(above) + 190, above=24, legend={"orientation": "v"})


def _told(operations: pd.DataFrame) -> pd.DataFrame:
    """Return operations with a hover text and their ``style``: the chain and the pass."""
    texts = [
        hover(
            [
                ("micro-batch", str(row.micro_batch)), ("stage", str(row.stage)),
                ("time", f"{row.start:.5g} to {row.end:.5g}"), ("memory of the device", f"{row.memory:g}"),
            ],
            _name(row.chain, row.operation),
        )
        for row in operations.itertuples(index=False)
    ]  # fmt: skip
    return operations.assign(style=operations["chain"] + ": " + operations["operation"], hover=texts)


def _styles(operations: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return the style of every chain and pass: a chain has one colour, and forward passes are paler."""
    colours = {chain: CHAIN_COLOURS[i % len(CHAIN_COLOURS)] for i, chain in enumerate(dict.fromkeys(operations["chain"]))}
    return {
        one.style: {
            "name": _name(one.chain, one.operation), "legendgroup": _name(one.chain, one.operation),
            "marker": {"color": _mixed(colours[one.chain], PALER[one.operation]), "line": {"color": "white", "width": 0.3}},
        }
        for one in operations.drop_duplicates("style").itertuples(index=False)
    }  # fmt: skip


def _name(chain: str, operation: str) -> str:
    return f"{clean(chain)}, {PASSES[operation]}"


def _mixed(colour: str, white: float) -> str:
    """Return a colour ``#RRGGBB`` mixed with a share of white."""
    parts = [round(int(colour[i : i + 2], 16) * (1 - white) + 255 * white) for i in (1, 3, 5)]
    return "#" + "".join(f"{part:02X}" for part in parts)


def _title(info: _Data) -> str:
    last = info.plans.iloc[-1]
    if len(info.plans) > 1:
        first = info.plans.iloc[0]
        faster = first["latency"] / last["latency"]
        names = clean(last["plan"], 30), clean(first["plan"], 30)
        return f"{names[0]} takes {last['latency']:.4g}, {faster:.2f}x as fast as {names[1]}"
    proof = "proven optimal" if last["latency"] <= last["latency_bound"] else f"bound {last['latency_bound']:g}"
    return f"{TITLE}: latency {last['latency']:g} ({proof}), peak memory {last['peak_memory']:g}"


def _note() -> str:
    return "dashed: lower bounds on latency, and on memory at this latency; below: memory of the fullest device"
