"""Several runs and logs in one figure: a line each, step by step or by length, and how long their responses are."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from plot_samples import degenerate_traces, rollouts, sample_trace

from rlhfless.errors import InputError
from rlhfless.plots import DataFigure, plot_lengths, plot_steps
from rlhfless.plots.style import plain
from rlhfless.trace import Trace

TRACES = degenerate_traces()
LONG = Trace([{**row, "step": 1, "response_tokens": 10 * row["response_tokens"]} for row in rollouts()])


def panels(figure: DataFigure) -> dict[str, dict[str, list[float]]]:
    """Values by run, by the title of the panel's axis."""
    found: dict[str, dict[str, list[float]]] = {}
    for line in figure.data:
        axis = figure.layout[line.yaxis.replace("y", "yaxis")].title.text
        found.setdefault(axis, {})[line.name] = list(line.y)
    return found


def test_every_run_is_a_line_through_what_is_known_of_its_steps() -> None:
    """A step of ``sample_trace`` takes 4 s and 12 GPU-seconds on two actors, for 35 tokens per response."""
    shown = plot_steps({"executed": sample_trace(2), "logged": LONG})
    assert shown.table.columns.tolist() == ["run", "step", "mean_tokens", "time_s", "gpu_seconds", "actors"]
    assert shown.table["run"].tolist() == ["executed", "executed", "logged"]
    drawn = panels(shown)
    assert drawn["mean length (tokens)"] == {"executed": [35.0, 35.0], "logged": [350.0]}
    assert drawn["time (s)"]["executed"] == [4.0, 4.0]
    assert drawn["GPU-seconds"]["executed"] == [12.0, 12.0]
    assert drawn["actors"]["executed"] == [2.0, 2.0]
    assert all(math.isnan(value) for value in drawn["time (s)"]["logged"]), "unknown, and not 0"
    assert [line.name for line in shown.data if line.showlegend] == ["executed", "logged"]
    assert "2 runs, 2 steps" in plain(shown.layout.title.text)


def test_runs_of_one_trace_are_lines_of_their_own() -> None:
    both = Trace([*rollouts(run="a"), *rollouts(run="b")])
    assert set(panels(plot_steps({"seeds": both, "other": LONG}))["mean length (tokens)"]) == {"seeds, a", "seeds, b", "other"}


def test_steps_are_shown_by_their_mean_length_in_its_order() -> None:
    table = pd.DataFrame(
        {
            "run": ["a", "a", "a", "b"],
            "step": [0, 1, 2, 0],
            "mean_tokens": [30.0, 10.0, 20.0, 15.0],
            "time_s": [3.0, 1.0, 2.0, 9.0],
        }
    )
    shown = plot_steps(table, over="mean_tokens")
    assert [(line.name, list(line.x), list(line.y)) for line in shown.data] == [
        ("a", [10.0, 20.0, 30.0], [1.0, 2.0, 3.0]), ("b", [15.0], [9.0]),
    ]  # fmt: skip
    assert [list(line.x) for line in plot_steps(table).data[2:]] == [[0, 1, 2], [0]]


def test_runs_are_told_apart_without_colour() -> None:
    shown = plot_steps({name: sample_trace(2) for name in ("static", "solver", "mine", "yours")})
    of_panel = [line for line in shown.data if line.showlegend]
    assert len({line.line.dash for line in of_panel}) == len({line.marker.symbol for line in of_panel}) == 4


def test_what_cannot_be_drawn_step_by_step_is_said() -> None:
    bare = pd.DataFrame({"run": ["a"], "step": [0]})
    for nothing in ({}, bare, bare.assign(time_s=np.nan)):
        assert plot_steps(nothing).layout.annotations[0].text == "No number of a step is known."
    with refused(InputError, "over is 'time_s'", "step, mean_tokens"):
        plot_steps({"a": LONG}, over="time_s")
    with refused(InputError, "'mine': trace"):
        plot_steps(LONG, over="mean_tokens")
    with refused(InputError, "no column 'mean_tokens'"):
        plot_steps(bare.assign(time_s=1.0), over="mean_tokens")
    with refused(InputError, "no column 'step'"):
        plot_steps(pd.DataFrame({"run": ["a"], "time_s": [1.0]}))


def test_the_lengths_of_logs_are_quantiles_and_cut_off_responses_are_counted() -> None:
    shown = plot_lengths({"short": Trace(rollouts()), "long": LONG})
    assert [line.name for line in shown.data] == ["short (6 responses, 1 cut off)", "long (6 responses, 1 cut off)"]
    assert "a response that was cut off would have been longer" in plain(shown.layout.title.text)
    for log, lengths in (("short", range(10, 61, 10)), ("long", range(100, 601, 100))):
        rows = shown.table[shown.table["log"] == log].set_index("share")["tokens"]
        assert (rows[0.0], rows[1.0]) == (min(lengths), max(lengths))
        assert rows[0.5] == np.median(lengths)
        assert rows.is_monotonic_increasing
    assert shown.layout.xaxis.type == "log"
    assert "cut off" not in plain(plot_lengths({"a": Trace(rollouts(finish_reason="stop"))}).layout.title.text)


def test_one_step_of_logs_leaves_out_logs_without_it() -> None:
    shown = plot_lengths({"short": Trace(rollouts()), "long": LONG}, step=1)
    assert shown.table["log"].unique().tolist() == ["long"]
    assert plain(shown.layout.title.text).startswith("Response lengths of several logs, step 1")
    assert plot_lengths({"short": Trace(rollouts())}, step=1).layout.annotations[0].text == "There are no responses."


def test_lengths_of_no_token_have_a_linear_axis() -> None:
    assert plot_lengths({"bare": TRACES["one bare logged response"]}).layout.xaxis.type != "log"


@pytest.mark.parametrize("name", TRACES)
def test_strange_traces_can_be_compared(name: str) -> None:
    both = {"strange": TRACES[name], "plain": sample_trace(1)}
    for shown in (plot_steps(both), plot_steps(both, over="mean_tokens"), plot_lengths(both)):
        assert {"plain", "strange"} >= {
            name.partition(" (")[0].partition(",")[0] for name in (line.name for line in shown.data)
        }
        assert len(shown.table)
