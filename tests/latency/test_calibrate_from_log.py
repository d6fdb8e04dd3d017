"""A profile from a log's times: the profile that a log was made with is found again, and logs without times are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import Result, run_rlhfless
from error_messages import refused, refused_command

from rlhfless.latency import ProfileError, load_profile, read_profile, save_profile
from rlhfless.latency.calibrate_from_log import (
    CalibrationFactors,
    LogCalibration,
    Times,
    calibrate,
    calibrated_profile,
    times_of,
)
from rlhfless.latency.held_out_errors import held_out
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import Recorder, read_trace
from solver.model.cluster import Cluster
from solver.model.latency import LatencyModel

BASE = "l40s-qwen2.5-3b-tp2"
SHARED = Path(__file__).parents[2].parent / "shared" / "data"
NONE = pd.DataFrame({"step": []})


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile whose iterations take 1.5 and whose KV cache takes 3 times what the base profile says."""
    found = LogCalibration("steps", CalibrationFactors(1.5, 3.0, 0.0), held_out([1.0, 1.0], [0, 1], lambda _: np.ones(2)), 1)
    made = calibrated_profile(read_profile(BASE), found, name="true", origin="o", command="c", date="2026-01-01")
    made["start_s"] = 0.0
    return save_profile(tmp_path_factory.mktemp("profiles") / "true.json", made)


@pytest.fixture(scope="module")
def log(truth: Path) -> pd.DataFrame:
    """Twelve steps of 40 prompts x 8 samples on four actors that are charged by it, with times."""
    rng = np.random.default_rng(0)
    rows = []
    for step in range(12):
        mean = rng.normal(4.5 + 0.12 * step, 0.5, 40)
        for p in range(40):
            lengths = np.clip(np.exp(mean[p] + rng.normal(0, 0.4, 8)), 2, 2000).astype(int)
            rows += [
                {"run": "r", "step": step, "epoch": step, "prompt_id": f"p{p}", "sample": s, "prompt_tokens": 200,
                 "response_tokens": int(n), "finish_reason": "stop"} for s, n in enumerate(lengths)
            ]  # fmt: skip
    return executed(rows, load_profile(truth, prefill="separate"))


def executed(rows: list[dict[str, object]], latency: LatencyModel) -> pd.DataFrame:
    """The rows with the times of four actors."""
    setting = SimulationConfig(Cluster(1, 8, 2), latency, max_response_tokens=2000, static_actors=4)
    return simulate(pd.DataFrame(rows), setting, ["static"]).traces["static"].rollouts


@pytest.mark.parametrize(("prefill", "kv_within"), [("separate", 0.07), ("mixed", 0.4)])  # KV is 6 % of the time
def test_times_of_responses_find_the_profile_again(log: pd.DataFrame, truth: Path, prefill: str, kv_within: float) -> None:
    if prefill == "mixed":
        bare = log[["run", "step", "epoch", "prompt_id", "sample", "prompt_tokens", "response_tokens", "finish_reason"]]
        log = executed(bare.to_dict("records"), load_profile(truth))
    found = calibrate(times_of(log, NONE, load_profile(BASE, prefill=prefill), 1, "log"))
    assert (found.what, found.steps) == ("responses", 12)
    assert found.factors.decode == pytest.approx(1.5, rel=0.07)
    assert found.factors.kv == pytest.approx(3.0, rel=kv_within)
    made = calibrated_profile(read_profile(BASE), found, name="found", origin="o", command="c", date="2026-01-01")
    latency, true = load_profile(save_profile(truth.with_name("found.json"), made)), load_profile(truth)
    size = np.array([8, 32, 80])
    for context in (250, 600):
        np.testing.assert_allclose(latency.iteration_s(size, size * context), true.iteration_s(size, size * context), rtol=0.08)
    assert np.median(found.checked.errors) < 0.05


def test_seconds_of_steps_find_the_profile_again(log: pd.DataFrame) -> None:
    lengths = log.drop(columns=["start_s", "end_s"])
    by_step = log.groupby("step").agg(begin=("start_s", "min"), end=("end_s", "max"))
    scalars = pd.DataFrame({"step": by_step.index, "generate_s": 0.8 + (by_step["end"] - by_step["begin"]).to_numpy()})
    found = calibrate(times_of(lengths, scalars, load_profile(BASE, prefill="separate"), 4, "log"))
    assert (found.what, found.steps) == ("steps", 12)
    assert found.factors.decode == pytest.approx(1.5, rel=0.15)
    assert found.factors.once_s == pytest.approx(0.8, abs=0.4)
    assert np.median(found.checked.errors) < 0.05
    made = calibrated_profile(read_profile(BASE), found, name="found", origin="o", command="c", date="2026-01-01")
    assert made["sync_s"] == found.factors.once_s


def test_scalars_alone_will_do_where_they_tell_number_mean_and_longest(log: pd.DataFrame) -> None:
    by_step = log.groupby("step")
    tokens = by_step["response_tokens"].agg(["mean", "max", "count"])
    seconds = (by_step["end_s"].max() - by_step["start_s"].min()).to_numpy()
    scalars = pd.DataFrame(
        {"step": tokens.index, "generate_s": seconds, "responses": tokens["count"].to_numpy(),
         "response_tokens_mean": tokens["mean"].to_numpy(), "response_tokens_max": tokens["max"].to_numpy(),
         "prompt_tokens_mean": 200.0}
    )  # fmt: skip
    found = calibrate(times_of(None, scalars, load_profile(BASE, prefill="separate"), 4, "log"))
    assert found.factors.decode == pytest.approx(1.5, rel=0.2)
    with refused(ProfileError):
        times_of(None, scalars[:7], load_profile(BASE, prefill="separate"), 4, "log")


def test_parts_that_a_log_does_not_tell_apart_are_scaled_alike() -> None:
    rng = np.random.default_rng(0)
    decode = rng.uniform(1, 2, 40)
    found = calibrate(Times("steps", 2 * decode * 1.1 * np.exp(rng.normal(0, 0.02, 40)), decode, 0.1 * decode, np.arange(40)))
    assert found.factors.kv == pytest.approx(found.factors.decode)


def test_stated_errors_are_of_steps_that_were_left_out_beside_a_constants() -> None:
    rng = np.random.default_rng(1)
    decode, kv = rng.uniform(1, 3, 12), rng.uniform(0.5, 2, 12)
    seconds = (2 * decode + 3 * kv + 0.5) * np.exp(rng.normal(0, 0.05, 12))
    found = calibrate(Times("steps", seconds, decode, kv, np.arange(12)))
    assert found.checked.how == "leave-one-out over 12 steps"
    for left in (0, 7):
        others = np.arange(12) != left
        assert found.checked.constant[left] == np.median(seconds[others])
        alone = calibrate(Times("steps", seconds[others], decode[others], kv[others], np.arange(11)))
        if alone.what_was_fitted == found.what_was_fitted:
            expected = alone.factors.decode * decode[left] + alone.factors.kv * kv[left] + alone.factors.once_s
            assert found.checked.predicted[left] == pytest.approx(expected)
    assert np.median(found.checked.errors) < np.median(found.checked.constant_errors)
    assert not found.by_constant


def test_a_constant_that_is_closer_than_any_fit_is_used_and_said() -> None:
    """Times that do not depend on what is decoded: a fit has smaller errors in its own sample only."""
    rng = np.random.default_rng(0)
    seconds = 40 * np.exp(rng.normal(0, 0.05, 10))
    decode, kv = rng.uniform(20, 40, 10), rng.uniform(5, 10, 10)
    found = calibrate(Times("steps", seconds, decode, kv, np.arange(10)))
    assert found.by_constant
    assert (found.factors.decode, found.factors.once_s) == (found.factors.kv, 0.0)
    assert found.factors.decode * np.median(decode + kv) == pytest.approx(np.median(seconds))
    made = calibrated_profile(read_profile(BASE), found, name="n", origin="o", command="c", date="d")["calibration"]
    assert made["by_constant"]
    assert made["constant"]["median_relative_error"] < made["median_relative_error"]
    assert made["errors_are_of"] == "leave-one-out over 10 steps"


def test_times_of_one_step_are_left_out_in_folds() -> None:
    found = held_out(np.arange(1.0, 101.0), np.zeros(100), lambda used: np.full(100, float(used.sum())))
    assert found.how == "5 folds over 100 times of one step"
    assert found.predicted.tolist() == [80.0] * 100
    alone = held_out([3.0], [0], lambda _: np.ones(1))
    assert np.isnan(alone.errors).all()
    assert not alone.constant_is_better


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, ("start_s", "end_s")),
        ({"step_s": 9.0}, ()),
        ({"generate_s": 9.0}, ()),
        ({"generate_s": 0.0, "responses": 8, "response_tokens_mean": 90.0, "response_tokens_max": 200.0}, ()),
    ],
)
def test_logs_without_enough_times_are_refused(columns: dict[str, float], message: tuple[str, ...]) -> None:
    with refused(ProfileError, *message):
        times_of(None, pd.DataFrame({"step": range(9), **columns}), load_profile(BASE), 1, "log")


def test_few_responses_are_refused(log: pd.DataFrame) -> None:
    with refused(ProfileError, "20", "50"):
        times_of(log[:20], NONE, load_profile(BASE), 1, "log")


# --- on the command line -----------------------------------------------------------------------------------------------------


def profile(*arguments: object) -> Result:
    return run_rlhfless("profile", *arguments)


def test_the_command_reads_verls_scalars_and_writes_a_profile_that_plans_take(log: pd.DataFrame, tmp_path: Path) -> None:
    lines = []
    for step, own in log.groupby("step"):
        data = {"timing_s/gen": float(own["end_s"].max() - own["start_s"].min()), "response_length/mean": 1.0}
        lines.append(json.dumps({"step": int(step), "data": data}))
    (tmp_path / "run.jsonl").write_text("\n".join(lines) + "\n")
    folder = tmp_path / "trace"
    plain = log.drop(columns=["start_s", "first_token_s", "end_s", "actor"])
    plain.to_csv(tmp_path / "lengths.csv", index=False)
    assert run_rlhfless("convert", str(tmp_path / "lengths.csv"), "-o", str(folder)).exit_code == 0
    assert run_rlhfless("convert", str(tmp_path / "run.jsonl"), "-o", str(folder)).exit_code == 0
    out = tmp_path / "ours.json"
    done = profile("--from-log", folder, "--base", BASE, "--actors", 4, "-o", out)
    assert done.exit_code == 0, done.output
    assert "12 times of steps of 12 steps" in done.output
    assert "relative error on held-out times (leave-one-out over 12 steps): median" in done.output
    assert "; of a constant: median" in done.output
    written = read_profile(out)
    assert written["calibration"]["steps"] == 12
    assert load_profile(out).base_s > 1.2 * load_profile(BASE).base_s
    planned = run_rlhfless("plan", str(folder), "--gpus", "8", "--gpus-per-actor", "2", "--profile", str(out))
    assert planned.exit_code == 0, planned.output


def test_a_frameworks_own_file_is_read_as_it_is(tmp_path: Path) -> None:
    """OpenRLHF logs number and mean of a step's responses and no longest: that is too little, imported before or not."""
    lines = [
        f"Global step {n}: {{'timing/generation': {9 + n}, 'rollout/num_samples': 64, 'rollout/response_length_mean': 90.0}}"
        for n in range(1, 10)
    ]
    (tmp_path / "console.log").write_text("\n".join(lines) + "\n")
    imported = tmp_path / "imported"
    assert run_rlhfless("convert", str(tmp_path / "console.log"), "-o", str(imported)).exit_code == 0
    for log in (tmp_path / "console.log", imported):
        refused_command(profile("--from-log", log, "--base", BASE, "-o", tmp_path / "x.json"), str(log), "0 steps")


def test_one_run_of_several_is_converted_first(log: pd.DataFrame, tmp_path: Path) -> None:
    slower = log.assign(run="slow", start_s=2 * log["start_s"], first_token_s=2 * log["first_token_s"], end_s=2 * log["end_s"])
    path, alone, out = tmp_path / "both.csv", tmp_path / "alone.csv", tmp_path / "ours.json"
    pd.concat([log.assign(run="fast"), slower]).to_csv(path, index=False)
    slower.to_csv(alone, index=False)
    assert profile("--from-log", alone, "--base", BASE, "-o", tmp_path / "alone.json").exit_code == 0
    refused_command(profile("--from-log", path, "--base", BASE, "-o", out), str(path), "fast, slow", "convert", "--run NAME")
    assert run_rlhfless("convert", path, "--run", "slow", "-o", tmp_path / "slow").exit_code == 0
    done = profile("--from-log", tmp_path / "slow", "--base", BASE, "-o", out)
    assert done.exit_code == 0, done.output
    assert read_profile(out)["calibration"] == read_profile(tmp_path / "alone.json")["calibration"]
    refused_command(run_rlhfless("convert", path, "--run", "other", "-o", tmp_path / "x"), str(path), "fast, slow", "other")


def test_spans_of_a_recording_are_times_of_its_steps(log: pd.DataFrame, tmp_path: Path) -> None:
    """Of the run that is named, and of generation alone."""
    with Recorder(tmp_path / "recorded") as recorder:
        for run, slower in (("ours", 1.0), ("other", 9.0)):
            for step, own in log.groupby("step"):
                took = {"decode": slower * float(own["end_s"].max() - own["start_s"].min()), "learn": 50.0}
                for phase, seconds in took.items():
                    start_s = 1000.0 * int(step) + (500.0 if phase == "learn" else 0.0)
                    recorder.append_span(run=run, step=step, holder="t", phase=phase, start_s=start_s, end_s=start_s + seconds)
                for row in own.itertuples():
                    names = ("step", "prompt_id", "sample", "prompt_tokens", "response_tokens")
                    recorder.append(run=run, **{name: getattr(row, name) for name in names})
    out = tmp_path / "ours.json"
    refused_command(
        profile("--from-log", tmp_path / "recorded", "--base", BASE, "--actors", 4, "-o", out), "2 runs", "convert", "--run"
    )
    assert run_rlhfless("convert", tmp_path / "recorded", "--run", "ours", "-o", tmp_path / "ours").exit_code == 0
    done = profile("--from-log", tmp_path / "ours", "--base", BASE, "--actors", 4, "-o", out)
    assert done.exit_code == 0, done.output
    assert "12 times of steps of 12 steps" in done.output
    assert read_profile(out)["calibration"]["decode"] == pytest.approx(1.5, rel=0.15)


@pytest.mark.parametrize(
    "option",
    [["--device", "cuda"], ["--model", "x"], ["--max-batch", 4], ["--contexts", "1,2"], ["--memory-gib", 1],
     ["--fast"]],
)  # fmt: skip
def test_what_says_how_to_measure_does_not_go_with_a_log(option: list[object], tmp_path: Path) -> None:
    refused_command(profile("--from-log", tmp_path, "--base", BASE, *option, "-o", tmp_path / "x.json"), "--from-log")


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    log = Path(__file__).parents[2] / "data" / "traces" / "arithmetic-grpo"
    for arguments, named in ((["--from-log", log], "--base"), (["--actors", 4], "--from-log")):
        refused_command(profile(*arguments, "-o", tmp_path / "x.json"), named)


def test_the_shipped_traces_own_times_find_its_profile_again() -> None:
    trace = read_trace(Path(__file__).parents[2] / "data" / "traces" / "arithmetic-grpo")
    found = calibrate(times_of(trace.rollouts, NONE, load_profile("cpu-tiny-qwen2"), 1, "trace"))
    assert found.factors.decode == pytest.approx(1.0, abs=0.1)
    assert np.median(found.checked.errors) < 0.1


def test_public_step_times_without_lengths_are_refused() -> None:
    path = SHARED / "rl-step-metrics" / "deepspeed-chat" / "opt1.3b_step_times.csv"
    if not path.exists():
        pytest.skip("the public step times are not beside this checkout")
    scalars = pd.read_csv(path)
    with refused(ProfileError):
        times_of(None, scalars, load_profile(BASE), 16, path.name)
