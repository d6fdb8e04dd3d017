"""Figure ``rlhfuse_schedules``: latency and memory of RLHFuse's 12 published pipelines beside ours (arXiv:2409.13221)."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlhfless.paper.draw import COLOURS, WIDE_LEGEND
from rlhfless.paper.fused_pipelines import rlhfuse_instances, schedule_instance, schedules_table
from rlhfless.paper.paper_figure import Caption, Claim, Numbers, PaperFigure
from rlhfless.paper.workloads import Sources
from rlhfless.plots.palette import BOUND
from rlhfless.plots.style import styled

TITLE = "RLHFuse's fused pipelines: the 12 published instances"
HEAD = {
    "instance": "instance", "latency": "latency", "latency_bound": "its bound", "paper_latency": "published",
    "latency_status": "status of the latency", "peak_memory": "memory", "memory_bound": "its bound",
    "paper_memory": "published",
}  # fmt: skip
ROUNDED = 0.05  # published memory has one digit


@dataclass(frozen=True)
class RlhfuseSchedulesSetting:
    """Setting of the search.

    Attributes:
        instances: names of the published instances. memory: whether the least memory at that latency is searched, too.
        time_limit_s: of each instance, of counted work. seed: of the search.
    """

    instances: tuple[str, ...] = tuple(map(str, range(12)))
    memory: bool = True
    time_limit_s: float = 20.0
    seed: int = 0


def numbers(setting: RlhfuseSchedulesSetting, sources: Sources) -> Numbers:
    """Return a row per instance: the columns of ``schedules_table``; CPU seconds are those that this machine took."""
    table = schedules_table(
        schedule_instance(one, memory=setting.memory, time_limit_s=setting.time_limit_s, seed=setting.seed)
        for one in rlhfuse_instances()
        if one.name in setting.instances
    )
    return Numbers(table.drop(columns="cpu_s"), table[["instance", "cpu_s"]])


def plot(setting: RlhfuseSchedulesSetting, numbers: Numbers) -> go.Figure:
    """Plot the table of schedules, and below it the memory of each beside the published one and the lower bound."""
    table = numbers.table
    fig = make_subplots(rows=2, cols=1, row_heights=[0.58, 0.42], specs=[[{"type": "table"}], [{"type": "xy"}]])
    cells = [[_cell(value) for value in table[name]] for name in HEAD]
    fig.add_table(
        header={"values": list(HEAD.values()), "align": "right"}, cells={"values": cells, "align": "right"}, row=1, col=1
    )
    series = (
        ("ours", "peak_memory", COLOURS[0], "circle"), ("published", "paper_memory", COLOURS[1], "diamond-open"),
        ("lower bound", "memory_bound", BOUND, "line-ew-open"),
    )  # fmt: skip
    for name, column, colour, symbol in series:
        fig.add_scatter(
            x=table["instance"], y=table[column], mode="markers", name=name,
            marker={"color": colour, "symbol": symbol, "size": 11, "line": {"width": 2, "color": colour}},
            hovertemplate=f"instance %{{x}}, {name}: %{{y:g}}<extra></extra>", row=2, col=1,
        )  # fmt: skip
    fig.update_xaxes(title="instance", type="category", row=2, col=1)
    fig.update_yaxes(title="peak memory of activations", rangemode="tozero", row=2, col=1)
    note = "latency in units of time, at which memory is searched" if setting.memory else "latency alone is searched"
    return styled(fig, TITLE, note, legend={**WIDE_LEGEND, "y": -0.1}, height=820)


def _cell(value: object) -> str:
    return "" if pd.isna(value) else f"{value:g}" if isinstance(value, float) else str(value)


def caption(setting: RlhfuseSchedulesSetting, numbers: Numbers) -> Caption:
    """Return the caption; see ``Caption``."""
    table, measured = numbers.table, numbers.measured
    assert measured is not None
    searched = (
        f"Memory is searched at that latency, {setting.time_limit_s:g} counted seconds each."
        if setting.memory
        else "Memory is not searched, so its column is empty."
    )
    return Caption(
        "A row per published instance: latency, lower bound and published latency, and the same of peak memory. Below, memory.",
        "CPU seconds of this machine, in the table of measured values.",
        f"Passes take their published whole units of time, transfers take none. {searched}",
        "Latency at the lower bound in 11 of 12 instances and 613 instead of 606 in instance 9; 20 to 4,979 s on 512 CPUs.",
        f"{_at_bound(table)} of {len(table)} latencies are at the lower bound, so no schedule is faster. All searches took "
        f"{measured['cpu_s'].sum():.0f} CPU seconds together."
        + (f" {_memory(table)} The published memory is that of the better of two passes." if setting.memory else ""),
    )


def _at_bound(table: pd.DataFrame) -> int:
    return int((table["latency"] == table["latency_bound"]).sum())


def _memory(table: pd.DataFrame) -> str:
    difference = table["peak_memory"] - table["paper_memory"]
    proven = int((table["peak_memory"] == table["memory_bound"]).sum())
    below, above = int((difference < -ROUNDED).sum()), int((difference > ROUNDED).sum())
    return f"Memory is below the published one in {below} and above it in {above}; it is proven least in {proven}."


def claims(numbers: Numbers) -> list[Claim]:
    """Return whether the paper's statements hold; see ``Claim``."""
    table = numbers.table
    latency, memory = (
        Claim.of(
            "the fused schedule reaches the lower bound in 11 of 12 instances",
            table["latency"] <= table["paper_latency"],
            f"ours reaches it in {_at_bound(table)} of {len(table)}",
        ),
        Claim.of(
            "peak memory of the fused schedule (ours at most as high)",
            table["peak_memory"] <= table["paper_memory"] + ROUNDED,
            _memory(table)[0].lower() + _memory(table)[1:-1],
        ),
    )
    return [latency, memory] if table["memory_search_share"].any() else [latency]


FIGURE = PaperFigure(
    "rlhfuse_schedules", TITLE, RlhfuseSchedulesSetting(), RlhfuseSchedulesSetting(memory=False), numbers, plot, caption,
    claims=claims, paper="arXiv:2409.13221",
)  # fmt: skip
