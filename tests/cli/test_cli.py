"""The command line: plan, simulate and import as documented, and one line with exit code 2 for whatever is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from rlhfless.cli import main
from rlhfless.latency import list_profiles
from rlhfless.latency.profile import data_folders
from rlhfless.trace import allocation_metrics, read_rollouts, read_trace

GSM8K = Path(__file__).parents[2].parent / "shared" / "data" / "grpo-gsm8k-lengths" / "areal_s0_lengths.csv"
PROFILE = "l40s-qwen2.5-3b-tp2"
ON = ["--gpus", "8", "--gpus-per-actor", "2", "--profile", PROFILE]
SIMULATE_FIELDS = [
    "policy", "steps", "time_s", "gpu_seconds", "idle_gpu_seconds", "cost_usd", "speedup_vs_static",
    "cost_reduction_vs_static", "bound_cost_at_time",
]  # fmt: skip
PLAN_FIELDS = [
    "step", "profile", "policy", "status", "makespan_s", "gpu_seconds", "cost_usd", "value", "lower_bound", "gap", "solve_s",
    "rule", "reference", "history", "prefill", "notes", "actors",
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
    assert shown["lower_bound"] <= shown["value"]
    table = rlhfless("plan", log, *ON, "--step", 0, "--time-limit", 0.1).stdout
    assert table.startswith(f"step 0 of {log}: Workload(12 responses to 6 prompts")


def test_plan_takes_the_seed_of_its_reference(log):
    def reference(*options: object) -> object:
        result = rlhfless("plan", log, *ON, "--format", "json", "--time-limit", 0.1, "--min-actors", 2, *options)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)["reference"]

    assert reference() == reference("--seed", 0)
    assert any(reference() != reference("--seed", seed) for seed in (1, 2, 3))
    refused = rlhfless("plan", log, *ON, "--seed", -1)
    assert refused.exit_code == 2
    assert "--seed" in refused.stderr


def test_simulate_prints_the_documented_fields_and_writes_traces(log, tmp_path):
    out = tmp_path / "out"
    result = rlhfless(
        "simulate", log, *ON, "--policies", "static,rlhfless,oracle", "-o", out, "--format", "json", "--time-limit", 0.1
    )
    assert result.exit_code == 0, result.stderr
    shown = json.loads(result.stdout)
    assert list(shown) == ["policies", "without_history"]
    for part in shown.values():
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
    result = rlhfless("simulate", log, *ON, "--predictor", "tea leaves")
    assert result.exit_code == 2
    assert "predictor 'tea leaves' is unknown; choose from last" in result.stderr


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


def refused(result: Result, *says: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("rlhfless: ")
    for part in says:
        assert part in line, f"{part!r} is not said in {line!r}"


def changed(**cells: object) -> pd.DataFrame:
    """The log with other cells in its fourth row."""
    table = rows().astype(object)
    for name, value in cells.items():
        table.loc[3, name] = value
    return table


BAD_LOGS = [
    (rows().drop(columns="response_tokens"), ["column 'response_tokens'", "is missing", "--map OURS=THEIRS"]),
    (rows().rename(columns={"prompt_id": "uid"}), ["column 'prompt_id'", "is missing, the table has step, uid"]),
    (changed(response_tokens=-5), ["row 4", "column 'response_tokens'", "-5", "0"]),
    (changed(response_tokens=float("nan")), ["row 4", "column 'response_tokens'"]),
    (changed(response_tokens="many"), ["row 4", "column 'response_tokens'", "many"]),
    (changed(response_tokens=2.5), ["row 4", "column 'response_tokens'", "2.5"]),
    (changed(step=-1), ["row 4", "column 'step'", "-1"]),
    (changed(prompt_id="q0", sample=0), ["row 4 repeats row 1", "one row per response is needed"]),
    (rows().iloc[:0], ["nothing in it could be read as a table", "at least one response is needed"]),
]


@pytest.mark.parametrize(("table", "says"), BAD_LOGS, ids=[says[0] for _, says in BAD_LOGS])
@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_bad_logs(command, table, says, tmp_path):
    log = written(tmp_path, table)
    out = ["-o", tmp_path / "out"] if command == "simulate" else []
    refused(rlhfless(command, log, *ON, *out), str(log), *says)
    assert not (tmp_path / "out").exists()


BAD_OPTIONS = [
    (["--profile", "h900"], ["h900", PROFILE]),
    (["--policies", "static,greedy"], ["policy 'greedy' is unknown", "static, random, least-loaded"]),
    (["--policies", "static,static"], ["--policies", "give each once"]),
    (["--policies", ""], ["--policies"]),
    (["--gpus-per-node", "1"], ["an actor needs 2 GPUs in one node, but a node has only 1", "at most 1"]),
    (["--gpus-per-actor", "4"], ["the cluster gives 4 GPUs to an actor", "gpus_per_actor=2"]),
    (["--gpus", "12"], ["--gpus 12 is not a multiple of --gpus-per-node 8", "whole nodes"]),
    (["--gpus", "0"], ["--gpus", "0", "x>=1"]),
    (["--time-weight", "2"], ["time_weight is 2.0", "0 (cost only) to 1 (time only)"]),
    (["--tau", "1.5"], ["tau is 1.5", "up to 1"]),
    (["--static-actors", "0"], ["static_actors is 0", "at least 1"]),
    (["--static-actors", "5"], ["5 actors of 2 GPUs are requested", "hold 4"]),
    (["--max-response-tokens", "10"], ["above max_response_tokens=10", "a limit of at least"]),
    (["--max-response-tokens", "0"], ["max_response_tokens=0"]),
    (["--max-response-tokens", "5000000"], ["KV tokens", "responses of at most"]),
    (["--prepare-s", "-1"], ["prepare_s is -1.0", "0 or more"]),
    (["--seed", "-1"], ["--seed", "-1", "x>=0"]),
    (["--usd-per-gpu-hour", "nan"], ["usd_per_gpu_hour is nan", "0 or more"]),
    (["--migration", "teleport"], ["teleport", "cheaper", "recompute"]),
    (["--speed", "9"], ["--speed"]),
    (["--gpus", "many"], ["--gpus", "many", "integer"]),
]


@pytest.mark.parametrize(("options", "says"), BAD_OPTIONS, ids=[" ".join(o) for o, _ in BAD_OPTIONS])
def test_bad_options(options, says, log, tmp_path):
    refused(rlhfless("simulate", log, *ON, *options, "-o", tmp_path / "out"), *says)
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
        refused(
            rlhfless(command, log, "--gpus", 8, "--profile", small),
            f"response 10 can reach {35 + longest} KV tokens (prompt 35 + limit {longest})", "holds 200",
            "responses of at most 165 tokens, or larger actors, are needed",
        )  # fmt: skip


def test_unknown_steps_commands_and_missing_options(log):
    refused(rlhfless("plan", log, *ON, "--step", 7), str(log), "has no step 7", "its steps are 0 to 1")
    refused(rlhfless("generate"), "generate")
    refused(rlhfless("plan", log), "--gpus")
    refused(rlhfless("plan", log, *ON, "--deadline-s", 1, "--budget-gpu-s", 1), "choose one")
    refused(rlhfless("plan", log, *ON, "--deadline-s", 1e-6), "no plan found for the deadline", "raise the deadline by")


def test_files_that_are_no_logs(tmp_path):
    refused(rlhfless("simulate", tmp_path / "none.csv", *ON), "none.csv", "there is no such file", "a log is needed")
    (tmp_path / "notes.txt").write_text("hello")
    refused(rlhfless("simulate", tmp_path / "notes.txt", *ON), "notes.txt", "is not a log of a known format; known are")
    (tmp_path / "bad.parquet").write_text("hello")
    refused(rlhfless("simulate", tmp_path / "bad.parquet", *ON), "bad.parquet", "cannot be read as parquet")
    (tmp_path / "bad.jsonl").write_text('{"step": 0}\n{"step": \n')
    refused(rlhfless("simulate", tmp_path / "bad.jsonl", *ON), "bad.jsonl", "line 2")
    (tmp_path / "empty").mkdir()
    refused(rlhfless("simulate", tmp_path / "empty", *ON), "is not a log of a known format")
    rows().to_parquet(tmp_path / "empty" / "rollouts.parquet")
    refused(rlhfless("simulate", tmp_path / "empty", *ON), "is not a complete trace, meta.json is missing")
    (tmp_path / "empty.csv").write_text("")
    refused(rlhfless("simulate", tmp_path / "empty.csv", *ON), "empty.csv", "cannot be read as csv")


def test_traces_of_other_versions(log, tmp_path):
    assert rlhfless("import", log, "-o", tmp_path / "t").exit_code == 0
    meta = json.loads((tmp_path / "t" / "meta.json").read_text())
    (tmp_path / "t" / "meta.json").write_text(json.dumps({**meta, "schema_version": 99}))
    refused(rlhfless("simulate", tmp_path / "t", *ON), "meta.json", "schema_version is 99", "reads traces of version 1")


def test_logs_of_several_runs(tmp_path):
    both = pd.concat([rows().assign(run="a"), rows().assign(run="b")])
    refused(rlhfless("simulate", written(tmp_path, both), *ON), "holds 2 runs (a, b); name one with --run")


def test_bad_profiles(log, tmp_path):
    refused(rlhfless("plan", log, "--gpus", 8, "--profile", tmp_path / "none.json"), "none.json")
    (tmp_path / "broken.json").write_text("{")
    refused(rlhfless("plan", log, "--gpus", 8, "--profile", tmp_path / "broken.json"), "broken.json")
    (tmp_path / "other.json").write_text("{}")
    refused(rlhfless("plan", log, "--gpus", 8, "--profile", tmp_path / "other.json"), "other.json")
    assert PROFILE in list_profiles()


@pytest.mark.parametrize(
    ("maps", "says"),
    [
        (["prompt_id"], ["--map prompt_id", "OURS=THEIRS"]),
        (["=uid"], ["--map =uid", "OURS=THEIRS"]),
        (["prompt_id=nowhere"], ["nowhere", "step"]),
        (["colour=step"], ["colour"]),
    ],
)
def test_bad_maps(maps, says, log, tmp_path):
    refused(rlhfless("import", log, "-o", tmp_path / "t", *(x for m in maps for x in ("--map", m))), *says)
    assert not (tmp_path / "t").exists()


def test_output_that_is_there_already(log, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("")
    refused(rlhfless("simulate", log, *ON, "-o", tmp_path / "out"), "exists and is not empty", "choose a new folder")
    refused(rlhfless("simulate", log, *ON, "--policies", "static", "-o", log / "out"), str(log))
    assert rlhfless("import", log, "-o", tmp_path / "t").exit_code == 0
    refused(rlhfless("import", log, "-o", tmp_path / "t"), "t")


def test_a_real_process_ends_the_same_way(log, tmp_path):
    command = [sys.executable, "-m", "rlhfless", "simulate", str(log), *ON, "--policies", "greedy", "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "policy 'greedy' is unknown" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_notebook_is_never_overwritten(tmp_path):
    notebook = tmp_path / "a.ipynb"
    notebook.write_text("{}")
    for page in ("a.ipynb", "a.html"):
        result = rlhfless("run-notebook", notebook, "-o", tmp_path / page)
        assert result.exit_code == 2
        assert "would be overwritten; give a page in another folder" in result.stderr
    other = tmp_path / "log.csv"
    other.write_text("step\n1\n")
    result = rlhfless("run-notebook", other, "-o", tmp_path / "page.html")
    assert (result.exit_code, "is not a notebook" in result.stderr) == (2, True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.ipynb", "log.csv"]
    assert notebook.read_text() == "{}"


def test_wrong_training_options_write_nothing(tmp_path):
    out = tmp_path / "run"
    for options, sentence in {
        ("--time-weight", 3): "time_weight (3.0) must be in 0..1",
        ("--seed", -1): "-1 is not in the range",
        ("--policy", "none"): "policy 'none' is unknown",
        ("--model", tmp_path / "nomodel"): "nomodel: holds no model",
    }.items():
        result = rlhfless("train", *options, "-o", out)
        assert (result.exit_code, sentence in result.stderr, out.exists()) == (2, True, False), result.stderr
    out.mkdir()
    (out / "meta.json").write_text("{}")
    assert "holds a trace already" in rlhfless("train", "-o", out).stderr


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
    refused(rlhfless("plan", log, *ON, "--pool", "h100"), "--pool h100", "is not of the form")
    refused(rlhfless("plan", log, *ON, "--budget-usd", 1e-9), "no plan found for the budget", "USD")
    refused(rlhfless("plan", log, *ON, "--min-actors", 9), "only 4 actors fit")
