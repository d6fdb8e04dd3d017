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
from click.testing import CliRunner, Result
from error_messages import refusal_line, refused_command

from rlhfless.cli import main
from rlhfless.latency import list_profiles
from rlhfless.latency.profile import data_folders
from rlhfless.trace import allocation_metrics, read_rollouts, read_trace

GSM8K = Path(__file__).parents[2].parent / "shared" / "data" / "grpo-gsm8k-lengths" / "areal_s0_lengths.csv"
PROFILE = "l40s-qwen2.5-3b-tp2"
ON = ["--gpus", "8", "--gpus-per-actor", "2", "--profile", PROFILE]
SIMULATE_FIELDS = [
    "policy", "steps", "time_s", "gpu_seconds", "idle_gpu_seconds", "cost_usd", "speedup_vs_static",
    "cost_reduction_vs_static", "bound_cost_at_time", "bound_method", "planning_s", "planning_delay_s",
]  # fmt: skip
PLAN_FIELDS = [
    "step", "profile", "times", "policy", "status", "makespan_s", "gpu_seconds", "cost_usd", "value", "lower_bound", "gap",
    "solve_s", "rule", "reference", "history", "prefill", "notes", "actors", "executed",
]  # fmt: skip


def rlhfless(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


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
    result = rlhfless("plan", log, *ON, "--format", "json", "--time-limit", 0.1)
    assert result.exit_code == 0, result.stderr
    shown = json.loads(result.stdout)
    assert list(shown) == PLAN_FIELDS
    assert (shown["step"], shown["profile"], shown["policy"]) == (1, PROFILE, "solver")
    responses = sorted(r for a in shown["actors"] for r in a["responses"])
    assert responses == list(range(12))
    assert all(row["bound_gpu_seconds"] <= row["gpu_seconds"] for row in shown["executed"])
    table = rlhfless("plan", log, *ON, "--step", 0, "--time-limit", 0.1).stdout
    assert table.startswith(f"step 0 of {log}: Workload(12 responses to 6 prompts")


def test_plan_takes_the_seed_of_its_reference(log):
    def reference(*options: object) -> object:
        result = rlhfless("plan", log, *ON, "--format", "json", "--time-limit", 0.1, "--min-actors", 2, *options)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)["reference"]

    assert reference() == reference("--seed", 0)
    assert any(reference() != reference("--seed", seed) for seed in (1, 2, 3))
    assert "--seed" in refusal_line(rlhfless("plan", log, *ON, "--seed", -1))


def test_simulate_prints_the_documented_fields_and_writes_traces(log, tmp_path):
    out = tmp_path / "out"
    result = rlhfless(
        "simulate", log, *ON, "--policies", "static,rlhfless,oracle", "-o", out, "--format", "json", "--time-limit", 0.1
    )
    assert result.exit_code == 0, result.stderr
    shown = json.loads(result.stdout)
    assert list(shown) == ["policies", "without_history", "times", "log"]
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
    again = rlhfless("simulate", out / "static", *ON, "--policies", "static", "--format", "json")
    assert again.exit_code == 0, again.stderr  # a trace is a log


@pytest.mark.parametrize("predictor", ["last", "inflight"])
def test_simulate_takes_a_predictor_by_name(log, predictor):
    result = rlhfless("simulate", log, *ON, "--policies", "random,solver+replan", "--predictor", predictor, "--time-limit", 0.1)
    assert result.exit_code == 0, result.stderr
    assert "solver+replan" in result.stdout


def test_simulate_says_first_what_the_log_measured_itself(tmp_path):
    table = rows()
    last = table.groupby("step").cumcount(ascending=False) == 0
    begin = 5000.0 * table["step"]
    table = table.assign(start_s=begin, end_s=begin + np.where(last, 1596.0, 100.0))
    options = [*ON, "--policies", "static", "--learn-s", "7"]
    shown = rlhfless("simulate", written(tmp_path, table), *options)
    assert shown.exit_code == 0, shown.stderr
    first, second, *_ = shown.stdout.splitlines()
    assert first == "what the log measured, next to values counted or simulated under its own dispatch (static):"
    assert second.startswith("  contradiction: generation of a step: 1,596 s in the log, ")
    assert f"simulated by profile {PROFILE} (-" in second

    table.loc[3, "end_s"] = np.nan
    shown = json.loads(rlhfless("simulate", written(tmp_path, table), *options, "--format", "json").stdout)
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
    shown = rlhfless("simulate", golden / "trl-averaged", *ON, "--policies", "static", "--tokenizer", golden / "trl")
    assert shown.exit_code == 0, shown.stderr
    first, second, *_ = shown.stdout.splitlines()
    assert first.endswith("under its own dispatch (static):")
    assert second.startswith("  agrees: a whole step: 0.7063 s in the log, at least 0.33")


def test_simulate_prints_a_table_for_people(log):
    shown = rlhfless("simulate", log, *ON, "--policies", "static,random").stdout
    assert shown.count("static") >= 2
    assert "steps with history" in shown
    assert "steps without history" in shown


def test_import_and_simulate_the_public_log(tmp_path):
    if not GSM8K.exists():
        pytest.skip(f"public data absent: {GSM8K.name}")
    maps = ["prompt_id=prompt_index", "sample=rollout", "step=visit"]
    result = rlhfless(
        "import", GSM8K, "-o", tmp_path / "t", *(x for m in maps for x in ("--map", m)), "--max-response-tokens", 512
    )
    assert result.exit_code == 0, result.stderr
    rollouts = read_rollouts(tmp_path / "t")
    assert len(rollouts) == len(pd.read_csv(GSM8K))
    kept = rollouts[rollouts["step"] < 2]
    kept.to_csv(tmp_path / "two.csv", index=False)
    result = rlhfless(
        "simulate", tmp_path / "two.csv", "--gpus", 24, "--gpus-per-node", 8, "--profile", PROFILE, "--max-response-tokens",
        512,
        "--policies", "static,random,fold,oracle", "--time-limit", 0.1, "--format", "json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    shown = {row["policy"]: row for row in json.loads(result.stdout)["policies"]}
    assert shown["static"]["speedup_vs_static"] == 1.0
    assert shown["oracle"]["gpu_seconds"] < shown["random"]["gpu_seconds"]
    assert all(row["bound_cost_at_time"] < row["gpu_seconds"] for row in shown.values())


def test_without_a_command_it_says_what_it_can_do():
    result = rlhfless()
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
    refused_command(rlhfless(command, log, *ON, *out), str(log), *named)
    assert not (tmp_path / "out").exists()


BAD_OPTIONS = [
    (["--profile", "h900"], ["h900", PROFILE]),
    (["--policies", "static,greedy"], ["'greedy'", "static, random, least-loaded"]),
    (["--predictor", "median"], ["'median'", "last", "inflight"]),
    (["--policies", "static,static"], ["--policies"]),
    (["--policies", ""], ["--policies"]),
    (["--gpus-per-node", "1"], ["gpus_per_actor", "2", "1"]),
    (["--gpus-per-actor", "4"], ["4", "gpus_per_actor=2"]),
    (["--gpus", "12"], ["12", "8"]),
    (["--time-weight", "2"], ["time_weight", "2.0"]),
    (["--tau", "1.5"], ["tau", "1.5"]),
    (["--static-actors", "0"], ["static_actors", "0"]),
    (["--static-actors", "5"], ["5", "2", "4"]),
    (["--max-response-tokens", "10"], ["max_response_tokens=10"]),
    (["--max-response-tokens", "0"], ["--max-response-tokens", "0"]),
    (["--max-response-tokens", "5000000"], ["5000000"]),
    (["--prepare-s", "-1"], ["prepare_s", "-1.0"]),
    (["--usd-per-gpu-hour", "nan"], ["usd_per_gpu_hour", "nan"]),
]


@pytest.mark.parametrize(("options", "named"), BAD_OPTIONS, ids=[" ".join(o) for o, _ in BAD_OPTIONS])
def test_bad_options(options, named, log, tmp_path):
    refused_command(rlhfless("simulate", log, *ON, *options, "-o", tmp_path / "out"), *named)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--gpus", "0"], ["--gpus", "0", "x>=1"]),
        (["--gpus", "many"], ["--gpus", "many", "integer"]),
        (["--seed", "-1"], ["--seed", "-1", "x>=0"]),
        (["--migration", "teleport"], ["teleport", "cheaper", "recompute"]),
        (["--speed", "9"], ["--speed"]),
    ],
)
def test_options_that_click_refuses(options, says, log, tmp_path):
    line = refusal_line(rlhfless("simulate", log, *ON, *options, "-o", tmp_path / "out"))
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
            rlhfless(command, log, "--gpus", 8, "--profile", small),
            "response 10",
            *map(str, (35 + longest, 35, longest, 200, 165)),
        )


def test_unknown_steps_commands_and_missing_options(log):
    refused_command(rlhfless("plan", log, *ON, "--step", 7), str(log), "7", "0 to 1")
    assert "generate" in refusal_line(rlhfless("generate"))
    refused_command(rlhfless("step", "--algorithm", "ppo"), "--kind", "a100, h100 or l40s")
    refused_command(rlhfless("plan", log, *ON, "--deadline-s", 1, "--budget-gpu-s", 1), "deadline_s", "budget_gpu_s")
    line = refusal_line(rlhfless("plan", log, *ON, "--deadline-s", 1e-6))  # the plan that it names depends on the machine
    assert re.search(r"deadline of 1e-06 s.* raise the deadline by [\d.]+ s", line)


def test_files_that_are_no_logs(tmp_path):
    refused_command(rlhfless("simulate", tmp_path / "none.csv", *ON), "none.csv")
    (tmp_path / "notes.txt").write_text("hello")
    refused_command(rlhfless("simulate", tmp_path / "notes.txt", *ON), "notes.txt")
    (tmp_path / "empty").mkdir()
    refused_command(rlhfless("simulate", tmp_path / "empty", *ON), str(tmp_path / "empty"))
    rows().to_parquet(tmp_path / "empty" / "rollouts.parquet")
    refused_command(rlhfless("simulate", tmp_path / "empty", *ON), str(tmp_path / "empty"), "meta.json")


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
    line = refusal_line(rlhfless("simulate", tmp_path / name, *ON))
    assert line.startswith(f"rlhfless: {tmp_path / name}: ")
    assert says in line.removeprefix(f"rlhfless: {tmp_path / name}: ")


def test_traces_of_other_versions(log, tmp_path):
    assert rlhfless("import", log, "-o", tmp_path / "t").exit_code == 0
    meta = json.loads((tmp_path / "t" / "meta.json").read_text())
    (tmp_path / "t" / "meta.json").write_text(json.dumps({**meta, "schema_version": 99}))
    refused_command(rlhfless("simulate", tmp_path / "t", *ON), "meta.json", "schema_version", "99", "1")


def test_logs_of_several_runs(tmp_path):
    both = pd.concat([rows().assign(run="a"), rows().assign(run="b")])
    refused_command(rlhfless("simulate", written(tmp_path, both), *ON), "a, b", "--run")


def test_bad_profiles(log, tmp_path):
    refused_command(rlhfless("plan", log, "--gpus", 8, "--profile", tmp_path / "none.json"), "none.json")
    (tmp_path / "broken.json").write_text("{")
    line = refusal_line(rlhfless("plan", log, "--gpus", 8, "--profile", tmp_path / "broken.json"))
    assert f"{tmp_path / 'broken.json'}: line 1 " in line
    (tmp_path / "other.json").write_text("{}")
    refused_command(rlhfless("plan", log, "--gpus", 8, "--profile", tmp_path / "other.json"), "other.json")
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
    refused_command(rlhfless("import", log, "-o", tmp_path / "t", *(x for m in maps for x in ("--map", m))), *named)
    assert not (tmp_path / "t").exists()


def test_output_that_is_there_already(log, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("")
    refused_command(rlhfless("simulate", log, *ON, "-o", tmp_path / "out"), str(tmp_path / "out"))
    refused_command(rlhfless("simulate", log, *ON, "--policies", "static", "-o", log / "out"), str(log))
    assert rlhfless("import", log, "-o", tmp_path / "t").exit_code == 0
    refused_command(rlhfless("import", log, "-o", tmp_path / "t"), str(tmp_path / "t"))


@pytest.mark.full
def test_a_real_process_ends_the_same_way(log, tmp_path):
    command = [sys.executable, "-m", "rlhfless", "simulate", str(log), *ON, "--policies", "greedy", "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "'greedy'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_notebook_is_never_overwritten(tmp_path):
    notebook = tmp_path / "a.ipynb"
    notebook.write_text("{}")
    for page in ("a.ipynb", "a.html"):
        refused_command(rlhfless("run-notebook", notebook, "-o", tmp_path / page), str(notebook))
    other = tmp_path / "log.csv"
    other.write_text("step\n1\n")
    refused_command(rlhfless("run-notebook", other, "-o", tmp_path / "page.html"), str(other))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.ipynb", "log.csv"]
    assert notebook.read_text() == "{}"


def test_wrong_training_options_write_nothing(tmp_path):
    out = tmp_path / "run"
    for options, named in {
        ("--time-weight", 3): ("--time-weight", "3"),
        ("--policy", "none"): ("'none'",),
        ("--model", tmp_path / "nomodel"): ("nomodel",),
    }.items():
        refused_command(rlhfless("train", *options, "-o", out), *named)
        assert not out.exists()
    assert "-1" in refusal_line(rlhfless("train", "--seed", -1, "-o", out))
    assert not out.exists()
    out.mkdir()
    (out / "meta.json").write_text("{}")
    refused_command(rlhfless("train", "-o", out), str(out))


def test_plan_on_several_pools_and_with_the_options_of_the_planner(log: Path) -> None:
    pool = ["--pool", "4:h100-qwen2.5-3b-tp1,h100-qwen2.5-3b-tp2"]
    mixed = rlhfless("plan", log, *ON, *pool, "--cost", "usd", "--time-limit", 0.3, "--format", "json")
    assert mixed.exit_code == 0, mixed.output
    read = json.loads(mixed.stdout)
    assert {a["kind"] for a in read["actors"]} <= {"l40s", "h100"}
    assert read["cost_usd"] > 0
    assert 0 < read["lower_bound"] <= read["value"]
    together = [
        "--keep-together",
        "--share-prefill",
        "--min-actors",
        2,
        "--max-actors",
        3,
        "--prewarmed",
        1,
        "--cvar-alpha",
        0.5,
    ]
    read = json.loads(rlhfless("plan", log, *ON, *together, "--time-limit", 0.3, "--format", "json").stdout)
    assert 2 <= len(read["actors"]) <= 3
    assert [a["prewarmed"] for a in read["actors"]][:2] == [True, False]
    assert all(a["shares_prompts"] for a in read["actors"])
    owners = [p for a in read["actors"] for p in a["prompts"]]
    assert len(owners) == len(set(owners))
    both = rlhfless("plan", log, *ON, *pool, "--keep-together", "--share-prefill", "--time-limit", 0.3, "--format", "json")
    assert both.exit_code == 0, both.output
    read = json.loads(both.stdout)
    assert all(a["shares_prompts"] for a in read["actors"])
    owners = [p for a in read["actors"] for p in a["prompts"]]
    assert len(owners) == len(set(owners))
    assert 0 < read["lower_bound"] <= read["value"]
    refused_command(rlhfless("plan", log, *ON, "--pool", "h100"), "--pool h100")
    line = refusal_line(rlhfless("plan", log, *ON, "--budget-usd", 1e-9))  # the plan that it names depends on the machine
    assert re.search(r"budget of 1e-09 USD.* raise the budget by [\d.]+ USD", line)
    refused_command(rlhfless("plan", log, *ON, "--min-actors", 9), "9", "4")
