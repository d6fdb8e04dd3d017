"""What wandb, trackio and TensorBoard export as rows, recognised by its content."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from error_messages import refused

from rlhfless.diagnosis import diagnose
from rlhfless.trace import ImportedLog, TraceError, import_log
from rlhfless.trace.importers import recognise

TRL = [
    {
        "train/global_step": step, "train/step_time": 90.0 + step, "train/completions/mean_length": 400.0 + step,
        "train/completions/max_length": 1024.0, "train/completions/clipped_ratio": 0.125, "train/frac_reward_zero_std": 0.5,
        "train/num_tokens": 10_000.0 * step,
    }
    for step in (1, 2, 3)
]  # fmt: skip
VERL = [{"timing_s/gen": 60.0 + step, "timing_s/step": 100.0, "timing_s/update_actor": 30.0} for step in (0, 1)]


def rows_of_wandb(metrics: list[dict[str, float]]) -> list[dict[str, Any]]:
    return [{"_step": at, "_runtime": 100.0 * at, "_timestamp": 1.7e9, **row} for at, row in enumerate(metrics)]


def rows_of_trackio(metrics: list[dict[str, float]], run: str) -> list[dict[str, Any]]:
    own = {"id": 1, "timestamp": "2026-01-01T00:00:00", "run_name": run}
    return [{**own, "step": at, **row} for at, row in enumerate(metrics)]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    elif path.suffix == ".csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def column(log: ImportedLog, name: str) -> list[float]:
    return list(log.scalars[name].tolist())


@pytest.mark.parametrize("name", ["h.jsonl", "h.jsonl.gz", "h.json", "h.csv", "h.parquet"])
@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_rows_of_trl_have_its_steps(name: str, tracker: str, tmp_path: Path) -> None:
    rows = rows_of_wandb(TRL) if tracker == "wandb" else rows_of_trackio(TRL, "fuzzy-cat")
    log = import_log(write(tmp_path / name, rows))
    assert (log.format.name, log.framework, log.rollouts) == ("tracker", "trl", None)
    assert (column(log, "step"), column(log, "step_s")) == ([1, 2, 3], [91.0, 92.0, 93.0])
    assert column(log, "response_tokens_mean") == [401.0, 402.0, 403.0]
    found = diagnose(tmp_path / name)
    assert (found.numbers["cut_share"].value, found.numbers["no_signal_share"].value) == (0.125, 0.5)


def test_rows_that_repeat_a_generation_are_one(tmp_path: Path) -> None:
    """TRL logs an entry per optimizer step, and its count of tokens stands still where nothing was generated."""
    again = [{**row, "train/global_step": 2 * at + more} for at, row in enumerate(TRL) for more in (1, 2)]
    log = import_log(write(tmp_path / "h.jsonl", rows_of_wandb(again)))
    assert column(log, "step") == [1, 3, 5]
    assert column(log, "step_s") == [182.0, 184.0, 186.0]


def test_rows_without_the_number_of_a_step_are_of_no_step(tmp_path: Path) -> None:
    """wandb's own step counts calls, and TRL's counts steps."""
    rows = [row for entry in TRL for row in ({"eval/reward": 1.0, "train/step_time": 7.0}, entry)]
    log = import_log(write(tmp_path / "h.jsonl", [*rows_of_wandb(rows), {"_step": 99, "train_runtime": 7200.0}]))
    assert (column(log, "step"), column(log, "step_s")) == ([1, 2, 3], [91.0, 92.0, 93.0])
    assert log.facts["run_s"] == 7200


def test_one_step_may_have_several_rows_with_few_metrics_each(tmp_path: Path) -> None:
    rows = [
        {"_step": 1, "_runtime": 9.0}, {"_step": 1, "timing_s/gen": 60.0, "actor/lr": None},
        {"_step": 1, "timing_s/step": 100.0},
        {"_step": 2, "timing_s/gen": 61.0, "timing_s/testing": 20.0, "timing_s/step": 130.0},
    ]  # fmt: skip
    log = import_log(write(tmp_path / "history.jsonl", rows))
    assert (log.framework, column(log, "step"), column(log, "generate_s")) == ("verl", [1, 2], [60.0, 61.0])
    assert diagnose(tmp_path / "history.jsonl").numbers["validation_s"].value == 20.0, "seconds beside the phases are kept"


def test_calls_of_trls_profile_are_added_up(tmp_path: Path) -> None:
    call = "profiling/Time taken: GRPOTrainer."
    rows = []
    for step in (1, 2):
        rows += [{call + "vLLM.generate": 40.0}, {call + "_calculate_rewards": 2.0}, {call + "_prepare_inputs": 55.0}]
        rows += [{"train/global_step": step, "train/step_time": 90.0, "train/completions/mean_length": 300.0}]
    log = import_log(write(tmp_path / "history.jsonl", rows_of_wandb(rows)))
    assert (column(log, "generate_s"), column(log, "learn_s")) == ([40.0, 40.0], [35.0, 35.0])


def test_the_summary_of_wandb_is_its_last_step_and_the_whole_run(tmp_path: Path) -> None:
    (tmp_path / "wandb-summary.json").write_text(
        json.dumps({**rows_of_wandb(TRL)[-1], "_wandb": {"runtime": 310}, "train_runtime": 7200.0, "completions": {"a": 1}})
    )
    found = diagnose(tmp_path / "wandb-summary.json")
    assert (found.framework, found.numbers["run_hours"].value, found.numbers["step_s"].value) == ("trl", 2.0, 93.0)


def test_runs_of_a_project_are_told_apart(tmp_path: Path) -> None:
    rows = rows_of_trackio(VERL, "slow") + rows_of_trackio([{**row, "timing_s/step": 80.0} for row in VERL], "fast")
    log = import_log(write(tmp_path / "project.parquet", rows))
    assert (column(log, "run"), column(log, "step_s")) == (["slow", "slow", "fast", "fast"], [100.0, 100.0, 80.0, 80.0])


def test_wandbs_table_of_runs_has_a_row_per_run(tmp_path: Path) -> None:
    rows = [{"Name": name, "State": "finished", "Runtime": 310, **TRL[at]} for name, at in (("a", 2), ("b", 2), ("c", 0))]
    log = import_log(write(tmp_path / "runs.csv", rows))
    assert (column(log, "run"), column(log, "step_s")) == (["a", "b", "c"], [93.0, 93.0, 91.0])


def panel(path: Path, *columns: str) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["Step", *columns])
        out.writerows([step, *[100.0 * (at + 1) + step for at in range(len(columns))]] for step in (1, 2))
    return path


def test_a_panel_of_wandbs_page_is_one_metric_of_a_run_or_several(tmp_path: Path) -> None:
    ends = ("", "__MIN", "__MAX")
    log = import_log(panel(tmp_path / "one.csv", *[f"grpo - 7b - train/step_time{end}" for end in ends]))
    assert (log.framework, column(log, "step"), column(log, "step_s")) == ("trl", [1, 2], [101.0, 102.0])
    log = import_log(panel(tmp_path / "two.csv", *[f"{run} - timing_s/step{end}" for run in "ab" for end in ends]))
    assert (column(log, "run"), column(log, "step_s")) == (["a", "a", "b", "b"], [101.0, 102.0, 401.0, 402.0])


def scalar(path: Path, first: float) -> Path:
    path.write_text("Wall time,Step,Value\n" + "".join(f"{1.7e9 + s},{s},{first + s}\n" for s in (1, 2)), encoding="utf-8")
    return path


def test_the_name_of_a_tensorboard_csv_tells_its_metric(tmp_path: Path) -> None:
    log = import_log(scalar(tmp_path / "run-.-tag-timing_s_step.csv", 100.0))
    assert (log.framework, column(log, "step"), column(log, "step_s")) == ("verl", [1, 2], [101.0, 102.0])
    scalar(tmp_path / "run-.-tag-timing_s_gen.csv", 60.0)
    scalar(tmp_path / "run-.-tag-actor_lr.csv", 0.0)
    both = import_log(tmp_path)
    assert (column(both, "step_s"), column(both, "generate_s")) == ([101.0, 102.0], [61.0, 62.0])
    assert any("actor_lr" in note for note in both.summary.notes)


@pytest.mark.parametrize("name", ["scalars.csv", "run-.-tag-actor_lr.csv"])
def test_a_tensorboard_csv_without_a_known_metric_is_refused_with_what_is_needed(name: str, tmp_path: Path) -> None:
    with refused(TraceError, name, "run-.-tag-timing_s_step.csv", "events.out.tfevents"):
        import_log(scalar(tmp_path / name, 1.0))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", '{"_step": 3, "loss": 0.5}'), ("rows.jsonl", '{"_step": 3, "train/loss": 0.5}\n'),
        ("a.json", '{"step": 1}'), ("b.json", "[]"), ("c.json", "not json"), ("table.csv", "step,prompt,completion\n1,a,b\n"),
        ("panel.csv", "Step,a - train/loss,a - train/loss__MIN,a - train/loss__MAX\n1,2,2,2\n"),
    ],
)  # fmt: skip
def test_rows_without_a_known_metric_are_none(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    try:
        assert recognise(tmp_path / name).name != "tracker"
    except TraceError as error:
        assert name in str(error)  # noqa: PT017 (a refusal names the file)


@pytest.mark.parametrize("cut", [10, 60, 200])
def test_a_file_that_is_cut_is_read_up_to_there_or_refused(cut: int, tmp_path: Path) -> None:
    whole = write(tmp_path / "h.jsonl", rows_of_wandb(TRL)).read_bytes()
    for name, content in (("cut.jsonl", whole[:-cut]), ("cut.json", b"[" + whole[:-cut].replace(b"\n", b","))):
        (tmp_path / name).write_bytes(content)
        try:
            assert len(import_log(tmp_path / name).scalars) < 3
        except TraceError as error:
            assert name in str(error)  # noqa: PT017 (one sentence that names the file)


def test_values_that_are_no_finite_numbers_are_unknown(tmp_path: Path) -> None:
    rows = [
        {"_step": 1, "timing_s/gen": "60.5", "timing_s/step": 100.0},
        {"_step": 2, "timing_s/gen": "NaN", "timing_s/step": 101.0},
        {"_step": 3, "timing_s/gen": [1], "timing_s/step": float("inf")}, {"_step": -4, "timing_s/gen": 1.0},
    ]  # fmt: skip
    log = import_log(write(tmp_path / "h.jsonl", rows))
    assert (column(log, "step"), log.scalars["generate_s"].fillna(0).tolist()) == ([1, 2], [60.5, 0.0])
