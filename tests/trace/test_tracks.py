"""The rows of timelines: every allocation, span, event, step and response, on the track of its holder."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from plot_samples import degenerate_traces, rollouts, sample_trace, tables

from rlhfless.trace import Trace
from rlhfless.trace.tracks import LOOP, NO_PANEL, TABLES, tracks

TRACES = degenerate_traces()


def rows_of(found: pd.DataFrame, table: str, *columns: str) -> list[list[object]]:
    return [list(row) for row in found[found["table"] == table][list(columns)].itertuples(index=False)]


def test_a_step_has_a_row_per_bar_on_the_track_of_its_holder() -> None:
    found = tracks(sample_trace(), step=1)
    assert rows_of(found, "allocations", "panel", "track", "name", "category", "start_s", "end_s") == [
        ["decode, node 0", "actor-0", "held", "decode", 10.0, 14.0],
        ["decode, node 0", "actor-1", "held", "decode", 10.0, 12.0],
    ]
    assert rows_of(found, "spans", "track", "category", "start_s", "end_s", "background") == [
        ["actor-0", "prefill", 10.0, 11.0, False],
        ["actor-0", "decode", 11.0, 13.0, False],
        ["actor-0", "transfer", 13.0, 14.0, True],
        ["actor-1", "decode", 10.0, 12.0, False],
    ]
    assert set(found.loc[found["table"] == "spans", "panel"]) == {"decode, node 0"}
    assert rows_of(found, "events", "panel", "track", "name", "start_s", "end_s") == [[LOOP, "events", "cut", 12.0, 12.0]]
    assert rows_of(found, "steps", "panel", "name", "start_s", "end_s") == [[LOOP, "rl.loop", 10.0, 14.0]]


@pytest.mark.parametrize("name", TRACES)
def test_every_row_of_the_trace_is_found_again_by_its_label(name: str) -> None:
    trace = TRACES[name]
    found = tracks(trace)
    for table, rows in (("allocations", trace.allocations), ("spans", trace.spans)):
        own = found[found["table"] == table].set_index("label")
        assert own.index.tolist() == rows.index.tolist()
        assert own["track"].tolist() == rows["holder"].tolist()
        assert own[["run", "step", "start_s", "end_s"]].astype({"run": str}).to_numpy().tolist() == (
            rows[["run", "step", "start_s", "end_s"]].astype({"run": str}).to_numpy().tolist()
        )
    assert (found["table"] == "events").sum() == len(trace.events)


def test_only_the_tables_runs_and_steps_that_are_asked_for_have_rows() -> None:
    trace = sample_trace()
    assert tracks(trace)["table"].unique().tolist() == list(TABLES[:-1]), "no response has times"
    assert tracks(trace, tables=("spans",))["table"].unique().tolist() == ["spans"]
    assert set(tracks(trace, step=0)["step"]) == {0}
    assert tracks(trace, run="another").empty


def test_phases_have_the_names_of_opentelemetry_where_it_has_one() -> None:
    rows = tables()
    phases = ["sync", "learn", "prepare", "start", "decode"]
    spans = [{**rows["spans"][0], "phase": phase} for phase in phases]
    found = tracks(sample_trace(1, spans=spans), tables=("spans",))
    assert found["name"].tolist() == ["rl.sync", "rl.train", "rl.reward", "start", "decode"]
    assert found["category"].tolist() == phases


def test_panels_follow_a_holder_from_step_to_step_and_may_be_unknown() -> None:
    first, second = tables(0), tables(1)
    moved = [{**row, "role": "learner", "node": None} for row in second["allocations"]]
    trace = Trace(
        first["rollouts"] + second["rollouts"], allocations=first["allocations"] + moved,
        spans=first["spans"] + second["spans"],
    )  # fmt: skip
    found = tracks(trace, tables=("spans",))
    assert found.groupby("step")["panel"].unique().map(list).tolist() == [["decode, node 0"], ["learner"]]
    assert set(tracks(sample_trace(allocations=[]), tables=("spans",))["panel"]) == {NO_PANEL}


def moved_response(leave_s: float) -> Trace:
    """A response that moved from actor-0 to actor-1 within half a second from ``leave_s`` on; another one without times."""
    detail = json.dumps({"response": 1})
    move = {"step": 0, "from_actor": "actor-0", "detail": detail, "start_s": leave_s, "end_s": leave_s + 0.5}
    spans = [{**move, "holder": "actor-0", "phase": "migrate"}, {**move, "holder": "actor-1", "phase": "transfer"}]
    times = [(None, None), (0.5, 4.0)]
    rows = [
        {**row, "actor": "actor-1", "start_s": start_s, "end_s": end_s}
        for row, (start_s, end_s) in zip(rollouts(), times, strict=False)
    ]
    return Trace(rows, allocations=tables()["allocations"], spans=spans)


def test_a_response_that_moved_has_a_row_on_each_actor() -> None:
    found = tracks(moved_response(2.0), tables=("rollouts",))
    assert rows_of(found, "rollouts", "label", "panel", "track", "start_s", "end_s", "part", "parts") == [
        [1, "requests, actor-0", "actor-0", 0.5, 2.0, 1, 2],
        [1, "requests, actor-1", "actor-1", 2.5, 4.0, 2, 2],
    ]


def test_a_response_is_not_cut_at_moves_that_do_not_fit_its_times() -> None:
    found = tracks(moved_response(0.25), tables=("rollouts",))
    assert rows_of(found, "rollouts", "track", "start_s", "end_s", "parts") == [["actor-1", 0.5, 4.0, 1]]


def test_responses_without_an_actor_are_in_one_panel_and_those_without_times_in_none() -> None:
    rows = [{**row, "start_s": 0.0, "end_s": 1.0} for row in rollouts()]
    assert set(tracks(Trace(rows))["panel"]) == {LOOP, "requests"}
    assert "rollouts" not in set(tracks(sample_trace())["table"])
