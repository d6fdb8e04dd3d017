"""The command line: plan, simulate and import as documented, and one line with exit code 2 for whatever is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import run_rlhfless
from error_messages import refusal_line, refused, refused_command

from rlhfless.cli.plan import PlanOptions, plan
from rlhfless.errors import InputError
from rlhfless.latency import list_profiles
from rlhfless.system.installation import data_folders
from rlhfless.trace import allocation_metrics, read_rollouts, read_trace

GSM8K = Path(__file__).parents[2].parent / "shared" / "data" / "grpo-gsm8k-lengths" / "areal_s0_lengths.csv"
PROFILE = "l40s-qwen2.5-3b-tp2"
ON = ["--gpus", "8", "--gpus-per-actor", "2", "--profile", PROFILE]
SIMULATE_FIELDS = [
    "policy", "steps", "time_s", "gpu_seconds", "idle_gpu_seconds", "cost_usd", "speedup_vs_static",
    "cost_reduction_vs_static", "objective", "bound_cost_at_time", "above_bound", "bound_method", "planning_s",
    "planning_delay_s", "least_objective", "above_least",
]  # fmt: skip
PLAN_FIELDS = [
    "step", "profile", "times", "assumed", "policy", "status", "makespan_s", "gpu_seconds", "cost_usd", "value", "lower_bound",
    "gap", "solve_s", "rule", "reference", "history", "prefill", "notes", "actors", "executed",
]  # fmt: skip


def rows(visits: int = 2, prompts: int = 6, samples: int = 2) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        [
            {
                "step": visit,
                "prompt_id": f"q{p}",
                "sample": s,
                "prompt_tokens": 30 + p,
                "response_tokens": int(rng.integers(5, 300)),
            }
            for visit in range(visits)
            for p in range(prompts)
            for s in range(samples)
        ]
    )


def written(folder: Path, table: pd.DataFrame, name: str = "log.csv") -> Path:
    table.to_csv(folder / name, index=False)
    return folder / name


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return written(tmp_path, rows())


# --- what it does ----------------------------------------------------------------------------------------------------


def test_plan_prints_the_documented_fields(log):
    result = run_rlhfless("plan", log, *ON, "--format", "json")
    assert result.exit_code == 0, result.stderr
    shown = json.loads(result.stdout)
    assert list(shown) == ["schema", "version", *PLAN_FIELDS]
    assert (shown["step"], shown["profile"], shown["policy"]) == (1, PROFILE, "solver")
    responses = sorted(r for a in shown["actors"] for r in a["responses"])
    assert responses == list(range(12))
    assert all(row["bound_gpu_seconds"] <= row["gpu_seconds"] for row in shown["executed"])
    table = run_rlhfless("plan", log, *ON, "--step", 0).stdout
    assert table.startswith(f"step 0 of {log}: Workload(12 responses to 6 prompts")


def test_simulate_prints_the_documented_fields_and_writes_traces(log, tmp_path):
    out = tmp_path / "out"
    result = run_rlhfless("simulate", log, *ON, "--policies", "static,rlhfless,oracle", "-o", out, "--format", "json")
    assert result.exit_code == 0, result.stderr
    shown = json.loads(result.stdout)
    assert list(shown) == ["schema", "version", "policies", "without_history", "times", "log", "choices", "assumed"]
    assert shown["log"] == {"dispatch": "static", "checks": [], "not_used": []}
    for part in (shown["policies"], shown["without_history"]):
        assert [list(row) for row in part] == [SIMULATE_FIELDS] * 3
        assert [row["policy"] for row in part] == ["static", "rlhfless", "oracle"]
        assert all(row["steps"] == 1 for row in part)
    for name in ("static", "rlhfless", "oracle"):
        trace = read_trace(out / name)
        billed = allocation_metrics(trace)
        billed = float(billed.loc[billed["step"] == 1, "gpu_seconds"].sum())
        assert billed == pytest.approx(next(r["gpu_seconds"] for r in shown["policies"] if r["policy"] == name))
        assert trace.meta["profile"] == PROFILE
    assert len(list(out.iterdir())) == 3
    again = run_rlhfless("simulate", out / "static", *ON, "--policies", "static", "--format", "json")
    assert again.exit_code == 0, again.stderr  # a trace is a log


def test_simulate_says_first_what_the_log_measured_itself(tmp_path):
    table = rows()
    last = table.groupby("step").cumcount(ascending=False) == 0
    begin = 5000.0 * table["step"]
    table = table.assign(start_s=begin, end_s=begin + np.where(last, 1596.0, 100.0))
    options = [*ON, "--policies", "static"]
    shown = run_rlhfless("simulate", written(tmp_path, table), *options)
    assert shown.exit_code == 0, shown.stderr
    assumed, first, second, *_ = shown.stdout.splitlines()
    assert assumed.startswith("Assumed: the list price")
    assert first == "what the log measured, next to values counted or simulated under its own dispatch (static):"
    assert second.startswith("  contradiction: generation of a step: 1,596 s in the log, ")
    assert f"simulated by profile {PROFILE} (-" in second

    table.loc[3, "end_s"] = np.nan
    shown = json.loads(run_rlhfless("simulate", written(tmp_path, table), *options, "--format", "json").stdout)
    checks = shown["log"]["checks"]
    assert [(check["logged"], check["lower_bound"], check["contradicts"]) for check in checks] == [
        (1596.0, "", True), (1596.0, "logged", True), (1596.0, "logged", False)
    ]  # fmt: skip
    assert shown["times"]["steps"] == 1
    (note,) = shown["log"]["not_used"]
    assert "1 step (0) are lower bounds" in note
    assert [row["policy"] for row in shown["policies"]] == ["static"]


def test_simulate_compares_the_scalars_of_a_log(tmp_path):
    pytest.importorskip("tokenizers", reason="the tokenizers package is not installed: pip install 'rlhfless[logs]'")
    golden = Path(__file__).parents[1] / "trace" / "importers" / "golden"
    done = run_rlhfless("convert", golden / "trl-averaged", "--tokenizer", golden / "trl", "-o", tmp_path / "log")
    assert done.exit_code == 0, done.output
    shown = run_rlhfless("simulate", tmp_path / "log", *ON, "--policies", "static")
    assert shown.exit_code == 0, shown.stderr
    _, first, second, *_ = shown.stdout.splitlines()
    assert first.endswith("under its own dispatch (static):")
    assert second.startswith("  agrees: a whole step: 0.7063 s in the log, at least 0.33")


def test_simulate_prints_a_table_for_people(log):
    shown = run_rlhfless("simulate", log, *ON, "--policies", "static,random").stdout
    assert shown.count("static") >= 2
    assert "steps with history" in shown
    assert "steps without history" in shown


def test_simulate_names_the_best_policy_by_the_objective_and_shows_shares_as_percent(log):
    given = ["simulate", log, *ON, "--policies", "static,random,oracle"]
    shown = run_rlhfless(*given).stdout.splitlines()
    rows = json.loads(run_rlhfless(*given, "--format", "json").stdout)["policies"]
    best = min((row for row in rows if row["policy"] != "oracle"), key=lambda row: row["objective"])
    said = (
        f"best without true lengths: {best['policy']}, {best['objective']:.3f} of static, "
        f"{best['above_least']:.1%} above the least of any schedule"
    )
    assert said in shown
    first = next(line.split() for line in shown if line.split()[:1] == ["random"])
    assert sum(cell.endswith("%") for cell in first) == 2
    assert all(len(line) <= 100 for line in shown if line.split()[:1] in (["policy"], ["static"], ["random"], ["oracle"]))


def test_simulate_takes_some_of_the_steps(log):
    given = ["simulate", log, *ON, "--policies", "static", "--format", "json"]
    every, one = (json.loads(run_rlhfless(*given, *more).stdout) for more in ([], ["--steps", 1]))
    assert sum(row["steps"] for rows in (every["policies"], every["without_history"]) for row in rows) > 1
    (row,) = [*one["policies"], *one["without_history"]]
    assert row["steps"] == 1
    for wrong in (0, -1, "all"):
        refused_command(run_rlhfless(*given, "--steps", wrong), f"--steps is {wrong}", "a whole number of at least 1")


def test_import_and_simulate_the_public_log(tmp_path):
    if not GSM8K.exists():
        pytest.skip(f"public data absent: {GSM8K.name}")
    maps = ["prompt_id=prompt_index", "sample=rollout", "step=visit"]
    result = run_rlhfless(
        "convert", GSM8K, "-o", tmp_path / "t", *(x for m in maps for x in ("--map", m)), "--max-response-tokens", 512
    )
    assert result.exit_code == 0, result.stderr
    rollouts = read_rollouts(tmp_path / "t")
    assert len(rollouts) == len(pd.read_csv(GSM8K))
    kept = rollouts[rollouts["step"] < 2]
    kept.to_csv(tmp_path / "two.csv", index=False)
    result = run_rlhfless(
        "simulate", tmp_path / "two.csv", "--gpus", "3x8", "--profile", PROFILE,
        "--policies", "static,random,fold,oracle", "--format", "json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    shown = {row["policy"]: row for row in json.loads(result.stdout)["policies"]}
    assert shown["static"]["speedup_vs_static"] == 1.0
    assert shown["oracle"]["gpu_seconds"] < shown["random"]["gpu_seconds"]
    assert all(row["bound_cost_at_time"] < row["gpu_seconds"] for row in shown.values())


def test_an_interrupt_and_too_little_memory_are_one_line(log, monkeypatch):
    for error, code, named in ((KeyboardInterrupt, 130, "interrupted"), (MemoryError, 2, "memory")):

        def fails(*_: object, error: type[BaseException] = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("rlhfless.run.load", fails)
        done = run_rlhfless("plan", log, *ON)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (code, "", 1)
        assert named in done.stderr


def test_a_command_is_a_function_of_its_options(log, capsys):
    """What is typed and what is written in Python are the same model, with the same refusals."""
    plan(PlanOptions(log=log, gpus=8, gpus_per_actor=2, profile=PROFILE, format="json"))
    shown = json.loads(capsys.readouterr().out)
    typed = json.loads(run_rlhfless("plan", log, *ON, "--format", "json").stdout)
    assert shown["makespan_s"] == typed["makespan_s"]
    with refused(InputError, "--gpus is 0", "at least 1"):
        PlanOptions(log=log, gpus=0)
    with refused(InputError, "gpu_count is unknown"):
        PlanOptions(log=log, gpu_count=8)


def test_without_a_command_it_says_what_it_can_do():
    result = run_rlhfless()
    assert result.exit_code == 0
    assert "simulate" in result.stdout
    assert result.stdout.count("\n") > 5


# --- what it refuses ---------------------------------------------------------------------------------------------------


def changed(**cells: object) -> pd.DataFrame:
    """The log with other cells in its fourth row."""
    table = rows().astype(object)
    for name, value in cells.items():
        table.loc[3, name] = value
    return table


BAD_LOGS = {
    "no lengths": (rows().drop(columns="response_tokens"), ["'response_tokens'", "--map"]),
    "no prompts": (rows().rename(columns={"prompt_id": "uid"}), ["'prompt_id'", "step, uid"]),
    "negative": (changed(response_tokens=-5), ["row 4", "'response_tokens'", "-5"]),
    "nan": (changed(response_tokens=float("nan")), ["row 4", "'response_tokens'"]),
    "text": (changed(response_tokens="many"), ["row 4", "'response_tokens'", "many"]),
    "fraction": (changed(response_tokens=2.5), ["row 4", "'response_tokens'", "2.5"]),
    "negative step": (changed(step=-1), ["row 4", "'step'", "-1"]),
    "repeated": (changed(prompt_id="q0", sample=0), ["row 4", "row 1"]),
    "empty": (rows().iloc[:0], []),
}


@pytest.mark.parametrize("name", BAD_LOGS)
@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_bad_logs(command, name, tmp_path):
    table, named = BAD_LOGS[name]
    log = written(tmp_path, table)
    out = ["-o", tmp_path / "out"] if command == "simulate" else []
    refused_command(run_rlhfless(command, log, *ON, *out), str(log), *named)
    assert not (tmp_path / "out").exists()


BAD_OPTIONS = [
    (["--profile", "h900"], ["h900", PROFILE]),
    (["--policies", "static,greedy"], ["'greedy'", "static, least-loaded"]),
    (["--policies", "static,static"], ["--policies"]),
    (["--policies", ""], ["--policies"]),
    (["--gpus", "8x1"], ["gpus_per_actor", "2", "1"]),
    (["--gpus", "0x8"], ["--gpus is 0x8", "2x4"]),
    (["--gpus", "8x"], ["--gpus is 8x", "2x4"]),
    (["--gpus-per-actor", "4"], ["4", "2 per actor"]),
    (["--gpus", "12"], ["12", "8"]),
    (["--time-weight", "2"], ["--time-weight", "2", "at most 1"]),
    (["--usd-per-gpu-hour", "nan"], ["--usd-per-gpu-hour", "nan"]),
]


@pytest.mark.parametrize(("options", "named"), BAD_OPTIONS, ids=[" ".join(o) for o, _ in BAD_OPTIONS])
def test_bad_options(options, named, log, tmp_path):
    refused_command(run_rlhfless("simulate", log, *ON, *options, "-o", tmp_path / "out"), *named)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("limit", ["10", "0"])
def test_a_limit_that_no_log_can_have(limit, log, tmp_path):
    for words in (["report", log, *ON], ["convert", log, "-o", tmp_path / "out"]):
        line = refusal_line(run_rlhfless(*words, "--max-response-tokens", limit))
        assert "max_response_tokens=10" in line or "--max-response-tokens is 0" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--gpus", "0"], ["--gpus is 0", "a whole number of at least 1"]),
        (["--gpus", "many"], ["--gpus is many", "a whole number"]),
        (["--seed", "-1"], ["--seed is -1", "at least 0"]),
        (["--format", "table"], ["--format is table", "text or json"]),
        (["--sed", "9"], ["simulate has no option --sed", "--seed"]),
        (["--out"], ["--out needs a value"]),
        (["other.csv"], ["other.csv is one word too many"]),
    ],
)
def test_values_that_an_option_does_not_take(options, says, log, tmp_path):
    line = refusal_line(run_rlhfless("simulate", log, *ON, *options, "-o", tmp_path / "out"))
    assert all(part in line for part in says), line
    assert not (tmp_path / "out").exists()


def test_a_response_that_no_actor_can_hold(log, tmp_path):
    shipped = next(folder / "profiles" / f"{PROFILE}.json" for folder in data_folders() if (folder / "profiles").is_dir())
    profile = json.loads(shipped.read_text())
    profile["kv_capacity_tokens"] = 200
    profile.pop("kv_capacity", None)
    small = tmp_path / "small.json"
    small.write_text(json.dumps(profile))
    longest = rows()["response_tokens"].max()
    for command in ("plan", "simulate"):
        refused_command(
            run_rlhfless(command, log, "--gpus", 8, "--profile", small),
            "response 10",
            *map(str, (35 + longest, 35, longest, 200, 165)),
        )


@pytest.mark.parametrize("given", [["plan"], ["simulate"], ["step", "--algorithm", "grpo", "--model", "actor=qwen2.5-3b"]])
def test_a_log_that_is_not_there_is_refused_with_an_example(given, tmp_path):
    missing = tmp_path / "LOG"
    gpus = ["--gpus", 8, *(["--gpu", "h100"] if given[0] == "step" else [])]
    result = run_rlhfless(given[0], missing, *given[1:], *gpus)
    refused_command(result, f"{missing}: there is no such file or folder", "rlhfless doctor", "rlhfless.example()")


def test_unknown_steps_commands_and_missing_options(log):
    refused_command(run_rlhfless("plan", log, *ON, "--step", 7), str(log), "7", "0 to 1")
    assert "generate" in refusal_line(run_rlhfless("generate"))
    refused_command(run_rlhfless("simulat"), "simulat is not a command", "did you mean simulate?")
    refused_command(run_rlhfless("what-if", log), "what-if", "rlhfless report LOG --only what-ifs")
    refused_command(run_rlhfless(log), str(log), "is a file, not a command", f"rlhfless report {log}")
    refused_command(run_rlhfless("plan"), "LOG is missing")
    refused_command(
        run_rlhfless("layouts", "--gpus", 8, "--model", "actor=llama2-7b"), "--gpu is missing", "a100, h100 or l40s"
    )
    refused_command(run_rlhfless("plan", log, *ON, "--limit", "1s", "--time-weight", 1), "--limit", "--time-weight")
    line = refusal_line(run_rlhfless("plan", log, *ON, "--limit", "1e-6s"))  # the plan that it names depends on the machine
    assert re.search(r"deadline of 1e-06 s.* raise the deadline by [\d.]+ s", line)


def test_files_that_are_no_logs(tmp_path):
    refused_command(run_rlhfless("simulate", tmp_path / "none.csv", *ON), "none.csv")
    (tmp_path / "notes.txt").write_text("hello")
    refused_command(run_rlhfless("simulate", tmp_path / "notes.txt", *ON), "notes.txt")
    (tmp_path / "empty").mkdir()
    refused_command(run_rlhfless("simulate", tmp_path / "empty", *ON), str(tmp_path / "empty"))
    rows().to_parquet(tmp_path / "empty" / "rollouts.parquet")
    refused_command(run_rlhfless("simulate", tmp_path / "empty", *ON), str(tmp_path / "empty"), "meta.json")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("bad.parquet", "hello", "parquet"),
        ("bad.jsonl", '{"step": 0}\n{"step": \n', "line 2"),
        ("empty.csv", "", "is empty"),
    ],
)
def test_files_that_a_library_cannot_read(name, text, says, tmp_path):
    (tmp_path / name).write_text(text)
    line = refusal_line(run_rlhfless("simulate", tmp_path / name, *ON))
    assert line.startswith(f"rlhfless: {tmp_path / name}: ")
    assert says in line.removeprefix(f"rlhfless: {tmp_path / name}: ")


def test_traces_of_other_versions(log, tmp_path):
    assert run_rlhfless("convert", log, "-o", tmp_path / "t").exit_code == 0
    meta = json.loads((tmp_path / "t" / "meta.json").read_text())
    (tmp_path / "t" / "meta.json").write_text(json.dumps({**meta, "schema_version": 99}))
    refused_command(run_rlhfless("simulate", tmp_path / "t", *ON), "meta.json", "schema_version", "99", "1")


def test_logs_of_several_runs(tmp_path):
    both = pd.concat([rows().assign(run="a"), rows().assign(run="b")])
    refused_command(run_rlhfless("simulate", written(tmp_path, both), *ON), "a, b", "--run")


def test_bad_profiles(log, tmp_path):
    refused_command(run_rlhfless("plan", log, "--gpus", 8, "--profile", tmp_path / "none.json"), "none.json")
    (tmp_path / "broken.json").write_text("{")
    line = refusal_line(run_rlhfless("plan", log, "--gpus", 8, "--profile", tmp_path / "broken.json"))
    assert f"{tmp_path / 'broken.json'}: line 1 " in line
    (tmp_path / "other.json").write_text("{}")
    refused_command(run_rlhfless("plan", log, "--gpus", 8, "--profile", tmp_path / "other.json"), "other.json")
    assert PROFILE in list_profiles()


@pytest.mark.parametrize(
    ("maps", "named"),
    [
        (["prompt_id"], ["--map prompt_id"]),
        (["=uid"], ["--map =uid"]),
        (["prompt_id=nowhere"], ["nowhere", "step"]),
        (["colour=step"], ["colour"]),
    ],
)
def test_bad_maps(maps, named, log, tmp_path):
    refused_command(run_rlhfless("convert", log, "-o", tmp_path / "t", *(x for m in maps for x in ("--map", m))), *named)
    assert not (tmp_path / "t").exists()


def test_output_that_is_there_already(log, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("")
    refused_command(run_rlhfless("simulate", log, *ON, "-o", tmp_path / "out"), str(tmp_path / "out"))
    refused_command(run_rlhfless("simulate", log, *ON, "--policies", "static", "-o", log / "out"), str(log))
    assert run_rlhfless("convert", log, "-o", tmp_path / "t").exit_code == 0
    refused_command(run_rlhfless("convert", log, "-o", tmp_path / "t"), str(tmp_path / "t"))


@pytest.mark.full
def test_a_real_process_ends_the_same_way(log, tmp_path):
    command = [sys.executable, "-m", "rlhfless", "simulate", str(log), *ON, "--policies", "greedy", "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "'greedy'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_wrong_training_options_write_nothing(tmp_path):
    out = tmp_path / "run"
    for key, named in {
        "planner.time_weight=3": ("planner.time_weight", "3"),
        "planner.policy=none": ("'none'",),
        f"model={tmp_path / 'nomodel'}": ("nomodel",),
        "seed=-1": ("seed", "-1"),
    }.items():
        refused_command(run_rlhfless("train", "preset=demo", key, "-o", out), *named)
        assert not out.exists()
    out.mkdir()
    (out / "meta.json").write_text("{}")
    refused_command(run_rlhfless("train", "preset=demo", "-o", out), str(out))


def test_plan_on_several_pools(log: Path) -> None:
    pool = ["--pool", "4:h100-qwen2.5-3b-tp1,h100-qwen2.5-3b-tp2"]
    mixed = run_rlhfless("plan", log, *ON, *pool, "--format", "json")
    assert mixed.exit_code == 0, mixed.output
    read = json.loads(mixed.stdout)
    assert {a["kind"] for a in read["actors"]} <= {"l40s", "h100"}
    assert read["cost_usd"] > 0
    assert 0 < read["lower_bound"] <= read["value"]
    refused_command(run_rlhfless("plan", log, *ON, "--pool", "h100"), "--pool h100")
    refused_command(run_rlhfless("plan", log, *ON, "--pool", "\u00b2:h100-qwen2.5-3b-tp1"), "is not of the form")
    line = refusal_line(run_rlhfless("plan", log, *ON, "--limit", "1e-9usd"))  # the plan that it names depends on the machine
    assert re.search(r"budget of 1e-09 USD.* raise the budget by [\d.]+ USD", line)
