"""The benchmark for GPUs, as far as it can be run without one: with tiny shapes, and only the packages that it may need."""

import csv
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import numpy as np
import pytest
from error_messages import refused

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import gpu_plans
import gpu_workload

from rlhfless.latency import load_profile
from rlhfless.scheduling import PlanningOptions, make_policy
from solver import Objective, evaluate
from solver.model.problem import PlanningProblem

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PRESENT = ("numpy", "torch", "transformers")


def needs_of(names):
    """Distributions that these need, themselves included, as far as they are installed; extras are not."""
    found, left = set(), list(names)
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in found:
            continue
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        found.add(name)
        left += [re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in requires if "extra ==" not in line]
    return found


def absent_modules():
    """Modules of everything that is installed here and is none of ``PRESENT``, nor needed by them, nor this project."""
    there = {*needs_of(PRESENT), "rlhfless"}
    found = packages_distributions()
    return sorted(
        m for m, owners in found.items() if m.isidentifier() and not {re.sub(r"[-_.]+", "-", d).lower() for d in owners} & there
    )


ABSENT = sorted({*absent_modules(), "click"})  # transformers needs it for its command line only
ALONE = f"""
import pathlib, runpy, sys
sys.modules.update(dict.fromkeys({ABSENT}))
sys.path.insert(0, {str(BENCHMARKS)!r})
import gpu_plans
gpu_plans.PREPARED = pathlib.Path(sys.argv[1])
sys.argv = ["gpu_engine.py", *sys.argv[2:]]
runpy.run_path({str(BENCHMARKS / "gpu_engine.py")!r}, run_name="__main__")
"""


def test_made_up_lengths_say_so_and_logged_ones_are_read(tmp_path):
    made_up, where = gpu_workload.known_lengths(tmp_path / "none.npz")
    assert "MADE UP" in where
    assert made_up.shape == (512, 8)
    assert made_up.min() >= 1
    assert made_up.max() == 512
    log = tmp_path / "log.csv"
    with log.open("w", newline="") as lines:
        rows = csv.writer(lines)
        rows.writerow(["visit", "prompt_index", "rollout", "response_tokens"])
        rows.writerows([0, p, g, 1 + p + g] for p in range(512) for g in range(8))
        rows.writerow([1, 0, 0, 99])
    lengths, where = gpu_workload.known_lengths(gpu_workload.prepare(log, tmp_path / "lengths.npz"))
    assert "MADE UP" not in where
    np.testing.assert_array_equal(lengths, 1 + np.add.outer(np.arange(512), np.arange(8)))


def test_everything_else_is_absent():
    assert {"pandas", "pyarrow", "ortools", "click", "plotly", "pytest", "hypothesis"} <= set(ABSENT)
    assert not {"numpy", "torch", "transformers", "tokenizers", "safetensors", "rlhfless", "solver"} & set(ABSENT)


def started(*command):
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS.parents[1])}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)


def run(out, *options):
    """The script with few packages; plans are those in plans_tiny.json beside ``out``, where they were prepared."""
    return started("-c", ALONE, str(out.with_name("plans.json")), "--device", "cpu", "--tiny", "-o", str(out), *options)


def test_plans_come_back_from_json_with_their_rules_and_the_numbers_of_another_profile(tmp_path):
    lengths = np.random.default_rng(0).integers(1, 100, (32, 4))
    out = gpu_plans.prepare(lengths, "drawn", out=tmp_path / "plans.json")
    found = gpu_plans.read_file(out, lengths, "drawn", gpu_plans.POLICIES)
    assert found["profile"]["name"] == "h100-qwen2.5-3b-tp1"
    assert sorted(map(int, found["plans"])) == [2, 4, 8, 16, 32]
    latency = load_profile(gpu_plans.PROFILE)
    other = replace(latency, kind="other", base_s=2 * latency.base_s, table=None, max_batch=3)
    for prompts, plans in found["plans"].items():
        workload = gpu_workload.step_of(lengths[: int(prompts)], 500).workload
        for policy in gpu_plans.POLICIES:
            given = (
                PlanningProblem(workload, gpu_plans.cluster_of(latency.kind), latency, Objective(0.7)),
                PlanningOptions(),
            )
            made = make_policy(policy).plan(*given)
            plan = gpu_plans.read(plans[policy], workload, latency)
            if policy != "solver":  # which has more time beforehand
                assert plan.actors == made.actors
                assert (plan.makespan_s, plan.gpu_seconds) == pytest.approx((made.makespan_s, made.gpu_seconds))
            assert type(plan.rule) is type(made.rule)
            assert getattr(plan.rule, "tau", None) == (0.7 if policy == "rlhfless" else None)
            moved = gpu_plans.read(plans[policy], workload, other)
            assert {(a.kind, a.max_batch) for a in moved.actors} == {("other", 3)}
            takes = evaluate(moved, PlanningProblem(workload, gpu_plans.cluster_of(other.kind), other))
            assert (moved.makespan_s, moved.gpu_seconds) == (takes.makespan_s, takes.gpu_seconds)


def test_plans_of_another_step_are_refused(tmp_path):
    lengths = np.full((32, 4), 9)
    with refused(FileNotFoundError, "--prepare"):
        gpu_plans.read_file(tmp_path / "none.json", lengths, "made", ["static"])
    out = gpu_plans.prepare(lengths, "made", out=tmp_path / "plans.json")
    for wrong in ((lengths[:31], "made", ["static"]), (lengths, "logged", ["static"]), (lengths, "made", ["fold"])):
        with refused(ValueError):
            gpu_plans.read_file(out, *wrong)


@pytest.mark.full
def test_every_part_runs_with_these_packages_alone_and_is_written(tmp_path):
    out = tmp_path / "result.json"
    done = run(out, "--only", "replay")
    assert done.returncode == 0, done.stderr
    assert "profile 0.5B has to run first" in json.loads(out.read_text())["parts"]["replay"]["skipped"]
    done = run(out)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert "nothing here is a result" in result["tiny"]
    parts = result["parts"]
    assert list(parts) == [
        "greedy", "memory", "profile 0.5B", "profile 3B", "replay", "throughput", "drafts", "reload", "training", "trl",
        "flips",
    ]  # fmt: skip
    assert not [part for part in parts.values() if {"failed", "skipped"} & set(part)]
    assert "no shipped profile" in parts["profile 0.5B"]["shipped"]
    mixed = parts["profile 0.5B"]["mixed_iterations"]
    assert mixed
    assert all(min(row["seconds"], row["without_s"]) > 0 for row in mixed)
    assert parts["profile 3B"]["shipped"]["name"] == "h100-qwen2.5-3b-tp1"
    assert parts["profile 3B"]["shipped"]["whose"] == "profile of another GPU: this is cpu"
    assert "measured on cpu" in parts["replay"]["plans_made_with"]["origin"]
    assert "needs ortools" in parts["replay"]["policies"].pop("solver")["skipped"]
    assert sorted(parts["replay"]["policies"]) == ["random", "rlhfless", "static"]
    for row in parts["replay"]["policies"].values():
        for what in ("makespan_s", "gpu_seconds"):
            assert row[f"{what}: planned / executed - 1"] == pytest.approx(row[what]["planned"] / row[what]["executed"] - 1)
    assert parts["throughput"]["tokens"] == round(parts["throughput"]["engine_tokens_per_s"] * parts["throughput"]["engine_s"])
    assert parts["reload"]["tokens_changed"]
    assert parts["reload"]["captured_again_s"] == 0
    assert parts["throughput"]["transformers_engine_s"] > 0
    assert len(parts["flips"]["rows"]) == 4
    assert parts["greedy"]["float32"] == {"equal": 8, "different": []}
    assert parts["memory"]["kv_bytes"] == parts["memory"]["kv_tensor_bytes"] > 0
    assert parts["memory"]["weight_bytes"] == parts["memory"]["weight_tensor_bytes"] > 0
    drafts = [parts["drafts"][f"length {n}"] for n in (0, 2, 4, 8)]
    assert {row["same_tokens"] for row in drafts} == {16}
    assert [row["passes"] for row in drafts] == sorted((row["passes"] for row in drafts), reverse=True)
    assert drafts[0]["passes"] == parts["drafts"]["tokens"]
    for step in parts["training"]["steps"]:
        assert step["step_s"] == pytest.approx(sum(step[f"{phase}_s"] for phase in ("sync", "generate", "prepare", "learn")))
        assert min(step[f"{phase}_s"] for phase in ("sync", "generate", "prepare", "learn")) > 0
    assert parts["training"]["summary"]["gpu_seconds"] == pytest.approx(sum(s["step_s"] for s in parts["training"]["steps"]))
    assert "not installed" in parts["trl"]["trl"]
    plans = str(out.with_name("plans_tiny.json"))
    assert started(str(BENCHMARKS / "gpu_engine.py"), "--prepare", "--tiny", "--plans", plans).returncode == 0
    assert run(out, "--only", "replay", "--policies", "solver").returncode == 0
    solver = json.loads(out.read_text())["parts"]["replay solver"]
    assert solver["plans_made_with"]["name"] == "h100-qwen2.5-3b-tp1"
    assert solver["policies"]["solver"]["makespan_s"]["executed"] > 0
    done = run(out, "--only", "flips", "--budget", "-1")
    assert done.returncode == 0, done.stderr
    again = json.loads(out.read_text())["parts"]
    assert "of the budget were left" in again["flips"]["skipped"]
    assert again["training"] == parts["training"], "the other parts are kept"


@pytest.mark.nightly
def test_one_command_runs_every_part_without_a_gpu(tmp_path):
    """With TRL, which is installed here."""
    pytest.importorskip("trl")
    out = tmp_path / "result.json"
    given = f"ARGS=--device cpu --tiny --only training,trl -o {out}"
    done = subprocess.run(["make", "gpu", given], cwd=BENCHMARKS.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    parts = json.loads(out.read_text())["parts"]
    assert list(parts) == ["training", "trl"]
    assert len(parts["trl"]["trl_steps_s"]) == len(parts["trl"]["steps_s"]) == 3
    assert parts["trl"]["ratio"] > 0


def test_what_fails_is_named_at_the_end_and_the_other_parts_run(tmp_path):
    pytest.importorskip("transformers")
    from gpu_engine import Report

    def fails():
        raise AssertionError("greedy tokens differ in float32")

    report = Report(tmp_path / "result.json", {}, 60.0, {})
    report.part("greedy", 0.0, fails)
    report.part("throughput", 0.0, lambda: {"engine_s": 1.0, "transformers_engine": {"failed": "RuntimeError: no kernel"}})
    report.part("training", 0.0, lambda: {"step_s": 1.0})
    report.part("flips", 61.0, fails)
    assert report.failed == ["greedy", "throughput: transformers_engine"]
    assert list(json.loads((tmp_path / "result.json").read_text())["parts"]) == ["greedy", "throughput", "training", "flips"]


def test_one_policy_that_fails_leaves_the_others(monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    import gpu_replay
    from gpu_engine import load

    real = gpu_replay.executed

    def executed(plan, *rest):
        if plan.policy == "random":
            raise RuntimeError("CUDA error: out of memory")
        return real(plan, *rest)

    monkeypatch.setattr(gpu_replay, "executed", executed)
    profile = gpu_workload_profile()
    lengths = np.full((4, 2), 5)
    plans = gpu_plans.prepare(lengths, "made", out=tmp_path / "plans.json")
    policies = ("static", "random", "solver")
    found = gpu_replay.replayed(load("0.5B", "cpu", True), profile, lengths, "made", plans, policies, math.inf)
    assert found["policies"]["random"] == {"failed": "RuntimeError: CUDA error: out of memory"}
    assert {"makespan_s", "gpu_seconds"} <= set(found["policies"]["static"]) & set(found["policies"]["solver"])


def gpu_workload_profile():
    """A shipped profile as the fitted one."""
    from rlhfless.latency import read_profile

    return read_profile("h100-qwen2.5-3b-tp1")


@pytest.mark.parametrize(
    ("kind", "whose"),
    [("nvidia-h100-80gb-hbm3", "of this GPU"), ("nvidia-h200", "profile of another GPU: this is nvidia-h200")],
)
def test_the_result_says_whose_profile_it_is_compared_with(kind, whose):
    pytest.importorskip("transformers")
    from gpu_parts import against_shipped

    table = load_profile("h100-qwen2.5-3b-tp1").table
    points = [(8, 128), (64, 512)]
    seconds = np.array([2 * float(table(batch, batch * context)) for batch, context in points])
    found = against_shipped(points, seconds, gpu_workload.SHIPPED["3B"], kind)
    assert (found["name"], found["whose"]) == ("h100-qwen2.5-3b-tp1", whose)
    assert found["ratio"] == pytest.approx([2.0, 2.0])
    assert found["share_within_1.5"] == 0.0
