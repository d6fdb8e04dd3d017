"""Metrics: what a small trace adds up to, what is unknown, and what holds of every trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_samples import rollouts, step

from rlhfless.trace import Trace, allocation_metrics, decode_capacity, step_metrics

times = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=12)


def test_a_step_adds_up(trace: Trace) -> None:
    first, second = step_metrics(trace).drop(columns=["planning_s", "planning_delay_s"]).to_dict("records")
    assert first == {
        "run": "log",
        "step": 0,
        "time_s": 5.0,
        "gpu_seconds": 16.0,
        "idle_gpu_seconds": 6.0,
        "slot_idle_gpu_seconds": 2.0,
        "cost_usd": pytest.approx(0.016),
        "actors": 2,
        "responses": 6,
        "response_tokens": 75,
        "response_tokens_mean": 12.5,
        "reward_mean": 0.5,
        "truncated_share": 0.0,
    }
    assert second == first | {"step": 1, "cost_usd": pytest.approx(0.016)}


def test_a_logged_trace_has_no_times_and_no_dollars() -> None:
    rows = rollouts(finish_reason=None, reward=None)
    rows[0] |= {"finish_reason": "length"}
    rows[1] |= {"finish_reason": "stop", "reward": 3.0}
    (metrics,) = step_metrics(Trace(rows)).to_dict("records")
    unknown = ["time_s", "gpu_seconds", "idle_gpu_seconds", "slot_idle_gpu_seconds", "cost_usd", "actors"]
    assert all(pd.isna(metrics[name]) for name in unknown)
    assert (metrics["truncated_share"], metrics["reward_mean"]) == (0.5, 3.0)


def test_gpus_without_a_price_leave_the_dollars_unknown() -> None:
    """Emulated GPUs have the price 0; GPU-seconds are known nevertheless. One such GPU is enough for not knowing the sum."""
    rows = step()
    del rows["plan"]
    for unpriced in (1, 2):
        held = [{**row, "usd_per_gpu_s": 0.0} if i < unpriced else row for i, row in enumerate(rows["allocations"])]
        trace = Trace(**{**rows, "allocations": held})
        assert allocation_metrics(trace)["cost_usd"].isna().tolist()[:2] == [True, unpriced == 2]
        (metrics,) = step_metrics(trace).to_dict("records")
        assert np.isnan(metrics["cost_usd"])
        assert metrics["gpu_seconds"] == 16.0


def test_a_decode_span_without_a_batch_leaves_the_empty_slots_unknown() -> None:
    rows = step()
    rows["spans"][1]["batch_mean"] = None
    del rows["plan"]
    (metrics,) = step_metrics(Trace(**rows)).to_dict("records")
    assert np.isnan(metrics["slot_idle_gpu_seconds"])
    assert metrics["idle_gpu_seconds"] == 6.0


def test_planning_times_are_those_of_the_plans_and_unknown_in_older_traces(trace: Trace) -> None:
    timed = [{"step": 0}, {"step": 1, "planning_s": 0.3, "planning_delay_s": 0.1}]
    metrics = step_metrics(replace(trace, plans=timed)).set_index("step")[["planning_s", "planning_delay_s"]]
    assert metrics.loc[0].isna().all()
    assert metrics.loc[1].tolist() == [0.3, 0.1]
    assert step_metrics(replace(trace, plans=[]))["planning_s"].isna().all()


def test_every_run_has_rows_of_its_own() -> None:
    rows = {name: [row | {"run": run} for run in "ab" for row in step()[name]] for name in ("rollouts", "allocations", "spans")}
    metrics = step_metrics(Trace(**rows))
    assert metrics[["run", "step", "idle_gpu_seconds"]].to_numpy().tolist() == [["a", 0, 6.0], ["b", 0, 6.0]]


def test_a_holder_that_comes_back_is_one_actor_with_two_bills() -> None:
    rows: dict[str, Any] = step()
    del rows["plan"]
    rows["allocations"].append(rows["allocations"][1] | {"start_s": 6, "end_s": 9})
    rows["spans"].append(rows["spans"][3] | {"start_s": 5, "end_s": 7})
    trace = Trace(**rows)
    assert allocation_metrics(trace)["idle_gpu_seconds"].tolist() == [2.0, 0.0, 4.0, 4.0]
    assert step_metrics(trace).loc[0, "actors"] == 2


def test_slots_that_are_paid_for_and_empty_are_counted_as_by_hand(trace: Trace) -> None:
    """Decode actors hold 12 GPU-seconds of each step: 2 are idle, and in 2 the slots of their batches are empty."""
    assert decode_capacity(allocation_metrics(trace)).empty_share == pytest.approx(4 / 12)


@settings(max_examples=40, deadline=None)
@given(spans=times, background=st.booleans(), duration=st.integers(0, 20))
def test_idleness_lies_between_nothing_and_everything(spans: list, background: bool, duration: int) -> None:
    held = {"step": 0, "holder": "a", "role": "decode", "gpu_ids": [3, 4, 5], "kind": "x", "usd_per_gpu_s": 2}
    did = [
        {"step": 0, "holder": "a", "phase": "decode", "start_s": s, "end_s": s + d, "batch_mean": 1, "slots": 2}
        | {"background": background}
        for s, d in spans
    ]
    trace = Trace(rollouts(), [held | {"start_s": 0, "end_s": duration}], did)
    (metrics,) = step_metrics(trace).to_dict("records")
    assert 0 <= metrics["idle_gpu_seconds"] <= metrics["gpu_seconds"] == 3 * duration
    assert metrics["cost_usd"] == 2 * metrics["gpu_seconds"]
    if background:
        assert metrics["idle_gpu_seconds"] == metrics["gpu_seconds"]
