"""The first section of a page: the verdict, levers with what they are expected to save, and nothing of assumed GPUs."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from error_messages import refused_command
from report_setting import sixteen_l40s

from rlhfless.cli import main
from rlhfless.latency.held_out_errors import HeldOut
from rlhfless.report.expected import expected_savings
from rlhfless.report.study import Assumptions, LoggedRunFindings, study_log
from rlhfless.report.write import report_html
from rlhfless.trace import OpenedLog, Trace


def log(steps: int = 3) -> Trace:
    """Return steps of 64 responses with one long one each, without times."""
    tokens = [100 + prompt for prompt in range(63)] + [1500]
    rows = [{"step": step, "prompt_id": prompt, "sample": 0, "response_tokens": tokens[prompt], "prompt_tokens": 20}
            for step in range(steps) for prompt in range(64)]  # fmt: skip
    return Trace(pd.DataFrame(rows))


def words(page: str) -> str:
    body = page[page.index("<body>") : page.index("<script>")]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def titles(page: str) -> list[str]:
    return re.findall(r"<h2 id=\"[^\"]+\">(.*?)</h2>", page)


def test_without_gpus_the_page_is_the_diagnosis_and_says_what_simulates_more() -> None:
    page = report_html(log())
    assert titles(page) == ["What limits this run", "Other schedules"]
    assert "--gpus" in words(page)
    assert "L40S" not in words(page), "no GPUs are assumed"
    assert "The long tail" in words(page)
    assert "expected (simulated)" not in words(page)


def test_scalars_are_not_simulated_unless_asked(tmp_path: Path) -> None:
    table = tmp_path / "steps.csv"
    pd.DataFrame(
        {"step": [0, 1], "seconds per step": [100.0, 110.0], "response_length/mean": 200.0, "response_length/max": 900.0}
    ).to_csv(table, index=False)
    out = tmp_path / "page.html"
    done = CliRunner().invoke(main, ["report", str(table), "-o", str(out), "--gpus", "8"])
    assert done.exit_code == 0, done.output
    assert "What limits this run" in done.stdout
    assert titles(out.read_text())[:2] == ["What limits this run", "Other schedules"]
    refused_command(CliRunner().invoke(main, ["report", str(table), "-o", str(out), "--simulate"]), "--responses-per-step")


@pytest.fixture(scope="module")
def findings() -> LoggedRunFindings:
    opened = OpenedLog(log(), pd.DataFrame({"step": []}), "")
    return study_log(opened, replace(sixteen_l40s(), time_limit_s=0.05, bound_work=0), Assumptions(), 2).findings


def checked(findings: LoggedRunFindings, errors: list[float], constant: list[float]) -> LoggedRunFindings:
    """The findings as if the profile had been checked with these errors on held-out steps."""
    seconds = np.full(len(errors), 100.0)
    held = HeldOut(
        np.arange(len(errors)), seconds, seconds * (1 + np.array(errors)), seconds * (1 + np.array(constant)), "each"
    )
    return replace(findings, calibrated=replace(findings.calibrated, steps=len(errors), checked=held))


def test_savings_are_expected_only_of_a_profile_that_beats_a_constant(findings: LoggedRunFindings) -> None:
    assert expected_savings(findings) == {}, "the log has no times"
    assert expected_savings(checked(findings, [0.2, 0.2], [0.01, 0.01])) == {}
    assert expected_savings(checked(findings, [0.01], [0.2])) == {}, "one step was held out of nothing"
    assert {"partial rollout", "assignment"} <= set(expected_savings(checked(findings, [0.01, 0.02], [0.3, 0.3])))


def test_ranges_include_the_error_of_the_profile(findings: LoggedRunFindings) -> None:
    narrow = expected_savings(checked(findings, [0.0, 0.0], [0.3, 0.3]))
    wide = expected_savings(checked(findings, [0.0, 0.1], [0.3, 0.3]))
    for kind, (low, high) in narrow.items():
        assert wide[kind][0] <= low <= high <= wide[kind][1] <= 1.0
    time_saved = dict(zip(*(findings.ways.to_frame()[name] for name in ("way", "time_saved")), strict=True))
    assert narrow["partial rollout"] == pytest.approx((time_saved["partial rollout"],) * 2)
