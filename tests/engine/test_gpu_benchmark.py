"""The benchmark for GPUs, as far as it can be run without one: with tiny shapes, and only the packages that it may need."""

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import gpu_workload

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
ABSENT = ("pandas", "pyarrow", "ortools", "click", "plotly", "IPython", "ipywidgets")
ALONE = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({ABSENT}))
sys.path.insert(0, {str(BENCHMARKS)!r})
sys.argv = ["gpu_engine.py", *sys.argv[1:]]
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


def run(out, *options):
    command = [sys.executable, "-c", ALONE, "--device", "cpu", "--tiny", "-o", str(out), *options]
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS.parents[1])}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.full
def test_every_part_runs_and_is_written(tmp_path):
    out = tmp_path / "result.json"
    done = run(out, "--only", "replay")
    assert done.returncode == 0, done.stderr
    assert "profile 0.5B has to run first" in json.loads(out.read_text())["parts"]["replay"]["skipped"]
    done = run(out)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    parts = result["parts"]
    assert list(parts) == ["profile 0.5B", "profile 3B", "replay", "throughput", "flips"]
    assert not [part for part in parts.values() if {"failed", "skipped"} & set(part)]
    assert "no shipped profile" in parts["profile 0.5B"]["shipped"]
    assert parts["profile 3B"]["shipped"]["name"] == "h100-qwen2.5-3b-tp1"
    for name in ("static", "random", "rlhfless", "solver"):
        row = parts["replay"]["policies"][name]
        for what in ("makespan_s", "gpu_seconds"):
            assert row[f"{what}: planned / executed - 1"] == pytest.approx(row[what]["planned"] / row[what]["executed"] - 1)
    assert parts["throughput"]["tokens"] == round(parts["throughput"]["engine_tokens_per_s"] * parts["throughput"]["engine_s"])
    assert len(parts["flips"]["rows"]) == 4
    assert run(out, "--only", "replay", "--policies", "solver").returncode == 0
    assert list(json.loads(out.read_text())["parts"]["replay solver"]["policies"]) == ["solver"]
    done = run(out, "--only", "flips", "--budget", "-1")
    assert done.returncode == 0, done.stderr
    again = json.loads(out.read_text())["parts"]
    assert "of the budget were left" in again["flips"]["skipped"]
    assert again["replay"] == parts["replay"], "the other parts are kept"


def test_one_policy_that_fails_leaves_the_others(monkeypatch):
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
    found = gpu_replay.replayed(load("0.5B", "cpu", True), profile, lengths, ("static", "random", "solver"), math.inf)
    assert found["policies"]["random"] == {"failed": "RuntimeError: CUDA error: out of memory"}
    assert {"makespan_s", "gpu_seconds"} <= set(found["policies"]["static"]) & set(found["policies"]["solver"])


def gpu_workload_profile():
    """A shipped profile as the fitted one."""
    from rlhfless.latency import read_profile

    return read_profile("h100-qwen2.5-3b-tp1")
