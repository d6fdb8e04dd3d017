"""Plots of a whole step: lanes of GPUs from generation to learning, and the time of the step by its cut."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from every_plot import cut_of
from executor_samples import plan_of, run, trace_of, uniform_step

from rlhfless.executor import Gpus, WorkItem
from rlhfless.plots import plot_cut_surface, plot_step_fusion
from rlhfless.scheduling.rlhfuse import GlobalCut
from rlhfless.trace import Trace


def fused_trace() -> Trace:
    """Actor 1 is cut at 2 s; its GPU prepares until 4.5 s, and a learner beside learns from then on."""
    step = uniform_step([10, 20, 30, 40])
    work = [WorkItem("prepare", 0.5, gpus=Gpus(released=True, startup_s=0.25), responses=(r,)) for r in range(4)]
    work.append(WorkItem("learn", 1.0, gpus=Gpus.beside(step.cluster, "learner"), items=(0, 1, 2, 3)))
    return trace_of(run(step, plan_of([[0, 2], [1, 3]], GlobalCut(3, 4)), work=work), step)


def test_lanes_say_who_has_which_gpus() -> None:
    figure = plot_step_fusion(fused_trace())
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in figure.table.itertuples(index=False):
        times.setdefault((row.lane, row.what), []).append((round(row.start_s, 9), round(row.end_s, 9)))
    assert times == {
        ("GPU 0", "generation"): [(0.0, 4.0)], ("GPU 0", "released"): [(4.0, 5.5)],
        ("GPU 1", "generation"): [(0.0, 2.0)], ("GPU 1", "released"): [(4.5, 5.5)], ("GPU 1", "start"): [(2.0, 2.25)],
        ("GPU 1", "prepare"): [(2.25, 3.75), (4.0, 4.5)], ("GPU 4", "learn"): [(4.5, 5.5)],
    }  # fmt: skip
    assert [line.x0 for line in figure.layout.shapes] == [pytest.approx(2.0)], "where actor 1 is cut"
    assert "takes 5.50 s. Dashed: 1 actors are cut" in figure.layout.title.text
    assert {trace.name for trace in figure.data} == {"generation", "released", "start", "prepare", "learn"}


def test_a_trace_without_allocations_says_so() -> None:
    trace = fused_trace()
    assert "no step 7" in plot_step_fusion(trace, 7).layout.annotations[0].text
    empty = Trace(trace.rollouts, allocations=pd.DataFrame(columns=trace.allocations.columns))
    assert "no allocations" in plot_step_fusion(empty).layout.annotations[0].text


def test_a_cut_surface_shows_times_and_bounds() -> None:
    fig = plot_cut_surface(cut_of())
    table = fig.table.set_index(["share", "keep"])
    assert (table.loc[(0.2, 1), "time_s"], table.loc[(0.2, 1), "exact"]) == (7.5, True)
    assert (table.loc[(0.5, 1), "time_s"], table.loc[(0.5, 1), "exact"]) == (8.0, False)
    assert pd.isna(table.loc[(0.5, 2), "time_s"])
    assert [trace.type for trace in fig.data] == ["heatmap", "scatter"]
    assert (fig.data[1].x[0], fig.data[1].y[0]) == (0.2, 1), "the chosen cut"
    assert "Without a release the step takes 9.00 s" in fig.layout.title.text
    none = replace(cut_of(), share=0.0, candidates=())
    assert "No release was tried" in plot_cut_surface(none).layout.annotations[0].text
