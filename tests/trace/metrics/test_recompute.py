"""GPU-seconds, idle GPU-seconds and dollars, recomputed from the parquet files in a few lines that know no rlhfless."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rlhfless.trace import read_trace, step_metrics


def recompute(folder: Path) -> dict[int, list[float]]:
    """Step → GPU-seconds, idle GPU-seconds and dollars."""
    spans = pq.read_table(folder / "spans.parquet").to_pylist()
    totals: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for a in pq.read_table(folder / "allocations.parquet").to_pylist():
        key = (a["run"], a["step"], a["holder"])
        own = [s for s in spans if (s["run"], s["step"], s["holder"]) == key and not s["background"]]
        busy_s, until_s = 0.0, a["start_s"]
        for s in sorted(own, key=lambda s: s["start_s"]):
            busy_s += max(0.0, min(s["end_s"], a["end_s"]) - max(s["start_s"], until_s))
            until_s = max(until_s, min(s["end_s"], a["end_s"]))
        gpus, duration_s = len(a["gpu_ids"]), a["end_s"] - a["start_s"]
        step = totals[a["step"]]
        step[0] += gpus * duration_s
        step[1] += gpus * (duration_s - busy_s)
        step[2] += gpus * duration_s * a["usd_per_gpu_s"]
    return dict(totals)


def test_the_metrics_are_what_the_files_say(folder: Path) -> None:
    metrics = step_metrics(read_trace(folder)).set_index("step")
    expected = recompute(folder)
    assert sorted(expected) == [0, 1]
    for step, numbers in expected.items():
        assert list(metrics.loc[step, ["gpu_seconds", "idle_gpu_seconds", "cost_usd"]]) == pytest.approx(numbers)
        assert numbers == pytest.approx([16.0, 6.0, 0.016])
