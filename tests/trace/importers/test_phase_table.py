"""Tables and lists of a step's phases, and of seconds without a unit, as people paste them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.trace import ImportedLog, TraceError, import_log
from rlhfless.trace.importers.phase_table import is_phase


def read(folder: Path, text: str, name: str = "pasted.md") -> ImportedLog:
    (folder / name).write_text(text, encoding="utf-8")
    return import_log(folder / name)


def one_step(log: ImportedLog) -> dict[str, Any]:
    """Return the standard seconds of a log of one step of one run."""
    assert len(log.scalars) == 1
    assert "run" not in log.scalars.columns
    times = ("step_s", "generate_s", "prepare_s", "learn_s", "sync_s", "wait_s")
    return {name: float(log.scalars[name].iloc[0]) for name in times if name in log.scalars.columns}


CELLS = ("gen", "train", "step", "total", "phase", "batch", "time (s)", "a tok/s", "b tok/s", "12", "3.5 s", "7%", "4/4",
         "GPUs", "1e999", "", "timing_s/step", "\u603b\u8ba1", "$2", "8 shared")  # fmt: skip
STEP = {"step_s": 200.0, "generate_s": 120.0, "learn_s": 60.0, "sync_s": 5.0}

SHARES = """| Phase | Time | % of step |
|---|---|---|
| **Generation (8 samples)** | **~120 s** | ~60% |
| Backward + optimizer | 60.0s | 30% |
| Weight sync (NCCL) | 5 s | 2.5% |
| **Total per step** | **~200 s (3.3 min)** | |
"""
UNIT_ABOVE = """| Phase | seconds | p95 seconds |
|---|---|---|
| rollout | 120 | 150 |
| update_actor | 60 | 61 |
| weight sync | 5 | 6 |
| step | 200 | 222 |
"""
MINUTES_ABOVE = """Phase      Time (min)
Rollout    2
Training   1
Refit      5 s
Total      200 s
"""
OWN_KEYS = """| metric | value |
|---|---|
| timing_s/gen | 120s (agent loop) |
| timing_s/update_actor | 60s |
| timing_s/update_weights | 5s (NCCL) |
| timing_s/step | 200s |
"""
OWN_LANGUAGE = """| \u9636\u6bb5 | \u65f6\u95f4 (s) | \u5360\u6bd4 |
|---|---|---|
| generation\uff08\u751f\u6210\uff09 | 120 | 60% |
| update_actor | 60 | 30% |
| update_weights | 5\uff082%\uff09 | 2% |
| \u603b\u8ba1 | 200 s/step | 100% |
"""
LISTED = """One step of ours, bsz=64, n=8:

- gen: 120 s (60%)
- update_actor: 60 s
- weight sync: 5s
- step: 200 s
"""
PLAIN = "rollout time: 120 s\ntrain time: 1 min\nweight sync: 5000 ms\ntotal step: 200 s\n8x A100\n"

COLUMNS = (
    "Mean of 20 steps:\n  rollout       120.0 s   60 %\n  train          60 s   30 %\n  refit   5 s  2.5 %\n  total   200 s\n"
)
BOLD = "- Rollout: **120 s**\n- Training: **60 s** (4 micro-batches)\n- Weight sync \u2248 5 s\n- Total: ~200 s/step\n"
ONE_LINE = "It takes so long:\ngen 120 s, update_actor 60 s, weight sync 5 s, step 200 s\n"


@pytest.mark.parametrize(
    "text", [COLUMNS, BOLD, ONE_LINE, SHARES, UNIT_ABOVE, MINUTES_ABOVE, OWN_KEYS, OWN_LANGUAGE, LISTED, PLAIN]
)
def test_rows_that_are_phases_are_one_step(tmp_path: Path, text: str) -> None:
    assert one_step(read(tmp_path, text)) == pytest.approx(STEP)


def test_a_phase_of_an_unknown_name_is_a_further_second_of_the_step(tmp_path: Path) -> None:
    log = read(tmp_path, SHARES.replace("| **Total", "| Frobnicate | 7 s | 3.5% |\n| **Total"))
    assert one_step(log) == pytest.approx(STEP)
    assert log.scalars["Frobnicate (s)"].tolist() == [7.0]


def test_a_phase_that_is_the_sum_of_others_is_not_counted_twice(tmp_path: Path) -> None:
    rows = "| gen | 120s |\n| log_prob | 20s |\n| update_actor | 50s |\n| train (all of it) | 70s |\n| step | 200s |\n"
    log = read(tmp_path, f"| metric | value |\n|---|---|\n{rows}")
    assert one_step(log) == pytest.approx({"step_s": 200.0, "generate_s": 120.0, "prepare_s": 20.0, "learn_s": 50.0})
    assert any("train (all of it)" in note for note in log.summary.notes)


def test_lists_of_several_steps(tmp_path: Path) -> None:
    text = "first:\ngen: 100 s\ntrain: 50 s\nstep: 155 s\n\nsecond:\ngen: 2 min\ntrain: 51 s\nstep: 176 s\n"
    log = read(tmp_path, text)
    assert log.scalars[["step", "generate_s", "learn_s", "step_s"]].values.tolist() == [[0, 100, 50, 155], [1, 120, 51, 176]]


def test_percentages_that_make_100_tell_the_step(tmp_path: Path) -> None:
    rows = "| Rollout | 2m 0s | 67% |\n| Actor training | 55 s | 31% |\n| Everything else | 5s | 3% |\n"
    log = read(tmp_path, f"| Phase | Time per step | Share |\n|---|---|---|\n{rows}")
    assert one_step(log) == pytest.approx({"step_s": 180.0, "generate_s": 120.0, "learn_s": 55.0})
    without = read(tmp_path, f"| Phase | Time | Share |\n|---|---|---|\n{rows}".replace("67%", "40%"))
    assert "step_s" not in without.scalars.columns
    assert without.scalars["generate_s"].tolist() == [120.0]


def test_phases_without_the_whole_step_are_no_runs(tmp_path: Path) -> None:
    rows = "| Pause generation | 5.0 | 5.5 |\n| Weight broadcast | 15.0 | 15.2 |\n| Trainer stall | 20.0 | 20.4 |\n"
    with refused(TraceError, "pasted.md"):
        read(tmp_path, f"| Wall time | Median seconds | p95 seconds |\n|---|---:|---:|\n{rows}")


def test_minutes_above_several_runs(tmp_path: Path) -> None:
    rows = "| gen | 2 | 1 | 50% |\n| train | 1 | 1 | 0% |\n| total | 4 | 3 | 25% |\n"
    log = read(tmp_path, f"| phase | before (min) | after (min) | saved (%) |\n|---|---|---|---|\n{rows}")
    assert log.scalars["step_s"].tolist() == [240, 180]
    assert log.scalars["generate_s"].tolist() == [120, 60]


def test_phases_of_several_runs_without_their_ratios(tmp_path: Path) -> None:
    rows = "| timing_s/gen | 120.0s | 90.0s | -25% | 3/12 |\n| timing_s/step | 200.0s | 160.0s | -20% | 5/12 |\n"
    log = read(tmp_path, f"| metric | old | new | delta | lower |\n|---|---|---|---|---|\n{rows}")
    assert log.scalars[["run", "generate_s", "step_s"]].values.tolist() == [["old", 120.0, 200.0], ["new", 90.0, 160.0]]
    assert "run_s" not in log.scalars.columns


BARE_STEPS = """| Step | Total | LogProb | Train | Gen (exposed) |
|---|---|---|---|---|
| 1 | 200.5 | ~20 | ~60 | **~110** |
| 2 | 210.5 | ~21 | ~61 | ~118 |
"""
BARE_RUNS = """| cluster | gen (share) | update_actor | step |
|---|---|---|---|
| 1\u00d7H100 (one node) | 50.5 (25 %) | 100.5 | 200.5 |
| 4\u00d7H100 | 40.5 | 30.5 | 90.5 |
"""


def test_seconds_without_a_unit_say_that_they_were_taken_so(tmp_path: Path) -> None:
    log = read(tmp_path, BARE_STEPS)
    assert log.scalars["step"].tolist() == [1, 2]
    assert log.scalars[["step_s", "prepare_s", "learn_s", "wait_s"]].values.tolist() == [
        [200.5, 20, 60, 110], [210.5, 21, 61, 118]
    ]  # fmt: skip
    assert any("without a unit" in note and "LogProb" in note for note in log.summary.notes)


def test_a_column_step_that_holds_the_other_seconds_is_the_time_of_the_step(tmp_path: Path) -> None:
    log = read(tmp_path, BARE_RUNS)
    assert log.scalars["run"].tolist() == ["1\u00d7H100 (one node)", "4\u00d7H100"]
    assert log.scalars[["gpus", "step_s", "generate_s", "learn_s"]].values.tolist() == [
        [1, 200.5, 50.5, 100.5], [4, 90.5, 40.5, 30.5]
    ]  # fmt: skip


def test_seconds_of_rewards_beside_phases_alone(tmp_path: Path) -> None:
    rows = "| a | 210 | 14 | 95 | 330 |\n| b | 180 | 14 | 95 | 300 |\n"
    text = f"| setting | Rollout | Reward | Train | Total |\n|---|---|---|---|---|\n{rows}"
    assert read(tmp_path, text).scalars["prepare_s"].tolist() == [14, 14]
    low = read(tmp_path, text.replace("14", "0.4"))
    assert low.scalars["reward_mean"].tolist() == [0.4, 0.4]


def test_a_unit_in_some_rows_does_not_hide_the_others(tmp_path: Path) -> None:
    rows = "| step | **20.5 s** | 30.5 s |\n| update_actor | 10 | 12 |\n| gen | 6\uff0830%\uff09 | 7 |\n"
    log = read(tmp_path, f"| each step | a | b |\n|---|---|---|\n{rows}")
    assert log.scalars[["run", "step_s", "learn_s", "generate_s"]].values.tolist() == [["a", 20.5, 10, 6], ["b", 30.5, 12, 7]]


@pytest.mark.parametrize(
    "columns",
    [
        "step,step_s,rollout,train\n1,10,64,512\n2,11,64,512\n",  # longer than the step: counts
        "step,step_s,reward,policy\n1,10,0.5,0.1\n2,11,0.6,0.2\n",
    ],
)
def test_numbers_that_are_no_seconds_of_the_step_are_not_taken(tmp_path: Path, columns: str) -> None:
    log = read(tmp_path, columns, "steps.csv")
    assert {"generate_s", "learn_s", "prepare_s"}.isdisjoint(log.scalars.columns)


def test_counts_without_the_time_of_a_step_are_no_seconds(tmp_path: Path) -> None:
    with refused(TraceError, "pasted.md"):
        read(tmp_path, "| run | rollout | train |\n|---|---|---|\n| a | 64 | 512 |\n| b | 32 | 256 |\n")


@pytest.mark.parametrize("cell", ["8 shared", "8"])
def test_gpus_of_both_sides_in_one_column(tmp_path: Path, cell: str) -> None:
    rows = f"| GPUs (train / gen) | {cell} | 2 / 6 |\n| Training wall time | 10 min | 9 min |\n"
    rows += "| Step time, median | 12 s | 10 s |\n"
    log = read(tmp_path, f"| metric | colo | apart |\n|---|---|---|\n{rows}").scalars.set_index("run")
    assert log.loc["colo", "gpus"] == 8
    assert (log.loc["apart", "gpus_train"], log.loc["apart", "gpus_generate"]) == (2, 6)
    assert log["step_s"].tolist() == [12, 10]
    assert "learn_s" not in log.columns, "the wall time of all of training is no phase of a step"


def test_a_cell_of_a_text_that_is_no_number_is_unknown(tmp_path: Path) -> None:
    log = read(tmp_path, "| run | rollout GPUs | step (s) |\n|---|---|---|\n| a | some of 8 | 20 |\n| b | many | 10 |\n")
    assert log.scalars["step_s"].tolist() == [20, 10]
    assert "gpus_generate" not in log.scalars.columns
    assert any("some of 8" in note for note in log.summary.notes)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from(CELLS), min_size=1, max_size=4), min_size=2, max_size=6))
def test_any_table_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]) -> None:
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    try:
        log = read(tmp_path_factory.mktemp("any"), text + "\n")
    except TraceError:
        return
    assert len(log.scalars)


def test_names_of_runs_are_no_phases() -> None:
    assert not any(map(is_phase, ("TP=2", "async", "server (7 train + 1 vLLM)", "value", "Per-sample requests", "", "8 GPUs")))


def test_runs_called_after_how_they_work_stay_runs(tmp_path: Path) -> None:
    log = read(tmp_path, "| mode | step time | rollout time |\n|---|---|---|\n| sync | 20 s | 9 s |\n| async | 10 s | 8 s |\n")
    assert log.scalars["run"].tolist() == ["sync", "async"]
