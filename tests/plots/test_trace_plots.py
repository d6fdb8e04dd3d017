"""Timeline, steps and lengths: what they show of a trace that a reader adds up by hand, and no exception for any trace."""

from __future__ import annotations

import itertools
import math
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio
import pytest
from every_plot import part
from plot_samples import EVIL, busy_trace, degenerate_traces, rollouts, sample_trace, tables

from rlhfless.errors import UserError
from rlhfless.plots import (
    plot_before_after,
    plot_curves,
    plot_lengths,
    plot_responses,
    plot_step_fusion,
    plot_steps,
    plot_timeline,
    plot_timelines,
)
from rlhfless.plots.palette import IDLE, PHASE_STYLES, POLICY_STYLES, policy_styles
from rlhfless.plots.style import SOFT_BREAK, TEMPLATE, clean, lines_of, number, plain, signed_share, styled, usd
from rlhfless.plots.timeline_data import step_timeline
from rlhfless.plots.utilisation import covered_s, row_order, use_share
from rlhfless.trace import PHASES, Trace

TRACES = degenerate_traces()


def by_name(fig):
    """The figure's traces by the name in the legend."""
    return {str(one.name): one for one in fig.data}


def annotations(fig):
    return " ".join(str(a.text) for a in fig.layout.annotations)


def test_a_timeline_has_bars_and_sums_that_add_up():
    fig = plot_timeline(sample_trace(), step=1)
    assert fig.layout.yaxis.ticktext == ("actor-0 (0, 1)", "actor-1 (2, 3)")
    assert fig.layout.yaxis.title.text == "actor (its GPUs)"
    assert "2 actors, 4.00 s, 12.0 GPU-seconds, 0.0120 USD; 2.00 GPU-seconds idle" in plain(fig.layout.title.text)
    held = part(fig, "allocations")[["holder", "start_s", "end_s", "idle_gpu_seconds"]]
    assert held.to_numpy().tolist() == [["actor-0", 0, 4, 2], ["actor-1", 0, 2, 0]]
    spans = part(fig, "spans")
    assert spans["phase"].tolist() == ["prefill", "decode", "transfer", "decode"]
    assert spans["background"].tolist() == [False, False, True, False]
    assert part(fig, "planned")[["holder", "end_s"]].to_numpy().tolist() == [["actor-0", 3.0], ["actor-1", 2.5]]
    late, early = by_name(fig)["planned"].hovertext
    assert "1.00 s later" in late
    assert "0.500 s earlier" in early
    assert part(fig, "events")[["holder", "name", "time_s"]].to_numpy().tolist() == [["actor-1", "cut", 2.0]]


def test_timeline_shows_the_last_step_unless_asked():
    assert "of step 2" in plot_timeline(sample_trace(3)).layout.title.text


def test_timeline_has_one_trace_per_phase_and_idle_behind_them():
    fig = plot_timeline(sample_trace(1))
    traces = by_name(fig)
    assert set(traces) == {"allocated, idle", "prefill", "decode", "transfer (background)", "planned", "event: cut"}
    assert fig.data[0].name == "allocated, idle"
    assert fig.data[0].marker.color == IDLE
    decode = traces["decode"]
    assert np.asarray(decode.base).tolist() == [1.0, 0.0]
    assert np.asarray(decode.x).tolist() == [2.0, 2.0]
    assert decode.orientation == "h"
    assert "2.00 GPU-seconds idle (16.7%)" in fig.layout.title.text


def test_timeline_of_a_step_that_is_not_there_says_so():
    fig = plot_timeline(sample_trace(2), step=7)
    assert annotations(fig) == "There is no step 7; the steps are 0 to 1."
    assert fig.table.empty


def test_a_logged_trace_says_that_nothing_is_known_of_gpus():
    assert "no allocations or spans" in annotations(plot_timeline(Trace(rollouts())))
    assert "no allocations" in plot_steps(Trace(rollouts())).layout.annotations[0].text


def test_an_actor_that_was_planned_but_never_started_has_a_row():
    labels = plot_timeline(TRACES["plan of more actors"]).layout.yaxis.ticktext
    assert [label.split(" ")[0] for label in labels] == [f"actor-{i}" for i in range(5)]
    assert part(plot_timeline(TRACES["other names"]), "planned").empty


def test_many_spans_become_a_heatmap():
    fig = plot_timeline(busy_trace(12_000))
    assert [one.type for one in fig.data] == ["heatmap"]
    assert np.nanmean(np.asarray(fig.data[0].z, dtype=float)) == pytest.approx(0.5, abs=0.01)
    assert [one.type for one in plot_timeline(busy_trace(100)).data] == ["bar", "bar"]


def waiting_actors(count: int, spans: int) -> Trace:
    """So many actors that are held for 100 s, of which actor i works i / count of the time, in so many spans with half of the
    slots in use."""
    held = [{**tables()["allocations"][0], "holder": f"actor-{i}", "gpu_ids": [i], "end_s": 100.0} for i in range(count)]
    rows = []
    for i in range(count):
        edges = np.linspace(0.0, 100.0 * (i + 1) / count, spans + 1)
        same = {"step": 0, "holder": f"actor-{i}", "phase": "decode", "batch_mean": 4.0, "slots": 8}
        rows += [{**same, "start_s": a, "end_s": b} for a, b in itertools.pairwise(edges)]
    return Trace(rollouts(), allocations=held, spans=rows)


def test_a_heatmap_has_the_best_used_rows_on_top_and_counts_slots():
    fig = plot_timeline(waiting_actors(4, 3), max_spans=5)
    (shares,) = fig.data
    assert list(fig.layout.yaxis.ticktext) == ["actor-3 (3)", "actor-2 (2)", "actor-1 (1)", "actor-0 (0)"]
    z = np.asarray(shares.z, dtype=float)
    assert z.mean(axis=1) == pytest.approx([0.5, 0.375, 0.25, 0.125])
    assert np.nanmax(z) == pytest.approx(0.5)
    assert "12 spans" in fig.layout.title.text
    part = plot_timeline(waiting_actors(4, 30), max_spans=5, between_s=(0.0, 10.0))
    assert list(part.layout.yaxis.ticktext) == list(fig.layout.yaxis.ticktext), "zooming keeps the order"


def test_many_rows_of_a_heatmap_are_joined_to_bands():
    fig = plot_timeline(waiting_actors(300, 2), max_spans=5)
    assert np.asarray(fig.data[0].z).shape == (100, 240)
    assert "and 2 more" in fig.layout.yaxis.ticktext[0]
    means = np.asarray(fig.data[0].z, dtype=float).mean(axis=1)
    assert (np.diff(means) < 1e-9).all()
    assert means.mean() == pytest.approx(0.25, rel=0.01)
    assert fig.layout.height < 900


def test_rows_without_allocations_keep_their_order():
    assert row_order(pd.DataFrame(), 3).tolist() == [0, 1, 2]


def test_a_learner_that_takes_long_does_not_squeeze_the_actors():
    rows = tables()
    held = {**rows["allocations"][0], "holder": "learner", "role": "learner", "gpu_ids": [4], "start_s": 4.0, "end_s": 40.0}
    learns = {"step": 0, "holder": "learner", "phase": "learn", "start_s": 4.0, "end_s": 40.0}
    long = sample_trace(1, allocations=[*rows["allocations"], held], spans=[*rows["spans"], learns])
    fig = plot_timeline(long)
    assert fig.layout.xaxis.range[1] == pytest.approx(1.12 * 3.0)
    assert fig.layout.yaxis.ticktext[2] == "learner (4), until 40.0 s \u2192"
    assert not fig.layout.annotations, "nothing is written over bars"
    assert "ends shortly after generation" in fig.layout.title.text
    assert "3 rows (actors, learner)" in fig.layout.title.text
    assert "learn" not in [bar.name for bar in fig.data if bar.showlegend is not False], "none of it is on the axis"
    short = {"end_s": 9.0}
    whole = sample_trace(1, allocations=[*rows["allocations"], held | short], spans=[*rows["spans"], learns | short])
    assert plot_timeline(whole).layout.xaxis.range is None
    assert "learn" in [bar.name for bar in plot_timeline(whole).data if bar.showlegend is not False]
    assert plot_timeline(long, between_s=(0.0, 40.0)).layout.xaxis.range == (0.0, 40.0)
    assert plot_timeline(sample_trace(1)).layout.xaxis.range is None


def test_figures_are_dark_where_plotly_s_default_is(monkeypatch):
    assert plot_timeline(sample_trace(1)).layout.paper_bgcolor == "#FFFFFF"
    monkeypatch.setattr(pio.templates, "default", "plotly_dark")
    dark = plot_timeline(sample_trace(1)).layout
    assert (dark.paper_bgcolor, dark.font.color) == ("#111111", "#E4E7EB")


def test_titles_are_broken_into_lines_and_have_room():
    words = "one two three four five six seven eight nine ten " * 5
    fig = styled(go.Figure(), words, words, height=300)
    lines = re.split("<br ?>", fig.layout.title.text)
    assert max(len(plain(line)) for line in lines) <= 104
    assert plain(fig.layout.title.text) == plain(f"{words} {words}")
    short = styled(go.Figure(), "one", "two", height=300)
    added = fig.layout.margin.t - short.layout.margin.t
    assert fig.layout.height - short.layout.height == added == 19 * 3 + 15 * 2
    assert lines_of("costs 13.9 USD", 9) == f"costs{SOFT_BREAK}13.9 USD", "a unit stays with its number"
    assert lines_of("a <b>bold</b> word", 3) == "a <b>bold</b> word", "markup stays whole"


def test_small_numbers_have_a_power_of_ten_and_no_row_of_zeros():
    assert [number(value) for value in (1.234e-8, 2e-7, 6e-7, 0.0)] == ["1.23\u00d710⁻⁸", "2\u00d710⁻⁷", "0.000001", "0"]
    assert number(-3e-9, "s") == "\u22123\u00d710⁻⁹ s"


@pytest.mark.parametrize(
    ("dollars", "text"),
    [(1.234, "1.23 USD"), (0.0123, "0.0123 USD"), (0.0047, "0.470 cents"), (1e-9, "less than 0.0001 cents"), (0.0, ""),
     (math.nan, "")],
)  # fmt: skip
def test_dollars_have_a_fitting_unit_and_nothing_is_left_out(dollars, text):
    assert usd(dollars) == text


def test_covered_seconds_count_overlaps_once():
    edges = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    assert covered_s([0.5, 0.0, 2.5], [1.5, 1.0, 3.0], edges).tolist() == [1.0, 0.5, 0.5, 0.0]
    assert covered_s([], [], edges).tolist() == [0.0] * 4
    assert covered_s([1.0], [1.0], edges).tolist() == [0.0] * 4


@pytest.mark.parametrize("seed", range(5))
def test_covered_seconds_agree_with_counting(seed):
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 1000, 30)
    end = start + rng.integers(0, 60, 30)
    ticks = np.zeros(1100, bool)
    for a, b in zip(start, end, strict=True):
        ticks[a:b] = True
    edges = np.arange(0, 1101, 100)
    assert covered_s(start, end, edges) == pytest.approx(ticks.reshape(-1, 100).sum(axis=1))


def test_used_share_is_of_the_held_time():
    info = step_timeline(sample_trace(1))
    shares = use_share(info.allocations, info.spans, 2, np.array([0.0, 2.0, 4.0]))
    np.testing.assert_allclose(shares, [[1.0, 0.5], [1.0, np.nan]])


def test_steps_add_up():
    table = plot_steps(sample_trace(2)).table
    assert table["step"].tolist() == [0, 1]
    for name, value in {
        "time_s": 4.0,
        "gpu_seconds": 12.0,
        "busy_gpu_seconds": 10.0,
        "idle_gpu_seconds": 2.0,
        "actors": 2.0,
    }.items():
        assert table[name].tolist() == [value, value]
    traces = by_name(plot_steps(sample_trace(2)))
    assert set(traces) == {"busy", "idle", "time", "actors"}
    assert np.asarray(traces["idle"].y).tolist() == [2.0, 2.0]
    assert "0.0120 USD" in traces["busy"].hovertext[0]


def test_lengths_leave_cut_off_responses_out_of_the_errors():
    fig = plot_lengths(Trace(rollouts()))
    assert fig.table["kind"].value_counts().to_dict() == {"stop": 5, "censored": 1}
    note = plain(fig.layout.title.text)
    assert f"mean absolute error {(10 + 0 + 0 + 10 + 0) / 5:.2f} tokens" in note
    assert "mean error (actual minus predicted) 0 tokens" in note
    ranks, predicted = [1, 2, 3, 4, 5], [1.5, 1.5, 3.5, 3.5, 5]
    assert f"rank correlation {np.corrcoef(ranks, predicted)[0, 1]:.2f}" in note
    assert "1 cut-off response" in note


def test_lengths_plot_marks_cut_off_and_unknown_responses():
    fig = plot_lengths(Trace(rollouts()))
    assert [one.name for one in fig.data] == ["predicted = actual", "complete response (5)", "cut off: at least this long (1)"]
    assert "mean absolute error 4.00 tokens" in fig.layout.title.text
    unknown = plot_lengths(Trace(rollouts(finish_reason=None)))
    assert unknown.data[1].name == "response, finish reason unknown (6)"


def test_lengths_without_variation_or_predictions():
    assert "undefined" in plot_lengths(Trace(rollouts(predicted_tokens=7.0))).layout.title.text
    assert plot_lengths(TRACES["one bare logged response"]).layout.annotations[0].text == "The trace has no predicted lengths."
    assert plot_lengths(sample_trace(1), step=5).layout.annotations[0].text == "Step 5 has no responses."


def test_many_lengths_are_drawn_with_webgl():
    many = [{**row, "sample": i} for i in range(1700) for row in rollouts()[:4:2]] + [
        {**rollouts()[1], "sample": 2000 + i} for i in range(1700)
    ]
    fig = plot_lengths(Trace([{**row, "prompt_id": i} for i, row in enumerate(many)]))
    assert fig.data[1].type == "scattergl"


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("plot", [plot_timeline, plot_steps, plot_lengths], ids=lambda plot: plot.__name__)
def test_every_plot_survives_every_trace(plot, name):
    fig = plot(TRACES[name])
    assert fig.layout.title.text
    text = fig.to_json()
    assert "<script>" not in text
    assert "\\u003cscript" not in text
    if fig.data:
        assert all(axis.title.text for axis in [*fig.select_xaxes()][-1:])
        assert all(axis.title.text for axis in fig.select_yaxes())


def test_text_of_logs_is_made_harmless():
    assert clean(EVIL) == "&lt;script&gt;alert('x')&lt;/script&gt;"
    assert clean("a\n\tb\x00  c") == "a b c"
    assert len(clean("x" * 500)) == 60
    assert clean("\u202ea\u2066b\u200f") == "ab", "nothing turns around what stands beside a text"
    assert clean("\u05e9\u05dc\u05d5\u05dd") == "\u2068\u05e9\u05dc\u05d5\u05dd\u2069"
    assert EVIL not in "".join(plot_timeline(TRACES["markup in names"]).layout.yaxis.ticktext)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234.5, "1,234"),
        (12.345, "12.3"),
        (0.001234, "0.00123"),
        (-1.5, "\u22121.50"),
        (None, "unknown"),
        (math.nan, "unknown"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


def test_numbers_keep_the_unit_and_shares_their_sign():
    assert number(2.0, "GPU-seconds") == "2.00 GPU-seconds"
    assert [signed_share(v) for v in (0.0312, -0.5, -0.0001, math.nan)] == ["+3.1%", "\u221250.0%", "0.0%", ""]


def test_every_phase_and_policy_can_be_told_apart():
    assert set(PHASE_STYLES) == set(PHASES)
    assert len({style.colour for style in PHASE_STYLES.values()}) == len(PHASES)
    assert len({style.hatch for style in PHASE_STYLES.values()}) == len(PHASES)
    bars = TEMPLATE.data.bar[0].marker.pattern
    assert bars.fillmode == "overlay", "a hatched bar keeps its colour"
    shown = ["static", "random", "least-loaded", "rlhfuse", "rlhfless", "fold", "spread", "solver", "solver+replan", "oracle"]
    assert len({POLICY_STYLES[name].symbol for name in shown}) == len(shown)
    own = policy_styles(["static", "mine", "yours"])
    assert len(set(own.values())) == 3


OF_A_TRACE = (plot_timeline, plot_steps, plot_lengths, plot_responses, plot_step_fusion)
OF_SEVERAL = (plot_timelines, plot_before_after)
OF_ONE_OR_SEVERAL = (plot_steps, plot_lengths)


def test_the_plots_of_a_trace_take_the_folder_of_one(tmp_path):
    trace = sample_trace()
    folder = trace.save(tmp_path / "run1")
    for plot in OF_A_TRACE:
        assert plot(str(folder)).to_json() == plot(folder).to_json() == plot(trace).to_json()
    for plot in (*OF_SEVERAL, *OF_ONE_OR_SEVERAL):
        assert plot({"a": trace, "b": folder}).to_json() == plot({"a": trace, "b": trace}).to_json()


@pytest.mark.parametrize("plot", [*OF_A_TRACE, *OF_SEVERAL], ids=lambda plot: plot.__name__)
def test_what_is_no_trace_is_refused_with_what_to_give(plot, tmp_path):
    def drawn(given):
        return plot({"mine": given} if plot in OF_SEVERAL else given)

    with pytest.raises(UserError, match=r"there is no trace; a run without a folder keeps none; plot step\.trace"):
        drawn(None)
    with pytest.raises(UserError, match=rf"^{plot.__name__} got 7; a trace, such as read_trace\(folder\), or the folder"):
        drawn(7)
    with pytest.raises(UserError, match=rf"^{plot.__name__} got .*; give its trace, as in {plot.__name__}\(step\.trace\)"):
        drawn(SimpleNamespace(trace=sample_trace()))
    with pytest.raises(UserError, match="a trace folder is needed"):
        drawn(tmp_path)


def test_traces_of_several_schedules_have_names():
    for plot in OF_SEVERAL:
        with pytest.raises(UserError, match=rf"^{plot.__name__} got .*; traces by name are needed"):
            plot(sample_trace())


def test_curves_of_a_run_that_kept_no_trace_are_those_of_its_trainer():
    with pytest.raises(UserError, match=r"^plot_curves: there is no trace; .*; plot_curves\(trainer\) draws its steps$"):
        plot_curves(None)
