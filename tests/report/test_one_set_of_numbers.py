"""One log, one set of numbers: diagnosis, report and plans name the same cost, idle share, saving, bound and step time."""

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
from rlhfless.analysis import Assumptions, account
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.style import number
from rlhfless.report.savings import percent_range, savings_table
from rlhfless.report.schedules import MAX_STEPS
from rlhfless.report.study import Findings, study
from rlhfless.report.where_time_went import time_section, waste_in_words
from rlhfless.run import Run
from rlhfless.trace import Trace, read_trace, step_metrics
from rlhfless.trace.metrics.step_metrics import total_usd

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
def logged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Findings]:
    run = rl.load(LOGGED[request.param](tmp_path_factory.mktemp("log")), verbose=False, **PRICED)  # type: ignore[arg-type]
    return run, study(run.opened, run.setting, run.assumptions, MAX_STEPS)


@pytest.fixture(scope="module", params=EXECUTED)
def executed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Any]:
    run = rl.load(EXECUTED[request.param](tmp_path_factory.mktemp("trace")), verbose=False)
    return run, study(run.opened, run.setting, None, MAX_STEPS)


def text_of(page: Page) -> str:
    rendered = page.render("")
    body = rendered[rendered.index("<h2") : rendered.index("<script>")]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def test_the_idle_share_of_a_logged_run_is_one_number(logged: tuple[Run, Findings]) -> None:
    found = logged[1]
    idle = percent_range(*found.idle_shares)
    of = "the simulated steps" if found.times.whole_steps else "generation alone"
    assert f"{idle} of the GPU-seconds of {of} are idle" in next(iter(waste_in_words(found)))
    lines = found.account.lines
    assert lines.loc[lines["kind"] == "idle", "share"].sum() == pytest.approx(found.account.idle_share)
    assert found.idle_shares[0] - 1e-9 <= found.account.idle_share <= found.idle_shares[1] + 1e-9


def test_savings_of_a_logged_run_are_one_set(logged: tuple[Run, Findings]) -> None:
    found, page = logged[1], Page("", "")
    page.section("savings")
    savings_table(page, found)
    told = text_of(page)
    for row in found.given_back.to_dict("records"):
        assert percent_range(row["GPU-seconds low"], row["GPU-seconds high"]) in told
        assert percent_range(row["time low"], row["time high"]) in told
    for row in found.reserved.to_dict("records"):
        assert percent_range(row["time low"], row["time high"]) in told


def test_step_times_of_a_plan_are_those_of_the_reports_schedules(logged: tuple[Run, Findings]) -> None:
    run, data = logged
    last = data.schedules.logged[-1].step
    compared = run.plan(step=last).compare("static")
    ours = compared.table.set_index("policy")
    for row in data.schedules.results(["static", "solver"], last).itertuples():
        for name in ("time_s", "gpu_seconds", "cost_usd", "bound_gpu_seconds"):
            assert ours.loc[row.policy, name] == pytest.approx(getattr(row, name)), name
    assert repr(compared).startswith(f"Comparison of step {last}\n")
    assert f"Step {last}: after (solver)" in compared.plot().layout.title.text


@pytest.mark.full
def test_a_log_with_times_is_planned_at_its_own_speed(tmp_path: Path) -> None:
    run = rl.load(long_and_timed(tmp_path), verbose=False, **PRICED)  # type: ignore[arg-type]
    factor = run.calibrated.latency.base_s / run.setting.latency.base_s
    assert factor > 1.5
    uncalibrated = rl.load(long_and_timed(tmp_path), verbose=False, assumptions=Assumptions(calibrate=False), **PRICED)  # type: ignore[arg-type]
    own, other = (one.plan().compare("static").table["time_s"].iloc[0] for one in (run, uncalibrated))
    assert own > 1.2 * other
    assert run.simulate(["static"], steps=run.steps[-1:]).table["time_s"].iloc[0] == pytest.approx(own)


@pytest.mark.full
def test_cost_and_idle_share_of_an_executed_run_are_what_its_allocations_say(executed: tuple[Run, Any]) -> None:
    run, _ = executed
    page, of_steps, said = Page("", ""), step_metrics(run.trace), run.diagnosis()
    time_section(page, run.trace, account(run.trace), None)
    text, uses = text_of(page), account(run.trace).lines
    total, idle = float(of_steps["gpu_seconds"].sum()), float(of_steps["idle_gpu_seconds"].sum())
    assert said.numbers["gpu_hours"].value == pytest.approx(total / 3600)
    assert said.numbers["idle_gpu_share"].value == pytest.approx(idle / total)
    assert (f"({idle / total:.1%}) idle GPU-seconds" in text) == (idle > 0)
    if (usd := total_usd(of_steps)) > 0:
        assert number(usd, "USD") in text
        assert said.numbers["usd"].value == pytest.approx(usd)
    assert uses["gpu_s"].sum() == pytest.approx(total)
    assert uses.loc[uses["kind"] == "idle", "gpu_s"].sum() == pytest.approx(idle, abs=1e-6)


def test_step_times_of_an_executed_runs_plan_are_those_of_its_report(executed: tuple[Run, Any]) -> None:
    run, found = executed
    last = found.schedules.logged[-1].step
    ours = run.plan(step=last).compare("static").table.set_index("policy")
    for row in found.schedules.results(["static", "solver"], last).itertuples():
        assert ours.loc[row.policy, "time_s"] == pytest.approx(row.time_s)
        assert ours.loc[row.policy, "gpu_seconds"] == pytest.approx(row.gpu_seconds)


@pytest.mark.full
def test_a_run_that_learns_while_it_generates_is_of_generation_alone() -> None:
    read = rl.load(lengths(2, 4, 2, 0), verbose=False, **PRICED).opened  # type: ignore[arg-type]
    run = rl.load(replace(read, framework="areal"), verbose=False, **PRICED)  # type: ignore[arg-type]
    said = " ".join(waste_in_words(study(run.opened, run.setting, run.assumptions, 2)))
    assert "of the GPU-seconds of generation alone" in said
    assert "trains asynchronously" in said


def test_without_a_price_the_diagnosis_has_no_dollars(tmp_path: Path) -> None:
    stated = {name: PRICED[name] for name in ("gpus", "profile")}
    run = rl.load(long_and_timed(tmp_path), verbose=False, **stated)  # type: ignore[arg-type]
    priced = rl.load(long_and_timed(tmp_path), verbose=False, **PRICED)  # type: ignore[arg-type]
    assert "USD" not in str(run.diagnosis())
    assert ("usd" in priced.diagnosis().numbers) == ("gpu_hours" in run.diagnosis().numbers)
