"""Figures of drafts: shares by position, the map of speed-ups and its limit, and what they say without."""

from __future__ import annotations

from dataclasses import replace

import pytest
from every_plot import draft_fronts, drafted, part

import solver
from rlhfless import plots
from rlhfless.plots.speedup_map import RATES, same_rate
from solver.model.acceptance import Acceptance
from solver.timing.draft_length import best_length

LATENCY = solver.LatencyModel("x", 1, base_s=5e-3, per_response_s=1e-4, per_kv_token_s=1e-8, max_batch=256)
BATCHES = [1, 8, 64, 256]


def test_tokens_per_pass_are_one_and_the_shares_up_to_there() -> None:
    fig = plots.plot_acceptance(drafted("history"))
    assert fig.table["tokens_per_pass"].tolist() == [1.75, 2.25, 1.5, 1.75]
    assert [line.name for line in fig.data] == ["history: 2.25 tokens per pass", "own tokens: 1.75 tokens per pass"]
    assert fig.layout.yaxis.range == (0, 1)


def test_without_drafts_the_figures_say_so() -> None:
    study = drafted("x")
    nothing = replace(study, by_position=study.by_position.iloc[:0])
    assert "no drafts" in plots.plot_acceptance(nothing).layout.annotations[0].text
    assert "no batch sizes" in plots.plot_speedup_map(LATENCY, 100.0, batches=[]).layout.annotations[0].text


def test_each_cell_of_the_map_has_the_best_length_and_the_limit_is_where_a_draft_begins_to_pay() -> None:
    fig = plots.plot_speedup_map(LATENCY, 200.0, batches=BATCHES, max_draft_tokens=4)
    cells = part(fig, "map")
    assert len(cells) == len(BATCHES) * len(RATES)
    for row in cells.itertuples():
        best = best_length(LATENCY, row.batch, 200.0, Acceptance.geometric(row.rate, 4))
        assert (row.draft_tokens, row.speedup) == best
    limits = part(fig, "limits").set_index("batch")["pays_from"]
    assert limits.is_monotonic_increasing
    for row in cells.itertuples():
        assert (row.draft_tokens > 0) == (row.rate > limits[row.batch])
    never_pays = replace(LATENCY, base_s=1e-9, per_kv_token_s=0.0)
    assert "pays_from" not in plots.plot_speedup_map(never_pays, 200.0, batches=[8]).table


def test_the_rate_of_a_log_gives_its_tokens_per_pass() -> None:
    measured = Acceptance([0.6, 0.5, 0.1])
    rate = same_rate(measured)
    assert Acceptance.geometric(rate, 3).tokens_per_pass(3) == pytest.approx(measured.tokens_per_pass(3), abs=1e-4)
    fig = plots.plot_speedup_map(LATENCY, 200.0, measured, batches=BATCHES)
    line = fig.data[-1]
    assert (line.name, list(line.y)) == (f"this log accepts {rate:.0%}", [rate, rate])
    assert len(plots.plot_speedup_map(LATENCY, 200.0, batches=BATCHES).data) == 2


def test_fronts_are_lines_of_what_no_result_of_their_policy_beats_above_two_bounds() -> None:
    fronts = draft_fronts("spec")
    fig = fronts.plot()
    assert part(fig, "policies")["below_one_token"].tolist() == [False, False, True, True]
    assert [line.name for line in fig.data][2:] == ["random", "spec"]
    assert (list(fig.data[3].x), list(fig.data[3].y)) == ([1.0], [3.0])
    assert list(fig.data[0].y)[1:] == [6.0, 4.0]
    assert list(fig.data[1].y)[1:] == [2.0, 1.5]
    assert "no policy" in replace(fronts, table=fronts.table.iloc[:0]).plot().layout.annotations[0].text
