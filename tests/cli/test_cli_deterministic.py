"""Neither plans nor simulations depend on the clock."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import run_rlhfless

ON = ["--gpus", "8", "--gpus-per-actor", "2", "--profile", "l40s-qwen2.5-3b-tp2", "--format", "json"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two visits of 12 prompts, two samples each."""
    step, prompt, sample = (x.ravel() for x in np.meshgrid(range(2), range(12), range(2), indexing="ij"))
    tokens = np.random.default_rng(0).integers(5, 300, len(step))
    table = {"step": step, "prompt_id": prompt, "sample": sample, "prompt_tokens": 30, "response_tokens": tokens}
    pd.DataFrame(table).to_csv(tmp_path / "log.csv", index=False)
    return tmp_path / "log.csv"


def said(command: str, log: Path, *options: str) -> dict:
    """What the command prints, without the seconds that planning took."""
    result = run_rlhfless(command, str(log), *ON, *options)
    assert result.exit_code == 0, result.stderr
    read = json.loads(result.stdout)
    read.pop("solve_s", None)
    for line in read.get("history", []):
        line.pop("at_s")
    for row in (*read.get("policies", []), *read.get("without_history", [])):
        assert row.pop("planning_s") >= row.pop("planning_delay_s") >= 0
    return read


PLANS = {
    "policy": [],
    "deadline": ["--limit", "60s"],
    "several kinds": ["--pool", "4:h100-qwen2.5-3b-tp1:2.5"],
}


@pytest.mark.parametrize(
    ("command", "options"),
    [*(("plan", options) for options in PLANS.values()), ("simulate", ["--policies", "random,solver,oracle"])],
    ids=[*PLANS, "simulate"],
)
def test_a_clock_that_races_changes_nothing(log, monkeypatch, command, options):
    first = said(command, log, *options)
    now = iter(range(0, 1 << 60, 1000))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(now)))
    assert said(command, log, *options) == first
