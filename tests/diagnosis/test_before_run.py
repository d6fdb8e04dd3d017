"""The question before a run: a simulated static schedule lies within the range, numbers by hand, what is unknown is said."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import Result, run_rlhfless
from engine_samples import read_lines, rollout_lines
from error_messages import refused, refused_command
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlhfless.analysis.split import steady_step_s
from rlhfless.diagnosis.before_run import Estimate, PlannedRun, before_run
from rlhfless.errors import InputError
from rlhfless.latency import ProfileError, load_profile, read_profile, save_profile, usd_per_gpu_hour
from rlhfless.latency.engine_statistics import fit_engine, profile_of_engine
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import validate
from solver import Cluster

PROFILE, TWO_GPUS = "h100-qwen2.5-3b-tp1", "l40s-qwen2.5-3b-tp2"


def lengths_of(count: int, mean: float, longest: int, spread: float, seed: int) -> np.ndarray:
    """Lengths of a step: a lognormal one cut at the longest, which one of them is."""
    rng = np.random.default_rng(seed)
    drawn = np.exp(rng.normal(np.log(mean) - spread**2 / 2, spread, count))
    drawn[rng.integers(count)] = longest
    return np.clip(np.round(drawn), 1, longest).astype(int)


def simulated_s(lengths: np.ndarray, prompt: int, profile: str | Path, gpus: int) -> float:
    """Seconds of a step of the static schedule on simulated engines."""
    model = load_profile(profile)
    rows = pd.DataFrame(
        {"step": 0, "prompt_id": [f"p{i}" for i in range(len(lengths))], "sample": 0, "prompt_tokens": prompt,
         "response_tokens": lengths, "finish_reason": "stop"}
    )  # fmt: skip
    cluster = Cluster(1, gpus, model.gpus_per_actor, kind=model.kind)
    setting = SimulationConfig(cluster, model, max_response_tokens=int(lengths.max()), bound_work=0)
    return float(simulate(validate("rollouts", rows), setting, ["static"]).table["time_s"].iloc[0])


@settings(max_examples=30, deadline=None)
@given(
    count=st.sampled_from([16, 96, 256]), mean=st.integers(50, 900), ratio=st.floats(1.5, 8.0), spread=st.floats(0.1, 1.0),
    prompt=st.sampled_from([0, 64, 700]), gpus=st.sampled_from([2, 8, 32]), profile=st.sampled_from([PROFILE, TWO_GPUS]),
    seed=st.integers(0, 1000),
)  # fmt: skip
@example(count=512, mean=800, ratio=5.0, spread=0.8, prompt=128, gpus=2, profile=PROFILE, seed=1)
@example(count=16, mean=300, ratio=8.0, spread=1.0, prompt=0, gpus=32, profile=TWO_GPUS, seed=2)
def test_a_simulated_static_schedule_is_within_the_range(
    count: int, mean: int, ratio: float, spread: float, prompt: int, gpus: int, profile: str, seed: int
) -> None:
    lengths = lengths_of(count, mean, int(mean * ratio), spread, seed)
    run = PlannedRun(1, count, float(lengths.mean()), longest_tokens=float(lengths.max()), prompt_tokens=prompt)
    (row,) = before_run(run, profile, (gpus,)).frame.to_dict("records")
    assert row["step_s_low"] <= simulated_s(lengths, prompt, profile, gpus) <= row["step_s_high"]


def test_slots_that_are_too_few_are_counted_in_waves() -> None:
    """2,048 responses on one replica of 256 slots: eight full batches, one after the other."""
    lengths = lengths_of(2048, 100, 300, 0.4, 3)
    run = PlannedRun(1, 2048, float(lengths.mean()), longest_tokens=300.0, prompt_tokens=32)
    (row,) = before_run(run, PROFILE, (1,)).frame.to_dict("records")
    assert row["step_s_low"] <= simulated_s(lengths, 32, PROFILE, 1) <= row["step_s_high"]
    assert row["step_s_high"] < 2 * row["step_s_low"]


def test_the_low_end_by_hand() -> None:
    model = load_profile(PROFILE)
    run = PlannedRun(100, 512, 800, longest_tokens=4096, other_s=30)
    (row,) = before_run(run, PROFILE, (8,), usd_per_hour=2.0).frame.to_dict("records")
    alone = (model.base_s + model.per_response_s) * 4096 + model.per_kv_token_s * 4096**2 / 2
    low = alone / (1 + model.fit_max_error)
    assert row["step_s_low"] == pytest.approx(low)
    assert row["longest_share"] == 1
    assert row["run_h_low"] == pytest.approx(100 * (low + 30) / 3600)
    assert row["gpu_hours_low"] == pytest.approx(8 * row["run_h_low"])
    assert row["usd_low"] == pytest.approx(2 * row["gpu_hours_low"])


@pytest.mark.parametrize("staleness", [0, 1, None])
def test_a_simulated_division_is_within_its_range(staleness: int | None) -> None:
    """Steps of the same lengths: generation on some of the GPUs, learning of 120 GPU-seconds on the others."""
    lengths = lengths_of(512, 300, 1500, 0.8, 1)
    run = PlannedRun(1, 512, float(lengths.mean()), longest_tokens=float(lengths.max()), learn_gpu_s=120, staleness=staleness)
    frame = before_run(run, PROFILE, (4, 8)).frame.set_index(["gpus", "gpus_generate", "gpus_train"])
    assert [key for key in frame.index if key[0] == 4] == [(4, 4, 4), (4, 1, 3), (4, 2, 2), (4, 3, 1)]
    for gpus, generate, train in ((8, 6, 2), (8, 2, 6), (4, 1, 3)):
        step_s = steady_step_s([simulated_s(lengths, 0, PROFILE, generate)], [120 / train], 0.0, staleness)
        row = frame.loc[(gpus, generate, train)]
        assert row["step_s_low"] <= step_s * (1 + 1e-9)
        assert step_s <= row["step_s_high"] * (1 + 1e-9)
        assert row["replicas"] == generate
    shared = frame.loc[(8, 8, 8)]
    assert shared["step_s_low"] <= simulated_s(lengths, 0, PROFILE, 8) + 15 <= shared["step_s_high"]


def test_divisions_that_are_surely_slower_are_not_shown() -> None:
    found = before_run(PlannedRun(100, 512, 800, longest_tokens=4096, learn_gpu_s=400), PROFILE, (8, 16))
    shown = found.table()
    assert set(shown["GPUs"]) == {8, 16}
    assert len(shown) < len(found.frame)
    least = found.frame.groupby("gpus")["step_s_high"].min()
    for row in shown.itertuples():
        ends = found.frame[(found.frame["gpus"] == row.GPUs) & (found.frame["gpus_train"] == row.train)].iloc[0]
        assert ends["step_s_low"] <= least[row.GPUs]
    assert "400 GPU-seconds" in str(found)
    assert found.frame["usd_low"].notna().all()


def test_ends_are_in_order_and_more_gpus_never_take_longer() -> None:
    frame = before_run(PlannedRun(100, 4096, 800, limit_tokens=8192), PROFILE, (2, 4, 8, 16, 64)).frame
    for name in ("step_s", "run_h", "gpu_hours", "usd"):
        assert (frame[f"{name}_low"] <= frame[f"{name}_high"]).all()
    assert frame["step_s_low"].is_monotonic_decreasing
    assert frame["step_s_high"].is_monotonic_decreasing
    assert frame["longest_share"].is_monotonic_increasing


def test_what_is_unknown_is_a_wider_range_and_is_said() -> None:
    known = before_run(PlannedRun(10, 512, 800, 4096, None, 100, 30), PROFILE, (8,))
    limited = before_run(PlannedRun(10, 512, 800, limit_tokens=8192), PROFILE, (8,))
    unknown = before_run(PlannedRun(10, 512, 800), PROFILE, (8,))
    assert limited.frame["step_s_low"].iloc[0] < known.frame["step_s_low"].iloc[0]
    assert limited.frame["step_s_high"].iloc[0] > known.frame["step_s_high"].iloc[0]
    assert all(not any(option in note for note in known.notes) for option in ("longest-tokens", "prompt-tokens", "other-s"))
    for option in ("longest-tokens", "prompt-tokens", "other-s"):
        assert any(option in note for note in unknown.notes)
    assert any("assumption" in note for note in unknown.notes)
    assert not any("assumption" in note for note in known.notes)


def test_the_longest_response_is_taken_as_spread_as_in_public_logs() -> None:
    low, high = PlannedRun(1, 512, 1000).longest
    drawn = np.random.default_rng(0)
    for spread, expected in zip((0.22, 0.77), (low, high), strict=True):
        longest = [np.exp(drawn.normal(-(spread**2) / 2, spread, 512)).max() for _ in range(2000)]
        assert expected == pytest.approx(1000 * np.median(longest), rel=0.03)
    assert PlannedRun(1, 512, 1000, limit_tokens=2500).longest == (low, 2500), "no response is longer than its limit"
    assert PlannedRun(1, 1, 1000).longest == (1000, 1000), "of one response the mean is the longest"


def test_the_first_line_says_by_how_much_the_longest_response_narrows_the_range() -> None:
    unknown = before_run(PlannedRun(10, 512, 800), PROFILE, (8, 16))
    assert "longest-tokens" in unknown.headline
    wide = unknown.frame["step_s_high"].iloc[0] / unknown.frame["step_s_low"].iloc[0]
    assert unknown.with_longest is not None
    assert 1 < unknown.with_longest < wide / 2
    middle = before_run(PlannedRun(10, 512, 800, longest_tokens=math.sqrt(math.prod(unknown.run.longest))), PROFILE, (8,))
    assert middle.frame["step_s_high"].iloc[0] / middle.frame["step_s_low"].iloc[0] == pytest.approx(unknown.with_longest)
    assert middle.with_longest is None
    assert "longest-tokens" not in middle.headline


def test_the_error_of_a_profile_that_was_measured_from_lines_is_in_the_range(tmp_path: Path) -> None:
    fit = fit_engine(read_lines(rollout_lines()), "log")
    stored = profile_of_engine(fit, None, None, name="mine", origin="a log", command="a command", date="2026-03-04")
    stored["engine_lines"]["p90_relative_error"] = 0.25
    path = save_profile(tmp_path / "mine.json", stored)
    found = before_run(PlannedRun(1, 64, 100, longest_tokens=400), path, (8,))
    assert any("25%" in note for note in found.notes)
    assert "usd_low" not in found.frame, "the kind is unknown, and so is its price"
    assert any("--usd-per-gpu-hour" in note for note in found.notes)
    assert "engine_lines" in read_profile(path)


def test_an_estimate_prints_itself() -> None:
    found = before_run(PlannedRun(100, 512, 800, longest_tokens=4096), PROFILE, (8, 16))
    text = str(found)
    assert isinstance(found, Estimate)
    for shown in (
        "100 steps of 512 responses",
        PROFILE,
        "GPU-hours",
        "USD",
        f"{usd_per_gpu_hour('h100'):g} USD",
        "more GPUs than 8",
    ):
        assert shown in text
    assert "<table" in found._repr_html_()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"mean_tokens": 0}, ("mean_tokens", "0")),
        ({"mean_tokens": float("nan")}, ("mean_tokens", "nan")),
        ({"longest_tokens": 100}, ("longest_tokens", "100", "800")),
        ({"limit_tokens": 100}, ("limit_tokens", "100", "800")),
        ({"prompt_tokens": -1}, ("prompt_tokens", "-1")),
        ({"learn_gpu_s": -1}, ("learn_gpu_s", "-1")),
        ({"learn_gpu_s": "400"}, ("learn_gpu_s", "400", "number")),
        ({"staleness": 0.5}, ("staleness", "0.5", "whole")),
        ({"staleness": True}, ("staleness", "True")),
    ],
)
def test_impossible_runs_are_refused(changes: dict[str, object], named: tuple[str, ...]) -> None:
    with refused(InputError, *named):
        PlannedRun(**{"steps": 1, "responses": 8, "mean_tokens": 800, **changes})  # type: ignore[arg-type]


def test_clusters_and_profiles_that_do_not_fit_are_refused() -> None:
    run = PlannedRun(1, 8, 800, longest_tokens=4096)
    with refused(InputError, "--gpus 1", TWO_GPUS, PROFILE):
        before_run(run, TWO_GPUS, (1,))
    with refused(ProfileError, "no-profile"):
        before_run(run, "no-profile")
    with refused(InputError, "usd_per_hour"):
        before_run(run, PROFILE, usd_per_hour=-1.0)
    with refused(InputError, "22,565", "h100-llama2-70b-tp2"):
        before_run(PlannedRun(1, 8, 800, longest_tokens=40_000), "h100-llama2-70b-tp2", (8,))


def estimated(*options: object, **described: object) -> Result:
    """``rlhfless report --estimate`` of a run of 100 steps of 512 responses."""
    run = {"steps": 100, "responses": 512, "mean-tokens": 800, **{k.replace("_", "-"): v for k, v in described.items()}}
    told = ",".join(f"{name}={value}" for name, value in run.items())
    return run_rlhfless("report", "--estimate", told, "--profile", PROFILE, *options)


def test_the_command_prints_a_table_and_json() -> None:
    table = estimated("--usd-per-gpu-hour", "2", longest_tokens=4096)
    assert table.exit_code == 0, table.output
    assert "GPU-hours" in table.output
    found = estimated("--format", "json", gpus="4+2")
    rows = json.loads(found.output)["clusters"]
    assert [row["gpus"] for row in rows] == [2, 4]
    assert rows[0]["step_s_low"] >= rows[1]["step_s_low"]
    assert rows[0]["step_s_high"] > rows[1]["step_s_high"]


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ({"gpus": "8+x"}, ("--estimate gpus is x", "a whole number")),
        ({"gpus": "0"}, ("--estimate gpus is 0", "at least 1")),
        ({"longest_tokens": 9}, ("9", "800")),
        ({"mean_tokens": -3}, ("--estimate mean-tokens is -3", "above 0")),
        ({"mean_tokens": ""}, ("mean-tokens", "NAME=VALUE")),
        ({"longest": 9}, ("longest is unknown", "longest-tokens")),
    ],
)
def test_the_command_refuses_in_one_line(typed: dict[str, object], named: tuple[str, ...]) -> None:
    refused_command(estimated(**typed), *named)


def test_an_estimate_needs_a_profile_and_no_log(tmp_path: Path) -> None:
    refused_command(run_rlhfless("report", "--estimate", "steps=1,responses=2,mean-tokens=3"), "--profile is missing")
    refused_command(estimated(tmp_path / "log.csv"), "log.csv", "--estimate")
    refused_command(run_rlhfless("report"), "LOG is missing", "--estimate")


def test_one_of_a_kind_has_a_singular() -> None:
    asked = before_run(PlannedRun(1, 2, 1.0, longest_tokens=8), "l40s-qwen2.5-3b-tp2", [2]).headline
    assert "1 step of 2 responses of about 1 token " in asked
    several = before_run(PlannedRun(2, 1, 300.0, longest_tokens=300), "l40s-qwen2.5-3b-tp2", [2]).headline
    assert "2 steps of 1 response of about 300 tokens " in several
