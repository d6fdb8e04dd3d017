"""Responses of an actor, and curves over steps: what they show of traces that a reader adds up by hand."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from every_plot import COSTS
from plot_samples import EVIL, degenerate_traces, rollouts, sample_trace, tables

from rlhfless.plots import plot_cost_over_time, plot_curves, plot_responses
from rlhfless.plots.training_curves import MOST_POINTS
from rlhfless.trace import Trace


def timed() -> Trace:
    """Responses 0 to 3 on actor-0, 4 and 5 on actor-1; number 2 waits for a second."""
    rows = [
        {**row, "actor": f"actor-{int(i > 3)}", "start_s": float(i == 2), "end_s": 2.0 + 0.1 * i}
        for i, row in enumerate(rollouts())
    ]
    return Trace(rows, allocations=tables()["allocations"])


def test_the_responses_of_an_actor_are_bars_in_the_order_of_joining() -> None:
    bars = plot_responses(timed(), "actor-0").table
    assert bars["rollouts_row"].tolist() == [0, 1, 3, 2]
    assert bars["start_s"].tolist() == [0, 0, 0, 1]
    assert bars["end_s"].tolist() == pytest.approx([2.0, 2.1, 2.3, 2.2])
    assert bars["kind"].tolist() == ["complete"] * 4
    assert plot_responses(timed(), "actor-1").table["kind"].tolist() == ["complete", "cut"]


def test_a_bar_knows_the_row_of_its_response_and_says_its_lengths() -> None:
    fig = plot_responses(timed(), "actor-0")
    by_name = {one.name: one for one in fig.data}
    assert list(by_name["decoding"].customdata) == [0, 1, 3, 2]
    assert list(by_name["decoding"].x) == pytest.approx([2.0, 2.1, 2.3, 1.2])
    assert list(by_name["waiting"].x) == [1.0]
    assert "predicted: 20" in by_name["decoding"].hovertext[0]
    assert "cut off" in "".join(one.name for one in plot_responses(timed(), "actor-1").data)


def test_of_a_response_that_moves_each_actor_has_its_part() -> None:
    """Response 4 begins on actor-1, leaves at 0.5 s and arrives on actor-0 at 0.75 s."""
    moved = {"step": 0, "start_s": 0.5, "end_s": 0.75, "from_actor": "actor-1", "detail": json.dumps({"response": 4})}
    spans = [{**moved, "holder": "actor-1", "phase": "migrate"}, {**moved, "holder": "actor-0", "phase": "transfer"}]
    rows = timed().rollouts
    rows.loc[4, "actor"] = "actor-0"
    trace = Trace(rows, allocations=tables()["allocations"], spans=spans)
    left, came = (plot_responses(trace, actor).table.set_index("rollouts_row").loc[4] for actor in ("actor-1", "actor-0"))
    assert (left["start_s"], left["end_s"], left["kind"]) == (0.0, 0.5, "moved")
    assert (came["start_s"], came["end_s"], came["kind"]) == (0.75, pytest.approx(2.4), "complete")
    waiting = next(one for one in plot_responses(trace, "actor-0").data if one.name == "waiting")
    assert list(waiting.customdata) == [2], "a response that was on its way or elsewhere did not wait here"


def test_the_axis_of_responses_has_whole_numbers() -> None:
    assert plot_responses(timed(), "actor-0").layout.yaxis.dtick == 1
    many = pd.concat([timed().rollouts] * 5, ignore_index=True).assign(sample=range(30))
    axis = plot_responses(Trace(many, allocations=tables()["allocations"]), "actor-0").layout.yaxis
    assert (axis.dtick, axis.tickformat) == (None, "d")


def test_what_is_not_known_of_responses_is_said() -> None:
    def words(*shown: object) -> str:
        return plot_responses(*shown).layout.annotations[0].text

    assert "no actors or times" in words(sample_trace())
    assert "actor-9 has no completed responses" in words(timed(), "actor-9")
    assert "&lt;script" in words(timed(), EVIL)
    assert set(plot_responses(timed()).table["holder"]) == {"actor-0"}


@pytest.mark.parametrize("name", degenerate_traces())
def test_responses_survive_every_trace(name: str) -> None:
    text = plot_responses(degenerate_traces()[name]).to_json()
    assert "<script" not in text


def test_names_of_prompts_are_harmless() -> None:
    trace = timed()
    trace.rollouts["prompt_id"] = [f"{EVIL}{i}" for i in range(6)]
    text = plot_responses(trace, "actor-0").to_json()
    assert "<script" not in text
    assert "\\u003cscript" not in text


STEPS = pd.DataFrame(
    {
        "step": [0, 1], "reward_mean": [0.2, 0.4], "response_tokens_mean": [100.0, 80.0], "actors": [3, 2],
        "gpu_seconds": [10.0, 8.0], "idle_gpu_seconds": [1.0, 2.0], "generation_gpu_seconds": [6.0, 5.0],
        "static_gpu_seconds": [12.0, 10.0],
    }
)  # fmt: skip


def test_curves_are_one_per_number_with_shares_of_their_whole() -> None:
    fig = plot_curves(STEPS)
    assert fig.table["idle_share"].tolist() == pytest.approx([0.1, 0.25])
    assert fig.table["against_static"].tolist() == pytest.approx([0.5, 0.5])
    assert len(fig.data) == 5
    assert any("mean reward: 0.400" in one.text for one in fig.layout.annotations)


def test_numbers_that_are_not_known_have_no_curve() -> None:
    unknown = STEPS.assign(reward_mean=float("nan"), static_gpu_seconds=0.0)
    assert list(plot_curves(unknown).table) == ["step", "response_tokens_mean", "actors", "idle_share"]
    assert len(plot_curves(unknown).data) == 3
    assert plot_curves(STEPS).layout.xaxis.tickvals == tuple(STEPS["step"]), "steps are whole numbers"
    many = pd.concat([STEPS.assign(step=STEPS["step"] + 10 * i) for i in range(9)])
    assert plot_curves(many).layout.xaxis.tickvals is None
    assert "No step is complete yet" in plot_curves(pd.DataFrame()).layout.annotations[0].text


def test_a_share_of_nothing_but_rounding_is_nought():
    steps = pd.DataFrame({"step": [0, 1], "idle_gpu_seconds": [1e-17, 0.0], "gpu_seconds": [2.0, 2.0], "actors": [3, 4]})
    fig = plot_curves(steps)
    assert fig.table["idle_share"].tolist() == [0.0, 0.0]
    assert list(fig.layout.yaxis2.range) == [0, 1]


def test_the_curves_of_a_long_run_have_a_bounded_number_of_points_and_the_last_one_stays() -> None:
    steps = range(5000)
    fig = plot_curves(pd.DataFrame({"step": steps, "reward_mean": [float(step) for step in steps], "actors": 2}))
    for curve in fig.data:
        assert len(curve.x) == len(curve.y) == MOST_POINTS
        assert (curve.x[0], curve.x[-1]) == (0, 4999)
    assert "5,000 steps" in fig.layout.title.text


def test_costs_add_up_over_complete_steps_and_the_running_one_is_on_top() -> None:
    fig = plot_cost_over_time(COSTS)
    table = fig.table
    assert table["usd"].tolist() == pytest.approx([4.0, 7.0, 7.5, 8.5])
    assert table["gpu_seconds"].tolist() == pytest.approx([8.0, 14.0, 15.0, 17.0])
    assert table["idle_share"].tolist() == pytest.approx([1 / 8, 2 / 6, 0.0, 1 / 3]), "of the step, not of the run"
    cost, idle = fig.data
    assert list(cost.x) == [0.0, 2.0, 3.0, 3.5, 4.0]
    assert list(cost.y) == pytest.approx([0.0, 4.0, 7.0, 7.5, 8.5])
    assert [symbol.endswith("open") for symbol in idle.marker.symbol] == [False, False, True, True]


@pytest.mark.parametrize("unknown", [float("nan"), 0.0])
def test_costs_are_in_gpu_seconds_where_a_price_is_unknown(unknown: float) -> None:
    some = COSTS.assign(cost_usd=[4.0, unknown, 0.5, 1.5])
    fig = plot_cost_over_time(some)
    assert fig.data[0].y[-1] == pytest.approx(17.0)
    assert fig.layout.yaxis.title.text == "cost (GPU-seconds)"
    assert "USD" not in fig.layout.title.text
    assert "paid for" in plot_cost_over_time(COSTS.iloc[:0]).layout.annotations[0].text
