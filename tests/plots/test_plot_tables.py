"""Tables of plots: every number that a figure draws is in its table, columns say what they are, and names are as in the log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from every_plot import calls, every_plot, part
from plot_samples import EVIL, busy_trace, degenerate_traces, sample_trace
from test_schedule_plots import moving_trace

from rlhfless import plots
from rlhfless.plots.tables import stacked

PLOTS = list(every_plot(""))
TRACES = degenerate_traces()
DRAWN = {
    "plot_acceptance": ["position", "survival"],
    "plot_before_after": ["gpu_seconds"],
    "plot_cost_over_time": ["end_s", "usd", "idle_share"],
    "plot_curves": ["reward_mean", "response_tokens_mean", "actors", "idle_share", "against_static"],
    "plot_cut_surface": ["share", "keep"],
    "plot_front": ["time_s", "gpu_seconds", "true_gpu_seconds", "true_time_s"],
    "Comparison.plot, a front by learning": ["time_s", "gpu_seconds"],
    "plot_gap_history": ["value", "lower_bound", "time_s", "gpu_seconds"],
    "plot_kinds": ["time_s", "cost_usd", "split_usd", "end_s"],
    "plot_curves, several seeds": ["reward_mean", "response_tokens_mean", "actors", "accuracy"],
    "plot_lengths": ["predicted_tokens", "response_tokens"],
    "plot_lengths, several logs": ["share", "tokens"],
    "plot_overview": ["gpu_s"],
    "plot_pipeline": ["start", "end", "device"],
    "plot_plan_bars": ["makespan_s", "gpu_seconds", "other_s", "base_s", "load_s", "time_s"],
    "plot_plane": ["time_s", "gpu_seconds", "bound_gpu_seconds"],
    "plot_steps, planned": ["step", "mean_tokens", "actors"],
    "plot_prefill": ["before_tokens", "after_tokens", "once_tokens"],
    "plot_responses": ["start_s", "end_s"],
    "plot_side_by_side": ["l40s"],
    "Comparison.plot, a front with drafts": ["time_s", "one_token", "with_drafts"],
    "plot_speedup_map": ["batch", "rate", "pays_from"],
    "plot_overview, one step": ["seconds"],
    "plot_step_comparison": ["calls", "reallocation", "idle"],
    "plot_step_fusion": ["start_s", "end_s"],
    "plot_step_plan": ["start_s", "end_s"],
    "plot_step_search": ["evaluated", "period_s"],
    "Split.plot": ["gpus_generate", "step_s", "least_step_s"],
    "plot_steps, several runs": ["step", "mean_tokens", "time_s", "gpu_seconds", "actors"],
    "plot_steps": ["step", "time_s", "busy_gpu_seconds", "idle_gpu_seconds", "actors"],
    "plot_timeline": ["start_s", "end_s", "time_s"],
    "plot_timelines": ["start_s", "end_s"],
    "plot_two_step_gain": ["gbit_per_s"],
    "plot_value_of_information": ["value"],
    "Comparison.plot, variants": ["time_s", "gpu_seconds", "bound_gpu_seconds"],
    "Comparison.plot, ways": ["time_s", "cost_usd", "least_time_s"],
    "plot_waterfall": ["from_gpu_seconds", "to_gpu_seconds", "from_time_s", "to_time_s"],
}
"""Columns whose numbers are coordinates of the figure."""


def test_every_plot_is_looked_at() -> None:
    assert {name for name in plots.__all__ if name.startswith("plot_")} <= {name.partition(",")[0] for name in PLOTS}
    assert set(DRAWN) == set(PLOTS)


def numbers(figure: Any) -> set[float]:
    """All coordinates of a figure, those of its frames, the ends of its bars, and its straight lines."""
    traces = [*figure.data, *(one for frame in figure.frames for one in frame.data)]
    found = [[shape.x0, shape.y0] for shape in figure.layout.shapes]
    for trace in traces:
        found += [trace.x, trace.y]
        if trace.type == "bar" and trace.base is not None:
            length = trace.x if trace.orientation == "h" else trace.y
            found += [trace.base, np.asarray(trace.base, dtype=float) + np.asarray(length, dtype=float)]
    return {
        round(float(n), 6) for values in found if values is not None for n in values if isinstance(n, float | int | np.number)
    }


@pytest.mark.parametrize("name", PLOTS)
def test_the_table_of_every_plot_has_the_numbers_that_the_figure_draws(name: str) -> None:
    figure = every_plot("l40s")[name]()
    table, drawn = figure.table, numbers(figure)
    for column in DRAWN[name]:
        own = {round(float(n), 6) for n in table[column].dropna()}
        assert own, column
        assert own <= drawn, f"{column}: {sorted(own - drawn)[:5]} are not drawn"


@pytest.mark.parametrize("name", PLOTS)
def test_names_are_as_the_log_has_them_and_no_column_is_a_hover_text(name: str) -> None:
    table = every_plot(EVIL)[name]().table
    assert len(table)
    assert "hover" not in table
    assert not any(
        "&lt;" in text for column in table.select_dtypes(include=["object", "str"]) for text in table[column].map(str)
    )


def test_bars_and_events_of_a_timeline_have_their_holders() -> None:
    table = plots.plot_timeline(sample_trace()).table
    assert table["table"].unique().tolist() == ["allocations", "spans", "decoding", "planned", "events"]
    decode = table[table["phase"] == "decode"]
    assert decode["holder"].tolist() == ["actor-0", "actor-1"]
    cut = table[table["table"] == "events"].iloc[0]
    assert (cut["holder"], cut["name"], cut["time_s"]) == ("actor-1", "cut", 2.0)


def test_a_step_with_too_many_spans_to_draw_has_them_all_in_its_table() -> None:
    assert len(part(plots.plot_timeline(busy_trace(12_000)), "spans")) == 12_000


def test_moves_between_actors_have_both_holders_and_their_schedule() -> None:
    table = plots.plot_timelines({"moves": moving_trace(), "stays": sample_trace(2)}).table
    moves = table[table["table"] == "moves"]
    assert len(moves)
    assert moves["schedule"].unique().tolist() == ["moves"]
    assert set(moves["from_holder"]) | set(moves["to_holder"]) <= set(table["holder"].dropna())
    assert set(table["schedule"]) == {"moves", "stays"}


def test_bars_of_the_waterfall_are_named_without_markup() -> None:
    results = pd.DataFrame(
        {"policy": ["static", "right-sizing", "a & b"], "time_s": [4.0, 3.0, 2.0], "gpu_seconds": [9.0, 11.0, 6.0]}
    )
    cost = part(plots.plot_waterfall(results.assign(bound_gpu_seconds=5.0)), "cost").set_index(["label", "kind"])
    assert cost.index[0] == ("static", "total")
    assert cost.loc[("right-sizing: start fewer replicas", "costs"), ["from_gpu_seconds", "to_gpu_seconds"]].tolist() == [
        9.0,
        11.0,
    ]
    assert cost.loc[("a & b", "total"), "to_gpu_seconds"] == 6.0
    assert cost.loc[("lower bound", "bound"), "to_gpu_seconds"] == 5.0


def test_lengths_of_a_gpu_kind_have_a_row_per_bin_and_count_every_response() -> None:
    lengths = part(every_plot("l40s")["plot_kinds"](), "lengths")
    assert (lengths["to_tokens"] > lengths["from_tokens"]).all()
    assert lengths.groupby("label")["responses"].sum().tolist() == [16, 16]


def test_costs_of_a_front_are_named_by_their_unit() -> None:
    front, *others = calls("l40s")["plot_front"]().given
    in_usd = plots.plot_front(replace(front, cost="usd"), *others).table
    assert {"cost_usd", "true_cost_usd"} <= set(in_usd)
    for table in (in_usd, every_plot("l40s")["plot_front"]().table):
        assert not {"cost", "true_cost"} & set(table)


@pytest.mark.parametrize("name", list(TRACES))
def test_strange_traces_have_a_table_where_there_is_a_figure(name: str) -> None:
    for figure in (plots.plot_timeline(TRACES[name]), plots.plot_lengths(TRACES[name]), plots.plot_steps(TRACES[name])):
        assert (len(figure.table) > 0) == (len(figure.data) > 0)


def test_tables_below_each_other_keep_their_columns_and_leave_out_empty_ones() -> None:
    table = stacked(a=pd.DataFrame({"x": [1], "none": [None]}), b=pd.DataFrame(), c=pd.DataFrame({"y": ["z"]}))
    assert table.columns.tolist() == ["table", "x", "y"]
    assert table["table"].tolist() == ["a", "c"]
    assert stacked(a=pd.DataFrame()).columns.tolist() == ["table"]
