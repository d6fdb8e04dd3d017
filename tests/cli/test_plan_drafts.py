"""``rlhfless plan --drafts``: fewer seconds than without, the drafts in the plan, and refusals in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from command_line import Result, run_rlhfless
from error_messages import refused_command
from syrupy.assertion import SnapshotAssertion

from rlhfless.simulate import STRONG

PROFILE = "l40s-qwen2.5-3b-tp2"


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rows = [(v, f"q{p}", s, 30, 40 * (1 + p) + 10 * s) for v in (0, 1) for p in range(6) for s in (0, 1)]
    return pd.DataFrame(rows, columns=["step", "prompt_id", "sample", "prompt_tokens", "response_tokens"])


def plan(table: pd.DataFrame, folder: Path, *options: str) -> Result:
    table.to_csv(folder / "log.csv", index=False)
    given = ["plan", str(folder / "log.csv"), "--gpus", "8", "--profile", PROFILE]
    return run_rlhfless(*given, *options)


def test_a_step_is_planned_on_the_latency_with_drafts_and_the_text_says_so(
    table: pd.DataFrame, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    without, strong = (
        json.loads(plan(table, tmp_path, *options, "--format", "json").stdout) for options in ([], ["--drafts", "strong"])
    )
    assert strong["makespan_s"] < without["makespan_s"]
    assert "drafting" not in without
    assert (strong["drafting"]["length"], strong["predicted_survival"]) == ("adaptive", STRONG.survival.tolist())
    refused = json.loads(plan(table, tmp_path, "--drafts", "A0", "--format", "json").stdout)
    assert refused["makespan_s"] == without["makespan_s"], "drafts that are never accepted are not drafted"
    shown = plan(table, tmp_path, "--drafts", "A0.7").stdout.splitlines()
    assert [line for line in shown if "drafts" in line] == snapshot


def test_every_kind_of_gpu_drafts(table: pd.DataFrame, tmp_path: Path) -> None:
    pool = ["--pool", "4:h100-qwen2.5-3b-tp1:2.5"]
    without, strong = (
        json.loads(plan(table, tmp_path, *pool, *options, "--format", "json").stdout)
        for options in ([], ["--drafts", "strong"])
    )
    assert strong["makespan_s"] < without["makespan_s"]


@pytest.mark.parametrize("given", ["log", "A1.5"])
def test_what_names_no_acceptance_is_refused(table: pd.DataFrame, tmp_path: Path, given: str) -> None:
    refused_command(plan(table, tmp_path, "--drafts", given), "--drafts", given)
