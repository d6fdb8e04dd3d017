"""The data behind figures as one table: every kind of trace that our plots draw, frames, lines, and where names come from."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from error_messages import refused
from every_plot import every_plot
from plot_samples import EVIL, busy_trace, degenerate_traces, rollouts, sample_trace
from plotly.subplots import make_subplots

import solver
from rlhfless import plots
from rlhfless.errors import InputError
from rlhfless.plots import (
    data_of,
    plot_front,
    plot_lengths,
    plot_plan_bars,
    plot_plane,
    plot_responses,
    plot_steps,
    plot_time_weight,
    plot_timeline,
    plot_waterfall,
)
from rlhfless.plots.export.axes import column_name
from rlhfless.plots.timeline_data import timeline_info

CLUSTER = solver.Cluster(nodes=1, gpus_per_node=4, gpus_per_actor=1)
LATENCY = solver.LatencyModel("made up", gpus_per_actor=1, base_s=0.01, per_response_s=0.0005, start_s=0.1, max_batch=64)
WORKLOAD = solver.Workload.grid(np.full(8, 20), np.random.default_rng(0).integers(20, 400, (8, 2)), max_response_tokens=400)
TRACES = degenerate_traces()
RESULTS = pd.DataFrame(
    {
        "policy": ["static", "=1+1", "oracle"],
        "time_s": [4.0, 3.0, 2.0],
        "gpu_seconds": [10.0, 11.0, 6.0],
        "bound_gpu_seconds": 5.0,
    }
)


@pytest.fixture(scope="module")
def front() -> solver.Front:
    return solver.pareto_front(WORKLOAD, CLUSTER, LATENCY, points=8)


@pytest.fixture(scope="module")
def plans() -> dict[float, solver.Plan]:
    return {
        w: solver.plan_generation(WORKLOAD, CLUSTER, LATENCY, solver.Objective(w), time_limit_s=0.1) for w in (0.0, 0.5, 1.0)
    }


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("time (s)", "time_s"),
        ("cost (GPU-seconds)", "cost_gpu_s"),
        ("GPU-seconds", "gpu_s"),
        ("response length (tokens, logarithmic)", "response_length_tokens"),
        ("gap (% of the value)", "gap_percent"),
        ("holder (its GPUs)", "holder_its_gpus"),
        ("<b>mean</b><br>reward &amp; more", "mean_reward_more"),
        ("", "x"),
        (None, "x"),
    ],
)
def test_columns_have_the_title_of_the_axis_and_the_unit_at_their_end(title: str | None, name: str) -> None:
    assert column_name(title, "x") == name


@pytest.mark.parametrize("name", [name for name in plots.__all__ if name.startswith("plot_")])
def test_every_plot_has_a_table_whose_columns_say_what_they_are(name: str) -> None:
    table = data_of(every_plot("l40s")[name]())
    assert len(table)
    assert set(table) - {"frame", "panel", "panel_title", "series", "line", "text", "hover"}
    assert not [column for column in table if column.split("_")[0] in ("x", "y", "z", "customdata")], list(table)
    assert table.notna().any().all()


def test_bars_with_a_base_reach_from_and_to_and_holders_have_their_names() -> None:
    trace = sample_trace()
    table = data_of(plot_timeline(trace))
    decode = table[table["series"] == "decode"]
    assert decode["holder_its_gpus"].tolist() == ["actor-0 (0, 1)", "actor-1 (2, 3)"]
    spans = timeline_info(trace).spans
    spans = spans[spans["phase"] == "decode"]
    ends = decode[["from_time_since_the_start_of_the_step_s", "to_time_since_the_start_of_the_step_s"]]
    assert ends.to_numpy().tolist() == spans[["start_s", "end_s"]].to_numpy().tolist()
    cut = table[table["series"] == "event: cut"].iloc[0]
    assert (cut["time_since_the_start_of_the_step_s"], cut["hover"]) == (2.0, "actor-1: cut; time: 2.00 s")


def test_a_heatmap_has_a_row_per_cell() -> None:
    figure = plot_timeline(busy_trace(12_000))
    table = data_of(figure)
    assert len(table) == figure.data[0].z.size
    assert table["busy_share_of_held_time"].tolist() == figure.data[0].z.ravel().tolist()
    assert set(table["holder_its_gpus"]) == {"actor-0 (0, 1)"}


def test_points_have_both_axes_and_what_the_mouse_tells() -> None:
    table = data_of(plot_lengths(sample_trace(1)))
    points = table[table["series"].str.startswith("complete")]
    assert points["predicted_length_tokens"].tolist() == [20, 20, 30, 30, 50]
    assert points["actual_length_tokens"].tolist() == [10, 20, 30, 40, 50]
    assert points["hover"].iloc[0].startswith("prompt p0, sample 0, step 0; predicted: 20.0 tokens")


def test_panels_are_numbered_and_share_the_title_of_a_common_axis() -> None:
    table = data_of(plot_steps(sample_trace()))
    assert table.groupby("panel")["series"].unique().map(list).tolist() == [["busy", "held, idle"], ["time"], ["actors"]]
    assert table["step"].tolist() == [0, 1] * 4
    assert table[table["series"] == "busy"]["gpu_s"].tolist() == [10.0, 10.0]


def test_lines_that_only_join_bars_are_no_data() -> None:
    table = data_of(plot_waterfall(RESULTS))
    assert not table["series"].isna().any()
    saves = table[table["series"].str.startswith("saves") & (table["panel"] == 1)]
    assert saves[["from_cost_gpu_s", "to_cost_gpu_s"]].to_numpy().tolist() == [[6.0, 11.0]]


def test_texts_are_as_they_were_before_they_were_made_safe() -> None:
    names = data_of(plot_plane(RESULTS.assign(policy=["static", "a & b <c>", "oracle"])))["series"].tolist()
    assert "a & b <c>" in names
    rungs = set(data_of(plot_waterfall(RESULTS))["one_idea_after_the_other"])
    assert rungs == {"static", "=1+1", "oracle", "left to the bound", "bound"}, "neither bold nor broken into lines"


def test_every_frame_of_a_slider_is_there_and_what_stands_still_once(plans, front) -> None:
    table = data_of(plot_time_weight(plans, front))
    of_frames = table[table["frame"].notna()]
    assert of_frames["frame"].unique().tolist() == ["0", "0.5", "1"]
    points = of_frames[of_frames["series"] == "this plan"].set_index("frame")
    assert points["time_s"].to_dict() == {f"{w:g}": plan.makespan_s for w, plan in plans.items()}
    still = table[table["frame"].isna()]
    assert (still["series"] == "planning front").sum() == len(front.plans)


def test_a_figure_and_its_json_have_the_same_data(plans, front) -> None:
    for figure in (plot_timeline(busy_trace(12_000)), plot_time_weight(plans, front), plot_steps(sample_trace())):
        assert "bdata" in figure.to_json()
        read = data_of(json.loads(figure.to_json()))
        pd.testing.assert_frame_equal(read, data_of(figure))
        pd.testing.assert_frame_equal(data_of(go.Figure(json.loads(figure.to_json()))), read)


def test_error_bars_custom_data_gaps_and_straight_lines() -> None:
    fig = make_subplots(rows=2, cols=1)
    fig.add_scatter(
        x=[1, 2], y=[5.0, 6.0], name="measured", error_y={"array": [1, 2], "arrayminus": [0.5, 1]}, customdata=[[3, 7], [4, 8]],
        hovertemplate="plan with %{customdata[0]} actors<br>took: %{customdata[1]:.3g} s", row=1, col=1,
    )  # fmt: skip
    fig.add_scatter(x=[0, 1, None, 2, 3], y=[0, 1, None, 2, 3], mode="lines", name="moves", row=2, col=1)
    fig.add_hline(y=9, annotation_text="the paper: 9", row=1, col=1)
    fig.add_vline(x=4, row=2, col=1)
    fig.update_yaxes(title="time (s)", row=1, col=1)
    table = data_of(fig)
    measured = table[table["series"] == "measured"]
    assert measured[["low_time_s", "high_time_s"]].to_numpy().tolist() == [[4.5, 6.0], [5.0, 8.0]]
    assert measured[["actors", "took_s"]].to_numpy().tolist() == [[3, 7], [4, 8]]
    moves = table[table["series"] == "moves"]
    assert (moves["line"].tolist(), moves["panel"].tolist()) == ([1, 1, 2, 2], [2] * 4)
    lines = table.set_index("series")
    assert (lines.loc["the paper: 9", "time_s"], lines.loc["the paper: 9", "panel"]) == (9, 1)
    assert (lines.loc["line", "x"], lines.loc["line", "panel"]) == (4, 2)


@pytest.mark.parametrize("name", list(TRACES))
def test_figures_of_strange_traces_have_data_where_they_show_some(name: str) -> None:
    trace = TRACES[name]
    for figure in (plot_timeline(trace), plot_lengths(trace), plot_steps(trace)):
        table = data_of(figure)
        assert (len(table) > 0) == (len(figure.data) > 0)
        assert table.columns[0] in ("series", "panel")


def test_hostile_names_are_plain_text() -> None:
    hover = data_of(plot_timeline(TRACES["markup in names"]))["hover"]
    assert hover.str.contains("<script>", regex=False).any()
    assert not hover.str.contains("&lt;", regex=False).any()
    assert EVIL.startswith("<script>")


def test_panels_have_their_headings_and_axes_in_a_row_one_title(plans: dict[float, solver.Plan]) -> None:
    table = data_of(plot_plan_bars(plans, WORKLOAD, LATENCY, dict.fromkeys(plans, plans[0.0])))
    titles = table.groupby("panel")["panel_title"].unique().map(list).tolist()
    assert titles == [["plan: time of each actor"], ["random split: time of each actor"], ["time against cost"]]
    assert table[table["panel"] == 2]["actor"].notna().all(), "the title stands at the first panel only"


def test_points_are_as_many_as_plotly_draws(plans: dict[float, solver.Plan], front: solver.Front) -> None:
    table = data_of(plot_front(front, plans))
    assert (table["series"] == "this plan, as promised").sum() == len(plans)
    assert "the same plan with the true lengths" not in set(table["series"]), "it has no points"
    uneven = go.Figure(go.Scatter(x=[1, 2, 3], y=[4, 5], hovertext=["a"], name="n"))
    assert data_of(uneven)[["x", "y", "hover"]].astype(object).fillna("").to_numpy().tolist() == [[1, 4, "a"], [2, 5, ""]]


def test_custom_data_have_the_name_that_a_trace_gives_them() -> None:
    trace = sample_trace(1, rollouts=rollouts(0, actor="actor-0", start_s=0.5, end_s=2.0))
    assert data_of(plot_responses(trace))["rollouts_row"].dropna().unique().tolist() == [0, 1, 2, 3, 4, 5]


def test_a_figure_without_titles_has_the_letters_of_its_axes() -> None:
    table = data_of(go.Figure(go.Scatter(y=np.array([3, 4]), name="n")))
    assert table.to_dict("list") == {"series": ["n", "n"], "x": [0, 1], "y": [3, 4]}


def test_points_that_are_counted_begin_and_go_on_as_the_trace_says() -> None:
    figure = go.Figure([go.Scatter(y=[3, 4], x0=5, dx=2, name="n"), go.Bar(x=[3, 4], y0=0.5, name="m", orientation="h")])
    assert data_of(figure)[["x", "y"]].to_numpy().tolist() == [[5, 3], [7, 4], [3, 0.5], [4, 1.5]]
    cells = data_of(go.Figure(go.Heatmap(z=[[1, 2], [3, 4]], x0=10, dx=5, y=["a", "b"])))
    assert cells["x"].tolist() == [10, 15, 10, 15]


def test_error_bars_that_are_not_shown_are_no_data() -> None:
    hidden = go.Scatter(x=[1], y=[2], error_y={"array": [1], "visible": False}, error_x={"type": "percent", "visible": False})
    assert set(data_of(go.Figure(hidden))) == {"x", "y"}


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (
            go.Pie(values=[1, 2], name="shares"),
            "trace 1 (shares) is a pie; only scatter, scattergl, bar, box, violin, ",
        ),
        (go.Scatter3d(x=[1], y=[2], z=[3]), "trace 1 is a scatter3d; only "),
        (go.Bar(x=[["a", "a"], ["b", "c"]], y=[1, 2]), "trace 1 has several levels of x; one value per point is needed"),
        (go.Scatter(y=[1, 2], x0="2020-01-01"), "trace 1 has x0 '2020-01-01'; a number is needed, or x itself"),
        (
            go.Scatter(y=[1], error_y={"type": "percent", "value": 10}),
            "trace 1 has error bars by 'percent'; give error_y",
        ),
        (go.Scatter(y=[1], error_y={"value": 10}), "trace 1 has error bars by 'percent'; give error_y as an array"),
        (go.Scatter(y=[1], error_x={"type": "constant", "value": 1}), "trace 1 has error bars by 'constant'; give error_x as"),
        (
            go.Heatmap(z=[[1, 2], [3, 4]], x=[0, 1, 2]),
            "trace 1 has 3 values of x for 2 cells; one per cell is needed, no",
        ),
        (
            go.Heatmap(z=[[1, 2], [3, 4]], y=[0, 1, 2]),
            "trace 1 has 3 values of y for 2 cells; one per cell is needed, no",
        ),
        (go.Heatmap(z=[1, 2, 3], x=[0, 1, 2], y=[0, 0, 0]), "trace 1 has a z that is no table of cells; rows of one length"),
        (go.Heatmap(z=[[1, 2], [3]]), "trace 1 has a z that is no table of cells; rows of one length are needed"),
        (go.Heatmap(z=[[1, 2], [3, 4]], transpose=True), "trace 1 is transposed; a z with a row per y is needed"),
    ],
)
def test_what_has_no_table_is_refused_by_the_name_of_its_trace(trace: object, said: str) -> None:
    with refused(InputError, str(said)):
        data_of(go.Figure([go.Scatter(x=[1], y=[1]), trace]))


@pytest.mark.parametrize("figure", [None, "abc", [1], {}, pd.DataFrame({"data": [1]})])
def test_what_is_no_figure_has_no_data(figure: object) -> None:
    with refused(InputError):
        data_of(figure)
