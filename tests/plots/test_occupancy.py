"""How many slots are in use over time: counted from responses that a reader adds up by hand, else the mean of the span."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from every_plot import part
from plot_samples import rollouts, sample_trace, tables

from rlhfless.plots import plot_timeline
from rlhfless.plots.style import plain
from rlhfless.trace import Trace, allocation_metrics, decode_capacity


def drained(**changed: object) -> Trace:
    """actor-0 decodes from 1 s to 3 s in 8 slots: four responses until 2 s, then one. actor-1 decodes two of 8 for 2 s.

    The last response of actor-0 ends at 3 s; 4 GPUs are paid for 4 s and 2 s.
    """
    ends = [2.0, 2.0, 2.0, 3.0, 2.0, 2.0]
    rows = [
        {**row, "actor": f"actor-{int(i > 3)}", "start_s": float(i < 4), "end_s": ends[i]} for i, row in enumerate(rollouts())
    ]
    batches = {("actor-0", "decode"): 2.5, ("actor-1", "decode"): 2.0}
    spans = [{**s, "batch_mean": batches.get((s["holder"], s["phase"])), "slots": 8} for s in tables()["spans"]]
    return sample_trace(1, **{"rollouts": rows, "spans": spans, "events": [], "plans": [], **changed})


def in_use(trace: Trace, second: float, holder: str = "actor-0") -> float:
    """The share of slots at a moment."""
    pieces = part(plot_timeline(trace), "decoding")
    mine = pieces[pieces["holder"] == holder]
    (share,) = mine.loc[(mine["start_s"] <= second) & (second < mine["end_s"]), "in_use"]
    return float(share)


def test_slots_empty_when_responses_end() -> None:
    assert in_use(drained(), 1.5) == pytest.approx(4 / 8)
    assert in_use(drained(), 2.5) == pytest.approx(1 / 8)
    assert in_use(drained(), 1.0, "actor-1") == pytest.approx(2 / 8)


@pytest.mark.parametrize("recomputed", [False, True])
def test_a_response_that_moves_empties_a_slot_of_its_sender(recomputed: bool) -> None:
    """Response 3 begins on actor-1 and moves to actor-0 at 1.5 s, with its KV cache or without."""
    same = {"step": 0, "start_s": 1.5, "end_s": 1.51}
    again = {"recomputed": [{"response": 3, "tokens": 9, "seconds": 0.01, "from_actor": "actor-1"}]}
    sent = {**same, "from_actor": "actor-1", "detail": json.dumps({"response": 3})}
    moved = [{**sent, "holder": "actor-1", "phase": "migrate"}, {**sent, "holder": "actor-0", "phase": "transfer"}]
    if recomputed:
        moved = [{**same, "holder": "actor-0", "phase": "prefill", "detail": json.dumps(again)}]
    decoding = [{**row, "batch_mean": 2.25, "slots": 8} for row in tables()["spans"] if row["phase"] == "decode"]
    trace = drained(spans=[*decoding, *moved])
    assert in_use(trace, 1.2) == pytest.approx(3 / 8, rel=0.05)
    assert in_use(trace, 1.8) == pytest.approx(4 / 8, rel=0.05)
    assert in_use(trace, 1.2, "actor-1") == pytest.approx(3 / 8, rel=0.05)


def test_the_mean_over_pieces_is_that_of_the_span() -> None:
    pieces = part(plot_timeline(drained()), "decoding")
    of_first = pieces[pieces["holder"] == "actor-0"]
    seconds = of_first["end_s"] - of_first["start_s"]
    assert float(seconds @ of_first["in_use"]) == pytest.approx(2.0 * 2.5 / 8)
    assert of_first["start_s"].tolist()[1:] == of_first["end_s"].tolist()[:-1]


def test_responses_that_do_not_explain_the_batch_are_not_used() -> None:
    late = drained(rollouts=[{**row, "actor": "actor-0", "start_s": 2.9, "end_s": 3.0} for row in rollouts()])
    assert in_use(late, 1.5) == pytest.approx(2.5 / 8)
    without = drained(rollouts=rollouts())
    assert in_use(without, 1.5) == pytest.approx(2.5 / 8)


def test_a_span_without_batch_or_slots_is_one_piece_whose_slots_in_use_are_unknown() -> None:
    pieces = part(plot_timeline(sample_trace(1)), "decoding")
    assert pieces[["holder", "start_s", "end_s"]].to_numpy().tolist() == [["actor-0", 1.0, 3.0], ["actor-1", 0.0, 2.0]]
    assert "in_use" not in pieces, "a table has no columns that nobody knows"


def test_idle_gpus_and_empty_slots_are_the_empty_capacity() -> None:
    """12 GPU-seconds are paid, 2 of them idle; of 2 s on 2 GPUs 5.5 of 8 slots are empty, and of 2 s on the others 6 of 8."""
    capacity = decode_capacity(allocation_metrics(drained()))
    assert capacity == pytest.approx((12.0, 2.0, 4 * 5.5 / 8 + 4 * 6 / 8))
    assert capacity.empty_share == pytest.approx((2 + 2.75 + 3) / 12)
    assert math.isnan(decode_capacity(allocation_metrics(sample_trace(1))).empty_share)
    learner = allocation_metrics(drained()).assign(role="learner")
    assert math.isnan(decode_capacity(learner).empty_share)


def test_the_title_has_both_wastes_and_the_last_response_at_whose_end_is_an_arrow() -> None:
    fig = plot_timeline(drained())
    assert "65% of the paid decode capacity stood empty" in fig.layout.title.text
    assert "2.00 GPU-seconds idle (16.7%), 5.75 in empty slots" in fig.layout.title.text
    assert "<br>last response: prompt p1, sample 1 (40 tokens, median 35)<br>" in fig.layout.title.text
    assert not fig.layout.annotations, "nothing is written over bars and names"
    arrow = next(one for one in fig.data if one.name == "last response")
    assert (arrow.x[0], round(arrow.y[0])) == (3.0, 0)
    assert "prompt p1, sample 1" in arrow.hovertext[0]
    shades = next(one.marker.color for one in fig.data if one.name == "decode")
    assert np.max(shades) == pytest.approx(0.5)
    assert np.min(shades) == pytest.approx(0.125, rel=0.01)


def test_the_last_response_is_not_named_where_times_are_unknown() -> None:
    assert "last response" not in plot_timeline(sample_trace(1)).layout.title.text
    most_s = float(np.quantile([2.0, 2.0, 2.0, 3.0, 2.0, 2.0], 0.9))
    assert f"(90% had ended at {most_s:.2f} s)" in plain(plot_timeline(drained()).layout.title.text)


def test_a_step_without_spans_has_no_pieces() -> None:
    assert part(plot_timeline(drained(spans=[])), "decoding").empty
