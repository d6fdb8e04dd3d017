"""The figure of pipeline schedules: what devices run, and the memory of the fullest one."""

from __future__ import annotations

import itertools

import pytest

from rlhfless.plots import plot_pipeline
from solver.pipeline import PipelinePlan, fused, schedule_pipeline, serial

PROBLEM = fused((4, 2, 6), (2, 1, 4), activations=(2, 1))
FUSED, SERIAL = schedule_pipeline(PROBLEM, time_limit_s=0.1), serial(PROBLEM)
SPLIT = schedule_pipeline(fused((4, 2, 6), (2, 1, 4), activations=(2, 1), split_backward=True), time_limit_s=0.1)


@pytest.mark.parametrize("plan", [FUSED, SERIAL, SPLIT])
def test_the_memory_strip_has_the_peak_and_begins_with_the_first_operation(plan: PipelinePlan) -> None:
    fig = plot_pipeline(plan)
    (memory,) = [trace for trace in fig.data if trace.name == "memory"]
    assert max(memory.y) == plan.peak_memory
    assert memory.x[0] == 0.0
    assert len(fig.table) == sum(len(order) for order in plan.orders)
    assert plan.latency_bound in [line.x0 for line in fig.layout.shapes]


def test_bars_are_the_operations_by_chain_and_pass() -> None:
    fig = plot_pipeline(FUSED)
    bars = [trace for trace in fig.data if trace.type == "bar"]
    assert {bar.name for bar in bars} == {
        f"{chain}, {kind}" for chain in ("actor", "critic 0", "critic 1") for kind in ("forward", "backward")
    }
    assert max(base + size for bar in bars for base, size in zip(bar.base, bar.x, strict=True)) == FUSED.latency
    assert len({bar.marker.color for bar in bars}) == len(bars)
    assert "micro-batch: 0" in bars[0].hovertext[0]


def test_several_plans_share_the_time_axis_and_the_title_compares_them() -> None:
    fig = plot_pipeline({"serial": SERIAL, "fused": FUSED, "split": SPLIT})
    assert f"{SERIAL.latency / SPLIT.latency:.2f}x as fast as serial" in fig.layout.title.text
    axes = [fig.layout[f"xaxis{number}"] for number in (2, 3, 4, 5)]
    assert len({axis.matches for axis in axes}) == 1
    assert len([trace for trace in fig.data if trace.name == "memory"]) == 3
    domains = [fig.layout["yaxis" + (str(n) if n > 1 else "")].domain for n in range(1, 7)]
    assert all(upper[0] > lower[1] for upper, lower in itertools.pairwise(domains))


def test_without_schedules_the_figure_says_so() -> None:
    assert "no schedule" in str(plot_pipeline({}).layout.annotations)
