"""``rlhfless report --only what-ifs``: a table, JSON, and one sentence where the log or an option is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run_rlhfless
from error_messages import refused_command

GPUS = ("--gpus", "4", "--profile", "l40s-qwen2.5-3b-tp2", "--usd-per-gpu-hour", "2")


@pytest.fixture
def log(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    rows = [f"{step},p{p},{s},{rng.integers(5, 90)},{s % 2}" for step in range(2) for p in range(3) for s in range(2)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["step,prompt_id,sample,response_tokens,reward", *rows]))
    return str(path)


def test_the_table_names_every_way(log: str) -> None:
    result = run_rlhfless("report", log, "--only", "what-ifs", *GPUS, "--prepare-s", "1", "--learn-s", "4")
    assert result.exit_code == 0, result.output
    for name in ("as logged", "partial rollout", "asynchronous", "deferred dispatch", "dynamic sampling", "drafts"):
        assert name in result.output


def test_json_has_the_same_rows(log: str) -> None:
    result = run_rlhfless("report", log, "--only", "what-ifs", *GPUS, "--format", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["ways"][0]["way"] == "as logged"
    assert found["ways"][0]["cost_usd"] == pytest.approx(found["ways"][0]["gpu_seconds"] / 1800)
    assert "asynchronous" in found["left_out"]
    shown = {one["variant"]: one["time_s"] for one in found["knobs"] if one["shown"]}
    assert set(shown) == {"partial rollout", "over-sampling", "over-sampling, rest kept", "released in the tail"}
    assert shown == pytest.approx({one["way"]: one["time_s"] for one in found["ways"] if one["way"] in shown})


@pytest.mark.parametrize("wrong", [["--learn-s", "-1"], ["--dispatch", "random"], ["--learner-gpus", "-2"]])
def test_wrong_options_end_with_one_sentence(log: str, wrong: list[str]) -> None:
    result = run_rlhfless("report", log, "--only", "what-ifs", *GPUS, *wrong)
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1
    assert result.output.startswith("rlhfless: ")


VERL = (
    "(TaskRunner pid=1) step:1 - global_seqlen/mean:6400.0 - response_length/mean:150.0 - response_length/max:600.0 - "
    "response_length/min:9.0 - response_length/clip_ratio:0.0 - prompt_length/mean:50.0 - timing_s/gen:12.0 - "
    "timing_s/update_actor:10.0 - timing_s/step:22.0\n"
)
"""A line of verl's console, without the tokens of all GPUs together."""
SLIME = (
    "(RolloutManager pid=1) [2026-04-09 10:00:00] rollout.py:1 - perf 0: {'rollout/response_len/mean': 693.5, "
    "'rollout/response_len/max': 1024, 'rollout/response_len/min': 93, 'rollout/zero_std/count_0': 3, "
    "'rollout/zero_std/count_1': 1, 'rollout/truncated_ratio': 0.390625, 'perf/rollout_time': SECONDS}\n"
    "(MegatronTrainRayActor pid=2) [2026-04-09 10:01:30] train_metric_utils.py:1 - perf 0: {'perf/train_wait_time': SECONDS, "
    "'perf/train_time': 10.0}\n"
)
"""A step of slime's console: 64 responses, of which 25 were cut. The rewards of 4 groups are equal."""


def console(folder: Path, text: str) -> str:
    path = folder / "console.log"
    path.write_text(text)
    return str(path)


def what_ifs(log: str, *options: str) -> dict[str, Any]:
    result = run_rlhfless("report", log, "--only", "what-ifs", *options, "--format", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_responses_of_a_step_are_those_of_the_diagnosis(tmp_path: Path) -> None:
    """By verl's tokens of a GPU and the GPUs that were stated; by slime's shares."""
    for log, responses in ((console(tmp_path, VERL), 64), (console(tmp_path, SLIME.replace("SECONDS", "20.0")), 64)):
        said = json.loads(run_rlhfless("report", log, "--gpus", "2", "--format", "json").stdout)["numbers"]
        assert said["responses_per_step"]["low"] == responses
        own = what_ifs(log, "--gpus", "2")["ways"][0]
        assert (own["way"], own["learned_responses"]) == ("as logged", responses)
    text = run_rlhfless("report", log, "--gpus", "2", "--only", "what-ifs").stdout
    assert f"a step has {responses} responses, which the diagnosis derived" in text
    assert "the order in which prompts were assigned is unknown, because lengths are drawn" in text
    assert "verl" not in text, "the log is slime's"


def test_with_one_step_nothing_overlaps_and_partial_rollout_says_what_it_continues(tmp_path: Path) -> None:
    found = what_ifs(console(tmp_path, VERL), "--gpus", "4")
    ways = {one["way"]: one for one in found["ways"]}
    assert "asynchronous" not in ways
    assert "needs 2 steps, and the log has 1" in found["left_out"]["asynchronous"]
    for name in ("partial rollout", "over-sampling, rest kept"):
        assert "One step alone is simulated, several times in a row" in ways[name]["change"]
    assert "several times in a row" not in ways["over-sampling"]["change"]
    two = what_ifs(console(tmp_path, VERL + VERL.replace("step:1 ", "step:2 ")), "--gpus", "4")
    assert "asynchronous" in {one["way"] for one in two["ways"]}
    assert not any("several times in a row" in one["change"] for one in two["ways"])


def test_groups_without_a_signal_are_those_of_the_log(tmp_path: Path) -> None:
    """4 of 8 groups of 8 responses have equal rewards; how many groups there are is unknown without their size."""
    log = console(tmp_path, SLIME.replace("SECONDS", "20.0"))
    found = what_ifs(log, "--gpus", "2", "--samples-per-prompt", "8")
    change = {one["way"]: one["change"] for one in found["ways"]}["dynamic sampling"]
    assert "50% of its groups are such" in change
    assert "assumed" not in change
    assert "--samples-per-prompt N" in what_ifs(log, "--gpus", "2")["left_out"]["dynamic sampling"]


def test_a_slow_engine_has_no_what_ifs_as_it_has_no_simulated_page(tmp_path: Path) -> None:
    log = console(tmp_path, SLIME.replace("SECONDS", "400.0"))
    result = run_rlhfless("report", log, "--gpus", "2", "--only", "what-ifs")
    refused_command(result, "console.log", "The engine is slow", "No schedule is simulated", "--profile")
    page = run_rlhfless("report", log, "--gpus", "2", "--simulate", "-o", str(tmp_path / "page.html"))
    assert page.exit_code == 0, page.output
    assert "Simulated: No schedule is simulated, because the engine is slow" in page.stdout


def test_a_profile_of_other_hardware_is_warned_of_first(tmp_path: Path) -> None:
    log = console(tmp_path, VERL.replace("gen:12.0", "gen:0.5").replace("step:22.0", "step:10.5"))
    result = run_rlhfless("report", log, "--gpus", "2", "--only", "what-ifs")
    assert result.exit_code == 0, result.output
    before, _, _ = result.stdout.partition("Comparison of step 1")
    assert "Warning: your run is " in before
    assert "times as fast as profile l40s-qwen2.5-3b-tp2" in before
    near = run_rlhfless("report", console(tmp_path, VERL), "--gpus", "2", "--only", "what-ifs")
    assert "Warning: " not in near.stdout
