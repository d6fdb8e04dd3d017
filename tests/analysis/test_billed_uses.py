"""GPU-seconds by use: every second of an allocation counts once, and empty slots stand apart from work."""

from __future__ import annotations

import pandas as pd
import pytest
from plot_samples import sample_trace, tables

from rlhfless.analysis import billed_uses


def of_use(table: pd.DataFrame) -> dict[str, float]:
    """GPU-seconds by use."""
    return dict(zip(table["use"], table["gpu_s"], strict=True))


def test_uses_add_up_to_what_is_billed():
    """actor-0: 2 GPUs, 1 s of prefill, 2 s of decoding in a quarter of the slots, 1 s idle. actor-1: 2 GPUs decode for 2 s."""
    spans = [{**row, "batch_mean": 2.0, "slots": 8} if row["phase"] == "decode" else row for row in tables()["spans"]]
    table = billed_uses(sample_trace(1, spans=spans))
    assert of_use(table) == pytest.approx(
        {"prefill": 2.0, "decoding, slots in use": 2.0, "decoding, empty slots": 6.0, "idle GPUs": 2.0}
    )
    assert table["kind"].tolist() == ["work", "work", "empty slots", "idle"]
    assert table["gpu_s"].sum() == pytest.approx(12.0)
    assert table["usd"].sum() == pytest.approx(0.012)
    assert table["share"].sum() == pytest.approx(1.0)


def test_gpus_without_a_price_leave_the_dollars_of_their_uses_unknown():
    held = [{**row, "usd_per_gpu_s": 0.0} for row in tables()["allocations"]]
    table = billed_uses(sample_trace(1, allocations=held))
    assert table["usd"].isna().all()
    assert table["gpu_s"].sum() == pytest.approx(12.0)


def test_slots_that_are_not_recorded_count_as_used():
    assert of_use(billed_uses(sample_trace(1))) == pytest.approx(
        {"decoding, slots in use": 8.0, "prefill": 2.0, "idle GPUs": 2.0}
    )


def test_overlapping_spans_count_once():
    double = [*tables()["spans"], {**tables()["spans"][1], "phase": "prefill"}]
    assert billed_uses(sample_trace(1, spans=double))["gpu_s"].sum() == pytest.approx(12.0)


def test_a_trace_without_allocations_has_no_uses():
    assert billed_uses(sample_trace(1, allocations=[])).empty
