"""Tables whose rows are steps, runs or layouts of GPUs are scalars, and never responses."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import run_rlhfless
from error_messages import refused, refused_command
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.trace import (
    ImportedLog,
    ImportOptions,
    LogWithoutResponses,
    OpenedLog,
    Trace,
    TraceError,
    import_log,
    open_log,
    read_scalars,
)
from rlhfless.trace.importers import recognise, step_table
from rlhfless.trace.importers.scalars import scalars_frame
from rlhfless.trace.importers.step_table import understood

HEADINGS = "wait_for_generation_buffer", "step", "policy_train", "fwd_logprobs"
ASYNCHRONOUS = f"""run,gpus_generate,gpus_train,step,{",".join(f"timing/{name}" for name in HEADINGS)}
large,24,24,3,0.0,1500,900,240
half,12,12,3,0.0003,,,
starved,,,7,90,100,,
"""


def table(folder: Path, text: str, name: str = "log.csv") -> Path:
    """Write a file of text."""
    path = folder / name
    path.write_text(text)
    return path


def read(folder: Path, text: str, name: str = "log.csv") -> ImportedLog:
    """Import a file of this text."""
    return import_log(table(folder, text, name))


@pytest.mark.parametrize(
    ("name", "means", "factor"),
    [
        ("Step time (ms)", "step_s", 1e-3), ("seconds_per_step", "step_s", 1), ("s/it", "step_s", 1),
        ("s/step", "step_s", 1), ("step (s)", "step_s", 1),
        ("steps", "steps_done", 1), ("rollout (s)", "generate_s", 1),
        ("rollouts", "responses", 1), ("num_samples", "items", 1),
        ("output tok/s", "tokens_per_s", 1), ("tokens/s/GPU", "tokens_per_gpu_s", 1),
        ("Task GPU-hours", "gpu_hours", 1), ("usd_per_gpu_hour", "usd_per_gpu_hour", 1),
        ("$/GPU-hr", "usd_per_gpu_hour", 1), ("samples_per_s", "items_per_s", 1), ("samples/s", "items_per_s", 1),
        ("batch size", "batch", 1), ("Acceptance length", "tokens_per_pass", 1), ("e2e_s", "step_s", 1),
        ("timing/fwd_logprobs", "prepare_s", 1), ("update_actor_seconds", "learn_s", 1), ("train_hours", "learn_s", 3600),
        ("median generation (s)", "generate_s", 1), ("rolloutTime", "generate_s", 1), ("exposed_generation_s", "wait_s", 1),
        ("update_weights_s", "sync_s", 1), ("clipped_ratio", "truncation_rate", 1),
        ("mean_length", "response_tokens_mean", 1),
        ("avg_response_len", "response_tokens_mean", 1),
        ("prompt_length/mean", "prompt_tokens_mean", 1), ("longest_tokens", "response_tokens_max", 1),
        ("rollout GPUs", "gpus_generate", 1),
        ("train_gpus", "gpus_train", 1), ("n_gpus", "gpus", 1), ("tokens_per_sec", "tokens_per_s", 1),
        ("system/step", "step", 1),
        ("length/cap_hit_rate", "truncation_rate", 1), ("layout", "run", 1), ("slowest_request_s", "request_s_max", 1),
    ],
)  # fmt: skip
def test_names_that_people_give_to_columns(name: str, means: str, factor: float) -> None:
    column = understood(name)
    assert column is not None
    assert (column.means, column.factor) == (means, pytest.approx(factor))


@pytest.mark.parametrize(
    "name",
    ["tokens", "time", "per_hour", "timestamp", "latency_p95_s", "ms_per_token", "usd_per_hour",
     "ttft_ms", "prompt tok/s", "total tokens/s", "policy/clip_ratio", "median_length", "eval_s",
     "mean_terminated_length", ""],
)  # fmt: skip
def test_names_that_mean_something_else_are_not_taken(name: str) -> None:
    assert understood(name) is None


def test_a_table_of_steps_of_several_runs(tmp_path: Path) -> None:
    log = read(tmp_path, ASYNCHRONOUS)
    assert log.rollouts is None
    assert log.scalars["run"].tolist() == ["large", "half", "starved"]
    assert log.scalars["step"].tolist() == [3, 3, 7]
    large, half, starved = log.scalars.to_dict("records")
    assert (large["wait_s"], large["step_s"], large["learn_s"], large["prepare_s"]) == (0.0, 1500.0, 900.0, 240.0)
    assert (half["wait_s"], math.isnan(half["step_s"])) == (0.0003, True), "a blank cell is unknown, not zero"
    assert (starved["wait_s"], math.isnan(starved["gpus_generate"])) == (90.0, True)
    assert any("large, half, starved" in note for note in log.summary.notes)


def test_the_framework_is_known_by_its_own_names(tmp_path: Path) -> None:
    assert read(tmp_path, ASYNCHRONOUS).framework == "skyrl"
    verl = read(tmp_path, "step,timing_s/step,timing_s/gen,timing_s/ref,timing_s/old_log_prob\n1,100,60,4,5\n")
    assert verl.framework == "verl"
    assert verl.scalars.loc[0, ["step_s", "generate_s", "prepare_s"]].tolist() == [100, 60, 9]
    assert read(tmp_path, "step,step_time,reward\n1,100,0.5\n").framework == "", "anybody writes these"


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "jsonl", "jsonl.gz", "parquet"])
def test_every_format_of_tables_says_the_same(tmp_path: Path, suffix: str) -> None:
    frame = pd.DataFrame({"step": [1, 2], "step_time": [10.0, 12.0], "mean_length": [100.0, np.nan]})
    path = tmp_path / f"log.{suffix}"
    if suffix == "parquet":
        frame.to_parquet(path)
    elif suffix.startswith("csv"):
        frame.to_csv(path, index=False)
    else:
        frame.to_json(path, orient="records", lines=True)
    log = import_log(path)
    assert log.rollouts is None
    assert log.scalars["step_s"].tolist() == [10.0, 12.0]
    assert log.scalars["response_tokens_mean"].tolist()[0] == 100.0
    assert math.isnan(log.scalars["response_tokens_mean"].tolist()[1])


def test_a_table_of_layouts_names_them_by_their_gpus(tmp_path: Path) -> None:
    log = read(tmp_path, "nodes,gpus_per_node,steps,hours\n1,8,100,10\n2,8,100,6\n")
    assert log.scalars["run"].tolist() == ["8 GPUs", "16 GPUs"]
    assert log.scalars["run_s"].tolist() == [36_000.0, 21_600.0]
    assert log.scalars["steps_done"].tolist() == [100.0, 100.0]
    sides = read(tmp_path, "gen_gpus,train_gpus,step_s\n4,4,100\n6,2,80\n")
    assert sides.scalars["run"].tolist() == ["4 + 4 GPUs", "6 + 2 GPUs"]


def test_mean_longest_and_seconds_of_steps(tmp_path: Path) -> None:
    log = read(tmp_path, "step,mean,longest,seconds\n0,500,2000,60\n1,600,2048,61.5\n")
    assert log.scalars[["response_tokens_mean", "response_tokens_max", "step_s"]].to_numpy().tolist() == [
        [500.0, 2000.0, 60.0], [600.0, 2048.0, 61.5],
    ]  # fmt: skip


def test_statistics_of_training_make_a_length_a_mean(tmp_path: Path) -> None:
    log = read(tmp_path, "step,loss,completion_length,reward\n1,0.1,800,0.4\n2,0.1,820,0.5\n")
    assert log.rollouts is None
    assert log.scalars["response_tokens_mean"].tolist() == [800.0, 820.0]


@pytest.mark.parametrize(
    "columns",
    ["prompt,completion_length,step_time", "completion_length,generate_s", "question,step_time,loss", "response,step_s"],
)
def test_a_table_with_responses_or_prompts_is_none_of_steps(tmp_path: Path, columns: str) -> None:
    path = table(tmp_path, f"step,{columns}\n1{',1' * len(columns.split(','))}\n")
    assert recognise(path).name == "table"
    with refused(TraceError, "prompt_id", "missing"):
        import_log(path)


@pytest.mark.parametrize(
    "columns",
    [
        "run,step,name,time_s,holder",
        "task_id,rank,generate_s,reward_s",
        "GPU Type,GPUs,Per-Hour,Per-GPU",
        "layer,tokens,time_us",
    ],
)
def test_tables_of_other_things_are_none_of_steps(tmp_path: Path, columns: str) -> None:
    path = table(tmp_path, f"{columns}\n1{',1' * (len(columns.split(',')) - 1)}\n")
    assert recognise(path).name == "table"


def test_no_mapping_is_proposed_that_makes_responses_of_steps(tmp_path: Path) -> None:
    path = table(tmp_path, "step,completion_length,generate_s\n1,800,30\n2,820,31\n")
    with refused(TraceError, "generate_s", "steps or runs") as refusal:
        import_log(path)
    assert "response_tokens=completion_length" not in str(refusal.value)
    with refused(TraceError, "timing/step", "steps or runs") as refusal:
        import_log(table(tmp_path, ASYNCHRONOUS, "c.csv"), framework="table")
    assert "with --map prompt_id" not in str(refusal.value)
    with refused(TraceError, "--map", "--from table"):
        import_log(table(tmp_path, "step,step_s\n1,3\n", "b.csv"), ImportOptions(mapping={"response_tokens": "step_s"}))


def test_of_several_runs_one_is_chosen(tmp_path: Path) -> None:
    log = read(tmp_path, ASYNCHRONOUS)
    one = log.of_run("starved").scalars
    assert one[["step", "wait_s", "step_s"]].to_numpy().tolist() == [[7, 90.0, 100.0]]
    assert "run" not in one.columns
    assert "gpus_generate" not in one.columns, "it is unknown in this run"
    with refused(TraceError, "absent", "large", "half", "starved"):
        log.of_run("absent")
    with refused(TraceError, "--run", "does not name"):
        read(tmp_path, "step,step_s\n1,3\n").of_run("a")
    assert log.of_run(None) is log


def test_responses_and_scalars_of_a_run_are_chosen_together() -> None:
    rows = [
        {"run": run, "step": 0, "prompt_id": "p", "sample": at, "response_tokens": 9} for at, run in enumerate(("a", "b", "b"))
    ]
    scalars, _ = scalars_frame([{"run": run, "step": 0, "step_s": step_s} for run, step_s in (("a", 3.0), ("b", 4.0))])
    opened = OpenedLog(Trace(pd.DataFrame(rows)), scalars, "table").of_run("b")
    assert len(opened.trace.rollouts) == 2
    assert opened.scalars.to_dict("records") == [{"step": 0, "step_s": 4.0}]


def test_commands_of_one_run_ask_for_it(tmp_path: Path) -> None:
    path = table(tmp_path, "run,step,mean_length,longest_length,step_s,responses\n" + "".join(
        f"{run},{step},100,400,30,64\n" for run in ("a", "b") for step in (1, 2)
    ))  # fmt: skip
    options = ["profile", "--from-log", str(path), "--base", "qwen3-8b-h100", "-o", str(tmp_path / "p.json")]
    refused_command(run_rlhfless(*options), "2 runs", "a, b", "--run")
    simulated = ["report", str(path), "--simulate", "--gpus", "8", "-o", str(tmp_path / "r.html")]
    refused_command(run_rlhfless(*simulated), "2 runs", "a, b", "--run")
    said = run_rlhfless("report", str(path))
    assert said.exit_code == 0, said.output
    assert "Run a" in said.stdout
    assert "Run b" in said.stdout
    with refused(LogWithoutResponses, "no responses"):
        open_log(path)


def test_runs_are_stored_and_read_again(tmp_path: Path) -> None:
    log = read(tmp_path, ASYNCHRONOUS)
    folder = log.save(tmp_path / "saved")
    pd.testing.assert_frame_equal(read_scalars(folder), log.scalars)
    again = import_log(folder)
    pd.testing.assert_frame_equal(again.scalars, log.scalars)
    further = read(tmp_path, "run,step,sync_s,step_s\nlarge,3,50,1500\nstarved,8,2,99\n", "further.csv")
    both = read_scalars(further.save(folder))
    assert both["run"].tolist() == ["half", "large", "starved", "starved"]
    assert both.set_index(["run", "step"]).loc[("large", 3), ["sync_s", "learn_s"]].tolist() == [50.0, 900.0]
    without = read(tmp_path, "step,step_s,reward\n1,3,1\n", "without.csv")
    with refused(TraceError, "names its runs"):
        without.save(folder)


def test_a_step_again_and_steps_out_of_order(tmp_path: Path) -> None:
    log = read(tmp_path, "run,step,step_s\na,2,20\nb,1,5\na,1,10\na,2,22\n")
    assert log.scalars.to_dict("list") == {"run": ["a", "a", "b"], "step": [1, 2, 1], "step_s": [10.0, 22.0, 5.0]}
    assert any("logged twice" in note for note in log.summary.notes)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ("1,abc\n", ("row 1", "step_s", "abc")), ("1,3\n-2,4\n", ("row 2", "-2")), ("1.5,3\n", ("row 1", "1.5")),
    ],
)  # fmt: skip
def test_a_cell_that_is_no_number_is_named(tmp_path: Path, rows: str, named: tuple[str, ...]) -> None:
    with refused(TraceError, *named):
        read(tmp_path, f"step,step_s\n{rows}")


def test_blank_infinite_and_united_cells(tmp_path: Path) -> None:
    log = read(tmp_path, "step,step_s,learn_s,gen_ms,cut_rate\n1,12.5s,n/a,2s,46%\n2,inf,-,,\n3,300ms,4,1500,0.5\n")
    assert log.scalars["generate_s"].dropna().tolist() == [2.0, 1.5], "a cell's own unit comes first"
    assert log.scalars["truncation_rate"].dropna().tolist() == [0.46, 0.5]
    with refused(TraceError, "row 1", "learn_s", "5%"):
        read(tmp_path, "step,step_s,learn_s\n1,3,5%\n")
    assert log.scalars["step_s"].dropna().tolist() == [12.5, 0.3]
    assert log.scalars["learn_s"].dropna().tolist() == [4.0]
    assert any("infinite" in note and "step_s" in note for note in log.summary.notes)


def test_more_rows_than_any_run_has_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_table, "MOST_ROWS", 2)
    for name, text in (("a.csv", "step,step_s\n1,2\n2,2\n3,2\n"), ("a.jsonl", '{"step": 1, "step_s": 2}\n' * 3)):
        with refused(TraceError, "more than 2 rows", "--from table"):
            read(tmp_path, text, name)


def test_hostile_names_of_columns(tmp_path: Path) -> None:
    long = "x" * 10_000
    log = read(tmp_path, f"step,step_s,{long},<script>\n1,2,3,4\n")
    assert long not in log.scalars.columns
    assert any("300 characters" in note for note in log.summary.notes)
    with refused(TraceError, "twice"):
        read(tmp_path, "step,step_s,step_s\n1,2,3\n")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.one_of(st.none(), st.floats(0, 1e6))), min_size=1, max_size=20
    )
)
def test_every_run_and_step_is_there_once(rows: list[tuple[str, int, float | None]]) -> None:
    logged = [{"run": run, "step": step, "step_s": math.nan if value is None else value} for run, step, value in rows]
    frame, again = scalars_frame(logged)
    last = {(run, step): value for run, step, value in rows}
    assert set(zip(frame["run"], frame["step"], strict=True)) == set(last)
    assert again == sum(1 for key in last if [row[:2] for row in rows].count(key) > 1)
    for _, row in frame.iterrows():
        value = last[row["run"], row["step"]]
        assert math.isnan(row["step_s"]) if value is None else row["step_s"] == value
