"""Plots that set schedules beside each other: what they show of steps whose numbers are known, and every degenerate input."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from every_plot import part
from plot_samples import EVIL, busy_trace, degenerate_traces, sample_trace, tables

from rlhfless.plots import plot_side_by_side, plot_timelines
from rlhfless.plots.style import plain
from rlhfless.plots.timeline_grid import bundles
from rlhfless.trace import Trace

TRACES = degenerate_traces()


def moving_trace() -> Trace:
    """The second of two steps, in which a response moves from actor-1 to actor-0 from 1.5 s to 2 s after its start; a part of
    its KV cache was copied before, while it decoded on. Another transfer comes from a holder that does not decode, and one is
    of a prefix."""
    detail = json.dumps({"response": 3})
    moved = [
        {"step": 1, "holder": holder, "phase": phase, "start_s": 11.5, "end_s": 12.0, "from_actor": "actor-1", "detail": detail,
         "background": phase == "transfer"}
        for holder, phase in (("actor-1", "migrate"), ("actor-0", "transfer"))
    ]  # fmt: skip
    copied = [{**row, "start_s": 11.0, "end_s": 11.25, "background": True} for row in moved]
    others = [{**moved[1], "from_actor": "prefill-0"}, {**moved[1], "call": "prefixes", "detail": None}]
    spans = [row for step in range(2) for row in tables(step)["spans"]]
    return sample_trace(spans=[*spans, *copied, *moved, *others])


def test_a_response_that_moves_is_a_line_from_the_sender_s_row_to_the_receiver_s():
    fig = plot_timelines({"moves": moving_trace(), "stays": sample_trace(2)})
    moves = part(fig, "moves").dropna(axis="columns").drop(columns="table").to_dict("records")
    sent = {"from_holder": "actor-1", "to_holder": "actor-0", "start_s": 1.5, "end_s": 2.0, "tokens": 0, "seconds": 0.0}
    assert moves == [{**sent, "recomputed": False, "schedule": "moves"}]
    line = next(one for one in fig.data if one.name.startswith("migration"))
    assert (list(line.x), list(line.y)) == ([1.5, 2.0, None], [1, 0, None]), "of the second step, the last one"


def test_schedules_share_the_time_axis_and_the_legend():
    fig = plot_timelines({"moves": moving_trace(), "stays": sample_trace(2)})
    assert {one.yaxis for one in fig.data} == {"y", "y2"}
    assert fig.layout.xaxis.matches == "x2"
    assert fig.layout.xaxis.range == fig.layout.xaxis2.range
    named = [one.name for one in fig.data if one.showlegend]
    assert len(named) == len(set(named)) == len({one.name for one in fig.data})
    headings = [one.text for one in fig.layout.annotations]
    assert (
        headings[0]
        == "<b>moves</b>: 2 actors of 2 l40s each, 4.00 s, 12.0 GPU-seconds, 0.0120 USD; 2.00 GPU-seconds idle (16.7%), "
        "1 migration"
    )
    assert "move" not in headings[1]


def test_moves_between_two_actors_at_about_the_same_time_are_one_line():
    moves = pd.DataFrame(
        [(1, 0, 1.0, 1.2), (2, 0, 1.0, 1.1), (1, 0, 1.3, 1.4), (1, 0, 3.0, 3.1), (0, 1, 1.0, 1.1)],
        columns=["from_row", "to_row", "start_s", "end_s"],
    ).assign(tokens=[1, 2, 4, 8, 16], seconds=0.5)
    found = bundles(moves, 0.5)
    columns = ["from_row", "to_row", "start_s", "end_s", "responses"]
    assert found[columns].to_numpy().tolist() == [
        [0, 1, 1.0, 1.1, 1], [1, 0, 1.0, 1.4, 2], [1, 0, 3.0, 3.1, 1], [2, 0, 1.0, 1.1, 1],
    ]  # fmt: skip
    assert found["tokens"].tolist() == [16, 5, 8, 2]
    assert found["seconds"].tolist() == [0.5, 1.0, 0.5, 0.5]
    assert bundles(moves[:0], 0.5).empty
    assert bundles(moves, 0.0)["responses"].tolist() == [1] * 5


def test_where_moves_arrive_is_shown_at_the_dots():
    fig = plot_timelines({"moves": moving_trace()})
    dots = next(one for one in fig.data if one.name == "responses arrive")
    assert (list(dots.x), list(dots.y)) == ([2.0], [0])
    assert "actor-0" in dots.hovertext[0]
    assert "1 response migrated here" in dots.hovertext[0]
    assert "actor-1" in dots.hovertext[0]


def test_a_recomputed_move_is_a_dashed_line_with_what_it_took():
    """Of a prefill from 1 s to 2 s, in which actor-0 computes two responses of actor-1 again, and one that came from a
    holder that does not decode."""
    again = [
        {"response": 3, "tokens": 1200, "seconds": 0.5, "from_actor": "actor-1"},
        {"response": 4, "tokens": 300, "seconds": 0.25, "from_actor": "actor-1"},
        {"response": 5, "tokens": 300, "seconds": 0.25, "from_actor": "gone"},
    ]
    prefill = {"step": 0, "holder": "actor-0", "phase": "prefill", "start_s": 1.0, "end_s": 2.0}
    other = {**prefill, "detail": json.dumps({"else": 1})}
    rows = [*tables(0)["spans"], {**prefill, "detail": json.dumps({"recomputed": again})}, other]
    fig = plot_timelines({"recomputes": sample_trace(1, spans=rows)})
    line = next(one for one in fig.data if one.name == "migration, KV recomputed (dot: receiver)")
    assert (list(line.x), list(line.y), line.line.dash) == ([1.0, 2.0, None], [1, 0, None], "dash")
    assert line.showlegend
    dots = next(one for one in fig.data if one.name == "recomputed")
    assert (list(dots.x), list(dots.y)) == ([2.0], [0])
    assert "2 responses migrated here" in dots.hovertext[0]
    assert "1,500 tokens in 0.750 s" in dots.hovertext[0]
    assert "2 migrations" in fig.layout.annotations[0].text
    assert not [one for one in fig.data if one.name == "responses arrive"]


def test_what_is_too_short_to_be_seen_is_not_in_the_legend():
    rows = tables(0)
    brief = {**rows["spans"][0], "phase": "sync", "start_s": 0.0, "end_s": 1e-4}
    fig = plot_timelines({"brief": sample_trace(1, spans=[*rows["spans"], brief])})
    assert [one.showlegend for one in fig.data if one.name == "sync"] == [False]
    assert "too short to be seen: sync" in plain(fig.layout.title.text)
    assert "too short" not in plot_timelines({"seen": sample_trace(1)}).layout.title.text


@pytest.mark.parametrize("name", TRACES)
def test_timelines_survive_every_trace(name):
    fig = plot_timelines({EVIL: TRACES[name], "other": TRACES[name]})
    assert fig.layout.title.text
    assert "<script>" not in json.dumps(fig.to_plotly_json(), default=str)


@pytest.mark.full
def test_timelines_that_cannot_be_shown_say_so():
    def words(*shown, **further):
        return plot_timelines(*shown, **further).layout.annotations[0].text

    assert words({}) == "There are no schedules to show."
    assert "122 actors are too many" in words({str(i): sample_trace(1) for i in range(61)})
    assert "a: 12,000 spans" in words({"a": busy_trace(12_000)})
    assert "no step 7" in words({"a": sample_trace(2)}, step=7)


def test_bars_side_by_side_leave_out_what_is_not_known():
    table = pd.DataFrame({"planned": [1.0, 2.0], "measured": [None, 2.5]}, index=["static", EVIL])
    fig = plot_side_by_side(table, "Makespan", "makespan (s)", decimals=1, bound=("least", 0.5))
    assert [one.name for one in fig.data] == ["planned", "measured"]
    assert list(fig.data[1].text) == ["", "2.5"]
    assert fig.layout.xaxis.range[1] == pytest.approx(3.0), "room for the numbers at the bars"
    assert "dashed: least, 0.5" in fig.layout.title.text
    assert "<script>" not in json.dumps(fig.to_plotly_json(), default=str)


def test_bars_side_by_side_have_room_for_negative_numbers():
    fig = plot_side_by_side(pd.DataFrame({"saved": [-5.0, 10.0]}, index=["a", "b"]), "Saved", "%")
    assert fig.layout.xaxis.range == (pytest.approx(-6.0), pytest.approx(12.0))


def test_bars_side_by_side_of_nothing_say_so():
    nothing = plot_side_by_side(pd.DataFrame(), "Nothing", "numbers")
    assert nothing.layout.annotations[0].text == "There are no numbers to show."
    five = pd.DataFrame([range(5)])
    assert "at most 4" in plot_side_by_side(five, "Five", "numbers").layout.annotations[0].text
