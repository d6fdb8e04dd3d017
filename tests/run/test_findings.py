"""``run.findings()``: the numbers of the report as tables and JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from what_if_runs import small_run

import rlhfless as rl
from rlhfless.analysis.draft_configuration import DraftConfiguration
from rlhfless.analysis.draft_savings import DraftSavings
from rlhfless.analysis.what_ifs.compare import compare_ways
from rlhfless.errors import InputError
from rlhfless.report import Findings
from rlhfless.run import Run
from rlhfless.trace import OpenedLog, Trace
from solver.model.acceptance import Acceptance
from solver.timing.draft_length import DraftLength


@pytest.fixture(scope="module")
def run() -> Run:
    rng = np.random.default_rng(0)
    rows = [(s, f"p{p}", k, 40, int(rng.integers(50, 900))) for s in range(3) for p in range(8) for k in range(2)]
    table = pd.DataFrame(rows, columns=["step", "prompt_id", "sample", "prompt_tokens", "response_tokens"])
    log = OpenedLog(Trace(table), pd.DataFrame({"step": []}), "verl")
    return rl.load(log, gpus=8, profile="l40s-qwen2.5-3b-tp2", verbose=False)


@pytest.fixture(scope="module")
def found(run: Run) -> Findings:
    return run.findings(max_steps=2)


def test_findings_are_the_numbers_of_the_report(run: Run, found: Findings, tmp_path: Path) -> None:
    assert isinstance(found, Findings)
    report = json.loads(run.report(tmp_path / "r.json", max_steps=2, verbose=False).read_text())["simulated"]
    untimed = [{k: v for k, v in one.items() if k != "schedules"} for one in (report, json.loads(found.to_json()))]
    assert untimed[0].keys() == untimed[1].keys()
    for name in ("idle_shares", "uses", "savings", "gpu_counts", "router", "splits", "assumed"):
        assert untimed[0][name] == untimed[1][name], name
    assert all(row["usd"] >= 0.0 for row in report["uses"]), "the list price of the GPU that the profile names"
    assert sum(row["usd"] for row in report["uses"]) > 0


def test_the_json_has_every_number_of_replicas_and_the_router(found: Findings) -> None:
    shown = json.loads(found.to_json())
    counts = found.counts
    assert len(shown["gpu_counts"]) == len(counts) > 1
    own, other = shown["gpu_counts"][:2]
    assert (own["time_saved_mean"], own["cost_saved_mean"]) == (0.0, 0.0)
    assert own["time_low_s"] <= own["time_s"] == counts["time_s"].iloc[0] <= own["time_high_s"]
    saved = [f"time_saved_{name}" for name in ("low", "mean", "high")]
    assert [other[name] for name in saved] == counts.iloc[1][saved].tolist()
    assert found.router is not None
    assert shown["router"]["mean"] == found.router.mean
    assert shown["router"]["recommended"] is found.router.is_recommended
    assert shown["idle_shares"] == [one.idle_share for one in found.accounts]


def test_findings_print_in_a_few_lines_and_show_every_table(found: Findings) -> None:
    said, shown = repr(found), found._repr_html_()
    assert len(said.splitlines()) < 20
    assert len(said) < 1500
    assert "% of" in said
    assert {"GPU-seconds by use", "savings of other schedules", "plan of every step"} <= set(found.tables)
    for name, table in found.tables.items():
        assert f"{name}: {len(table)} rows" in said
        assert name in shown
    assert f"{found.counts['replicas'].iloc[1]}" in shown
    assert "0x" not in said


def test_the_json_has_ways_and_drafts(found: Findings) -> None:
    drafts = DraftConfiguration("suffix", "earlier", (DraftLength(1, 8, 4, 1.2),), Acceptance.geometric(0.6, 4))
    savings = DraftSavings(drafts, 4, 0.1, 0.2, 0.3, 2.5, "tokens", 16)
    ways = compare_ways(small_run())
    shown = json.loads(replace(found, ways=ways, drafts=(savings,)).to_json())
    assert [row["way"] for row in shown["ways"]["rows"]] == ways.means()["way"].tolist()
    assert len(shown["ways"]["knobs"]) == len(ways.knobs)
    assert shown["ways"]["left_out"] == dict(ways.left_out)
    (row,) = shown["drafts"]
    assert (row["method"], row["low"], row["speculative_config"]["num_speculative_tokens"]) == ("suffix", 0.1, 4)


def test_wrong_arguments_and_logs_without_gpus_are_refused(run: Run) -> None:
    for wrong in (0, "8", None):
        with refused(InputError, "max_steps", wrong):
            run.findings(max_steps=wrong)  # type: ignore[arg-type]
    with refused(InputError, "gpus"):
        rl.load(run.rollouts, verbose=False).findings()
