"""One step before and after: totals, savings and the bound of two traces that a reader adds up by hand."""

from __future__ import annotations

import json
import math

import pytest
from plot_samples import EVIL, degenerate_traces, sample_trace, tables

from rlhfless.plots import plot_before_after
from rlhfless.scheduling.solver import CONSOLIDATION
from rlhfless.trace import Trace

TRACES = degenerate_traces()


def shorter() -> Trace:
    """The sample's step with both actors released after 2 s: 8 GPU-seconds in place of 12."""
    rows = tables()
    held = [{**row, "end_s": 2.0} for row in rows["allocations"]]
    return sample_trace(1, allocations=held, spans=[{**row, "end_s": min(row["end_s"], 2.0)} for row in rows["spans"][:2]])


def test_the_last_schedule_is_compared_with_the_first() -> None:
    fig = plot_before_after({"static": sample_trace(1), "solver": shorter()}, bound=lambda time_s: 3.0 * time_s)
    totals = fig.table.set_index("schedule")
    assert totals["gpu_seconds"].to_dict() == {"static": 12.0, "solver": 8.0, "lower bound": 6.0}, "at the time of the last"
    assert totals["cost_usd"].tolist()[:2] == pytest.approx([0.012, 0.008])
    assert totals["time_s"].tolist()[:2] == [4.0, 2.0]
    assert "no schedule that takes as long as solver saves more than 50% of the GPU-seconds" in fig.layout.title.text


def test_the_figure_says_before_after_saving_and_bound() -> None:
    fig = plot_before_after({"static": sample_trace(1), "solver": shorter()}, bound=lambda time_s: 3.0 * time_s)
    assert "After (solver) saves 33% of the cost and 50% of the time of before (static)" in fig.layout.title.text
    headings = [one.text for one in fig.layout.annotations]
    assert headings[0].startswith("<b>Before: static</b>: 2 actors of 2 l40s each, 4.00 s, 12.0 GPU-seconds, 0.0120 USD")
    assert headings[1].startswith("<b>After: solver</b>")
    bars = fig.data[-1]
    assert list(bars.y) == ["Before: static", "After: solver", "Lower bound"]
    assert list(bars.text) == [
        "0.0120 USD, 12.0 GPU-seconds", "0.800 cents, 8.00 GPU-seconds, 33% saved",
        "0.600 cents, 6.00 GPU-seconds, at most 50% saved",
    ]  # fmt: skip
    assert fig.layout.xaxis.range == fig.layout.xaxis2.range
    assert fig.layout.xaxis2.matches == "x"


def test_a_heading_says_how_many_actors_of_which_size_run() -> None:
    held = tables()["allocations"]
    kinds = [{**held[0], "kind": EVIL}, {**held[1], "gpu_ids": [2], "kind": "h100"}]
    fig = plot_before_after({"static": sample_trace(1), "solver": sample_trace(1, allocations=kinds)})
    first, last, *_ = (one.text for one in fig.layout.annotations)
    assert "2 actors of 2 l40s each, " in first
    assert "2 actors (1 of 1 h100, 1 of 2 " in last
    assert "<script>" not in last
    one = sample_trace(1, allocations=held[:1], spans=tables()["spans"][:2], plans=[])
    assert "1 actor of 2 l40s, " in plot_before_after({"a": one, "b": one}).layout.annotations[0].text


def test_actors_that_end_last_are_on_top_and_predictions_are_left_out() -> None:
    rows = tables()
    late = [{**row, "end_s": row["end_s"] + 4.0} if row["holder"] == "actor-1" else row for row in rows["spans"]]
    held = [{**row, "end_s": 8.0} for row in rows["allocations"]]
    fig = plot_before_after({"a": sample_trace(1, spans=late, allocations=held), "b": sample_trace(1)})
    assert [label.split(" ")[0] for label in fig.layout.yaxis.ticktext] == ["actor-1", "actor-0"]
    allocated = next(bar for bar in fig.data if bar.name == "allocated, idle")
    assert list(allocated.y) == [1, 0]
    assert {bar.name for bar in fig.data[:-1]} == {"allocated, idle", "prefill", "decode"}


def test_what_the_policy_solver_chose_stands_under_its_heading() -> None:
    plans = [{"step": 0, "actors": [], "notes": {"chosen": CONSOLIDATION}}]
    folding = sample_trace(1, plans=plans)
    fig = plot_before_after({"static": shorter(), "solver": folding})
    headings = [one.text for one in fig.layout.annotations]
    assert "round-robin with consolidation" in headings[1]
    assert "consolidation" not in headings[0]
    plain = plot_before_after({"static": folding, "solver": shorter()})
    assert "consolidation" not in "".join(one.text for one in plain.layout.annotations)
    assert fig.layout.height > plain.layout.height, "there is room for the line"


def test_what_other_sizes_of_actors_would_have_given_stands_under_the_heading() -> None:
    plans = [{"step": 0, "actors": [], "notes": {"chosen": CONSOLIDATION, "sizes": {"2": 1.0, "16": 2.0, "1": 1.176}}}]
    fig = plot_before_after({"static": shorter(), "solver": sample_trace(1, plans=plans)})
    assert "would be 18% higher with 1 GPU per actor, 100% higher with 16 GPUs per actor" in fig.layout.annotations[1].text
    assert "2 GPUs per actor" not in fig.layout.annotations[1].text, "its own size is no other"


def test_a_schedule_that_loses_says_so() -> None:
    fig = plot_before_after({"solver": shorter(), "static": sample_trace(1)})
    assert "After (static) costs 50% more and takes 100% more time than before (solver)" in fig.layout.title.text
    same = plot_before_after({"a": shorter(), "b": shorter()})
    assert "no schedule" not in same.layout.title.text, "without a bound"
    assert "saves 0.0% of the cost in the same time" in same.layout.title.text


def test_without_a_price_dollars_are_left_out() -> None:
    free = [{**row, "usd_per_gpu_s": 0.0} for row in tables()["allocations"]]
    fig = plot_before_after({"a": sample_trace(1, allocations=free), "b": shorter()})
    assert "saves 33% of the cost" in fig.layout.title.text
    assert list(fig.data[-1].text) == ["12.0 GPU-seconds", "0.800 cents, 8.00 GPU-seconds, 33% saved"]


def test_what_cannot_be_compared_says_why() -> None:
    def words(traces: dict[str, Trace]) -> str:
        return plot_before_after(traces).layout.annotations[0].text

    assert "one schedule only" in words({"a": sample_trace(1)})
    assert words({}) == "There are no schedules to show."
    assert "takes no time" in words({"a": TRACES["no time"], "b": sample_trace(1)})


@pytest.mark.parametrize("name", TRACES)
def test_before_and_after_survive_every_trace(name: str) -> None:
    fig = plot_before_after({EVIL: TRACES[name], "other": TRACES[name]}, bound=lambda time_s: math.inf)
    assert fig.layout.title.text
    assert "<script>" not in json.dumps(fig.to_plotly_json(), default=str)
