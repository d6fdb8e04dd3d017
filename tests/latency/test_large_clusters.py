"""The study of large clusters: what its memory is, what its length model gives, and which numbers its tables sum up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import large_clusters as study


def test_what_two_h100_leave_beside_a_70b_model():
    """160 GB (171 of the driver's bytes), 138 GB of weights: what is left depends on what else is set aside."""
    profile, everything = study.memory((2048, 8192))
    assert profile["kv_tokens"] == 22_565
    assert profile["slots_at_limit"] == {2048: 8, 8192: 2}
    assert profile["kv_gb"] == pytest.approx(7.4, abs=0.01)
    assert everything["kv_gb"] == pytest.approx(2 * 81_559 * 2**20 / 1e9 - 2 * 68.976648192, abs=0.01)


def test_lengths_stay_within_the_limit_and_grow_with_the_epochs():
    rows = study.rollouts(512, 2048)
    assert rows.groupby("step").size().tolist() == [512] * study.EPOCHS
    assert rows["response_tokens"].between(1, 2048).all()
    assert (rows["finish_reason"] == "length").equals(rows["response_tokens"] == 2048)
    means = rows.groupby("step")["response_tokens"].mean()
    assert means.is_monotonic_increasing
    assert rows.equals(study.rollouts(512, 2048))


def test_rows_are_sums_over_the_steps_with_history():
    rows = study.measure(1, 64, 8, ("static", "random"))
    assert [row["policy"] for row in rows] == ["static", "random"]
    result = study.simulate(study.rollouts(8, 64), study.setting(1, 64), ("static", "random"))
    summed = result.summary()
    assert summed["steps"].tolist() == [2, 2]
    assert [row["time_s"] for row in rows] == pytest.approx(summed["time_s"].tolist())
    assert [row["gpu_seconds"] for row in rows] == pytest.approx(summed["gpu_seconds"].tolist())


def test_every_effect_is_one_alone_and_never_helps_a_static_cluster():
    plain = study.measure(2, 64, 16, ("static",))[0]["time_s"]
    for how in study.effects_of(2).values():
        assert study.measure(2, 64, 16, ("static",), **how)[0]["time_s"] >= plain
