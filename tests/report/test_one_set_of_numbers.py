"""One log, one set of numbers: verdict, report and figures name the same cost, idle share, saving, bound and step time."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import rlhfless as rl
from rlhfless.plots import overview_info
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import number
from rlhfless.report.changes import changes_of
from rlhfless.report.executed_run import executed_first_screen, executed_savings_section
from rlhfless.report.executed_study import study_executed
from rlhfless.report.first_screen import in_short, uses_of_run
from rlhfless.report.logged_run import idle_in_words
from rlhfless.report.savings import at_most, percent_range, saved, savings_in_short
from rlhfless.report.schedules import MAX_STEPS
from rlhfless.report.study import ADVISED, Assumptions, ReportData
from rlhfless.run import Run
from rlhfless.trace import Trace, read_trace

TRACES = Path(__file__).parents[2] / "data" / "traces"
PRICED = {"gpus": 8, "profile": "l40s-qwen2.5-3b-tp2", "hardware": rl.Hardware(usd_per_gpu_hour=2.0)}


def lengths(steps: int, prompts: int, samples: int, seed: int) -> pd.DataFrame:
    """Responses of prompts that come again."""
    rng = np.random.default_rng(seed)
    usual = rng.lognormal(5.5, 0.8, prompts)
    rows = [
        {"step": s, "prompt_id": f"p{p}", "sample": k, "prompt_tokens": 40,
         "response_tokens": int(np.clip(usual[p] * rng.lognormal(0, 0.3), 2, 3000))}
        for s in range(steps) for p in range(prompts) for k in range(samples)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def short(folder: Path) -> Path:
    """A csv of three steps."""
    lengths(3, 6, 4, 0).to_csv(folder / "short.csv", index=False)
    return folder / "short.csv"


def long_and_timed(folder: Path) -> Path:
    """A csv with more steps than are simulated, and responses with times that are slower than the profile's."""
    rows = lengths(MAX_STEPS + 3, 4, 2, 1)
    begin = 1000.0 * rows["step"]
    rows.assign(start_s=begin, end_s=begin + 0.02 * rows["response_tokens"]).to_csv(folder / "timed.csv", index=False)
    return folder / "timed.csv"


def of_steps(name: str, steps: int) -> Callable[[Path], Trace]:
    """The first steps of a shipped trace."""

    def read(_: Path) -> Trace:
        whole = read_trace(TRACES / name)
        tables = {table: getattr(whole, table) for table in ("rollouts", "allocations", "spans", "events")}
        return whole.with_rows(**{table: rows[rows["step"] < steps] for table, rows in tables.items()})

    return read


LOGGED = {"short": short, "long and timed": long_and_timed}
EXECUTED = {
    "reasoning-static": of_steps("reasoning-static", 2),
    "arithmetic-grpo": of_steps("arithmetic-grpo", 2),
    "arithmetic-grpo-drafts": of_steps("arithmetic-grpo-drafts", 2),
}


@pytest.fixture(scope="module", params=LOGGED)
def logged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, ReportData]:
    run = rl.load(LOGGED[request.param](tmp_path_factory.mktemp("log")), verbose=False, **PRICED)  # type: ignore[arg-type]
    return run, run.study().data


@pytest.fixture(scope="module", params=EXECUTED)
def executed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Any]:
    run = rl.load(EXECUTED[request.param](tmp_path_factory.mktemp("trace")), verbose=False)
    return run, study_executed(run.trace, run.setting, MAX_STEPS)


def text_of(page: Page) -> str:
    rendered = page.render("")
    body = rendered[rendered.index("<h2") : rendered.index("<script>")]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


@pytest.mark.full
def test_cost_and_idle_share_of_a_logged_run_are_the_reports(logged: tuple[Run, ReportData]) -> None:
    run, data = logged
    verdict, found = run.verdict, data.findings
    said, headline = str(verdict), next(in_short(found))
    assert verdict.usd == pytest.approx(found.cost.usd)
    cost, idle = number(found.cost.usd, "USD"), percent_range(*found.idle_of_run)
    assert f"({cost}) were idle" in said
    assert cost in headline
    assert f"{idle} of" in said
    assert f"({idle}) of it went to idle GPUs" in headline
    assert f"{idle} of the run's GPU-seconds are idle" in next(iter(idle_in_words(found)))
    assert f"({len(run.steps)} steps, " in said
    pd.testing.assert_frame_equal(verdict.uses, uses_of_run(found))


def test_savings_of_a_logged_run_are_the_reports(logged: tuple[Run, ReportData]) -> None:
    run, data = logged
    verdict, found = run.verdict, data.findings
    rows = found.given_back.set_index("policy").loc[list(ADVISED)].reset_index()
    pd.testing.assert_frame_equal(verdict.savings, rows[verdict.savings.columns], rtol=1e-9)
    row = found.tied.iloc[0]
    sentences = list(savings_in_short(found))
    named = (f"{saved(row, 'GPU-seconds')} of the GPU-seconds", f"saves {at_most(row, 'GPU-seconds')}")
    assert any(all(name in sentence for name in named) for sentence in sentences)
    assert verdict.advised is not None
    assert verdict.advised["policy"] == row["policy"]
    assert all(name in str(verdict) for name in named)


def test_a_change_of_replicas_says_under_which_schedule(logged: tuple[Run, ReportData]) -> None:
    for change in changes_of(logged[1].findings):
        if "replica" in change.what:
            assert "assigned as the run did" in change.needs


def test_step_times_of_a_plan_are_those_of_the_reports_schedules(logged: tuple[Run, ReportData]) -> None:
    run, data = logged
    last = data.schedules.logged[-1].step
    compared = run.plan(step=last).compare("static")
    ours = compared.results.set_index("policy")
    for row in data.schedules.results(["static", "solver"], last).itertuples():
        for name in ("time_s", "gpu_seconds", "cost_usd", "bound_gpu_seconds"):
            assert ours.loc[row.policy, name] == pytest.approx(getattr(row, name)), name
    assert repr(compared).startswith(f"Simulation of step {last}\n")
    assert f"Step {last}: after (solver)" in compared.plot().layout.title.text


@pytest.mark.full
def test_a_log_with_times_is_planned_at_its_own_speed(tmp_path: Path) -> None:
    run = rl.load(long_and_timed(tmp_path), verbose=False, **PRICED)  # type: ignore[arg-type]
    factor = run.calibrated.latency.base_s / run.setting.latency.base_s
    assert factor > 1.5
    uncalibrated = rl.load(long_and_timed(tmp_path), verbose=False, assumptions=Assumptions(calibrate=False), **PRICED)  # type: ignore[arg-type]
    own, other = (one.plan().compare("static").results["time_s"].iloc[0] for one in (run, uncalibrated))
    assert own > 1.2 * other
    assert run.simulate(["static"], steps=run.steps[-1:]).steps["time_s"].iloc[0] == pytest.approx(own)


@pytest.mark.full
def test_cost_and_idle_share_of_an_executed_run_are_the_reports(executed: tuple[Run, Any]) -> None:
    run, found = executed
    verdict, page = run.verdict, Page("", "")
    executed_first_screen(page, run.trace, found)
    text, said = text_of(page), str(verdict)
    assert f"Your {len(verdict.steps)} steps" in text
    if verdict.amounts.is_priced:
        assert number(verdict.usd, "USD") in said
        assert number(verdict.usd, "USD") in text
    idle = percent_range(*verdict.idle_shares)
    assert f"{idle} of {number(verdict.gpu_seconds, digits=4)} GPU-seconds" in said
    assert f"({idle}) of it went to idle GPUs" in text or ("none of it went to idle GPUs" in text and idle == "0.0%")


@pytest.mark.full
def test_savings_of_an_executed_run_are_the_reports(executed: tuple[Run, Any]) -> None:
    run, found = executed
    verdict, first, folded = run.verdict, Page("", ""), Page("", "")
    rows = found.given_back.set_index("policy").loc[list(ADVISED)].reset_index()
    pd.testing.assert_frame_equal(verdict.savings, rows[verdict.savings.columns], rtol=1e-9)
    executed_first_screen(first, run.trace, found)
    executed_savings_section(folded, run.trace, found)
    said, headline = str(verdict), text_of(first)
    if verdict.advised is None:
        assert "is certain to save anything" in said
        assert "no change that was simulated is certain to save anything" in headline
        assert overview_info(verdict.uses, verdict.advised).schedule == ""
        return
    row = verdict.advised
    assert percent_range(row["GPU-seconds low"], row["GPU-seconds high"]) in headline
    assert f"{saved(row, 'GPU-seconds')} of the GPU-seconds" in said
    assert f"saves {at_most(row, 'GPU-seconds')}" in said
    assert f"{saved(row, 'GPU-seconds')} of the GPU-seconds" in text_of(folded)
    if verdict.amounts.is_priced:
        dollars = verdict.amounts.between(float(row["GPU-seconds low"]), float(row["GPU-seconds high"]))
        assert dollars in said
        assert dollars in headline


def test_step_times_of_an_executed_runs_plan_are_those_of_its_report(executed: tuple[Run, Any]) -> None:
    run, found = executed
    last = found.schedules.logged[-1].step
    ours = run.plan(step=last).compare("static").results.set_index("policy")
    for row in found.schedules.results(["static", "solver"], last).itertuples():
        assert ours.loc[row.policy, "time_s"] == pytest.approx(row.time_s)
        assert ours.loc[row.policy, "gpu_seconds"] == pytest.approx(row.gpu_seconds)


def test_a_run_that_has_the_advised_schedule_is_told_so(executed: tuple[Run, Any]) -> None:
    verdict = executed[0].verdict
    own = str(verdict.tied["policy"].iloc[0])
    had = replace(verdict, policy=own)
    assert had.advised is None
    assert f"the run's own policy {own}" in str(had)


def test_a_run_that_learns_while_it_generates_has_no_idle_share() -> None:
    logged = lengths(2, 4, 2, 0)
    read = rl.load(logged, verbose=False, **PRICED).log  # type: ignore[arg-type]
    run = rl.load(replace(read, framework="areal"), verbose=False, **PRICED)  # type: ignore[arg-type]
    assert np.isnan(run.verdict.idle_share)
    assert "is not known, because the run learns while it generates" in str(run.verdict)


def test_amounts_that_the_report_does_not_know_are_not_in_the_verdict() -> None:
    run = rl.load(lengths(2, 4, 2, 0), verbose=False)
    assert "of the GPU time was idle" in str(run.verdict)
    assert "USD" not in str(run.verdict)
