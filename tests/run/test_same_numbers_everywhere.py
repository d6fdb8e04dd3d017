"""One log, one set of numbers: plans, simulations, searches, sliders and the command line use the profile of the report.

Three logs: responses with times that are slower than the profile's, responses without times, and the trace of an executed run
on slower actors. The second of two steps has history.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from command_line import run_rlhfless

import rlhfless as rl
from rlhfless.analysis import Assumptions
from rlhfless.latency import scaled
from rlhfless.report.schedules import MAX_STEPS
from rlhfless.report.study import study
from rlhfless.run import PlannedStep, Run
from rlhfless.simulate import simulate
from rlhfless.widgets import Settings, WhatIf

PROFILE, GPUS, USD = "l40s-qwen2.5-3b-tp2", 8, 2.0
POLICIES = ["static", "random", "solver"]
NUMBERS = ["time_s", "gpu_seconds", "cost_usd", "bound_gpu_seconds"]
FACTOR = {"timed": 2.0, "no times": 1.0, "executed": 1.7}
"""Least factor that the profile is scaled by, and the exact one of the log without times."""


def responses() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    usual = rng.lognormal(5.0, 0.8, 4)
    return pd.DataFrame(
        [
            {"step": s, "prompt_id": f"p{p}", "sample": k, "prompt_tokens": 40,
             "response_tokens": int(np.clip(usual[p] * rng.lognormal(0, 0.3), 2, 2000))}
            for s in range(2) for p in range(4) for k in range(2)
        ]
    )  # fmt: skip


def loaded(source: Any, **stated: Any) -> Run:
    return rl.load(source, GPUS, PROFILE, hardware=rl.Hardware(usd_per_gpu_hour=USD), verbose=False, **stated)


def written(name: str, folder: Path) -> Path:
    table = responses()
    if name == "timed":
        begin = 1000.0 * table["step"]
        table = table.assign(start_s=begin, end_s=begin + 0.08 * table["response_tokens"])
    if name == "executed":
        setting = loaded(table).setting
        slow = replace(setting, latency=replace(scaled(setting.latency, FACTOR[name]), start_s=3.0))
        return simulate(loaded(table).rollouts, slow, ["static"]).traces["static"].save(folder / "trace")
    table.to_csv(folder / "log.csv", index=False)
    return folder / "log.csv"


class Log(NamedTuple):
    """A log with what ``run.plan().compare`` says of its last step."""

    name: str
    path: Path
    run: Run
    planned: PlannedStep
    expected: pd.DataFrame


@pytest.fixture(scope="module", params=FACTOR)
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Log:
    path = written(request.param, tmp_path_factory.mktemp("log"))
    run = loaded(path)
    planned = run.plan()
    return Log(request.param, path, run, planned, planned.compare("static", "random").table.set_index("policy"))


def command(log: Log, name: str, *options: str) -> dict[str, Any]:
    given = ["--gpus", str(GPUS), "--profile", PROFILE, "--usd-per-gpu-hour", str(USD), "--format", "json", *options]
    done = run_rlhfless(name, str(log.path), *given)
    assert done.exit_code == 0, done.output
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def agrees(rows: pd.DataFrame, expected: pd.DataFrame) -> None:
    """The rows, one per policy, have the expected time, GPU-seconds, dollars and bound."""
    rows = rows.set_index("policy")
    for policy in rows.index:
        assert rows.loc[policy, NUMBERS].tolist() == pytest.approx(expected.loc[policy, NUMBERS].tolist(), rel=1e-9)


def test_a_log_with_times_has_its_own_speed(log: Log) -> None:
    factor = log.run.times.scale.factor
    assert factor == pytest.approx(1.7) if log.name == "executed" else factor >= FACTOR[log.name]
    assert (log.run.times.scale.steps > 0) == (log.name != "no times") == (factor != 1.0)
    if log.name == "executed":
        assert log.run.calibrated.latency.start_s == pytest.approx(3.0)


def test_simulations_have_the_numbers_of_plans(log: Log) -> None:
    agrees(log.run.simulate(POLICIES, steps=[1]).table, log.expected)


def test_the_report_has_the_numbers_of_plans(log: Log) -> None:
    if log.name == "executed":
        schedules = study(log.run.opened, log.run.setting, None, MAX_STEPS).schedules
    else:
        run = log.run
        schedules = study(run.opened, run.setting, run.assumptions, MAX_STEPS).schedules
    agrees(schedules.results(POLICIES, 1), log.expected)


def test_the_command_plan_makes_the_plan_of_run_plan(log: Log) -> None:
    shown, plan = command(log, "plan"), log.planned.plan
    assert [actor["responses"] for actor in shown["actors"]] == [list(actor.responses) for actor in plan.actors]
    assert shown["makespan_s"] == pytest.approx(plan.makespan_s, rel=1e-9)
    assert shown["times"] == log.run.times.scale.to_dict()
    assert [row["policy"] for row in shown["executed"]] == ["static", "solver"]
    agrees(pd.DataFrame(shown["executed"]), log.expected)


def test_the_command_simulate_has_the_numbers_of_plans(log: Log) -> None:
    shown = command(log, "simulate", "--policies", ",".join(POLICIES))
    assert shown["times"] == log.run.times.scale.to_dict()
    rows = pd.DataFrame(shown["policies"]).rename(columns={"bound_cost_at_time": "bound_gpu_seconds"})
    assert rows["steps"].tolist() == [1, 1, 1]
    agrees(rows, log.expected)


def test_sliders_begin_with_the_numbers_of_plans(log: Log) -> None:
    explorer = log.run.explore()
    assert explorer.wait(300)
    assert explorer.planned is not None
    assert explorer.alternatives is not None
    agrees(explorer.planned.table, log.expected)
    shown = explorer.alternatives.table
    agrees(shown[shown["policy"].isin(POLICIES)], log.expected)
    assert log.run.times.scale.words() in explorer.panes.pane_facts
    copied: dict[str, Any] = {"trace": log.run.trace}
    exec(explorer.as_code()[0], copied)
    agrees(copied["planned"].table, log.expected)


def test_a_step_without_widgets_is_scaled_to_its_log(log: Log) -> None:
    agrees(WhatIf(log.run).plan(Settings(PROFILE, gpus=GPUS, usd_per_gpu_hour=USD)).table, log.expected)


def test_the_search_has_the_run_itself_with_the_numbers_of_plans(log: Log) -> None:
    found = log.run.search(gpu_kinds=["l40s"], gpus=[GPUS], gpus_per_actor=[2])
    (plans,) = found.plans.values()
    assert plans[-1].makespan_s == pytest.approx(log.planned.plan.makespan_s, rel=1e-9)
    steps = log.run.simulate(["solver"]).table
    for name in ("time_s", "gpu_seconds", "cost_usd"):
        assert found.means()[name].iloc[0] == pytest.approx(steps[name].mean(), rel=1e-9)
    assert log.run.times.scale.words() in repr(found)


def test_other_profiles_are_scaled_alike(log: Log) -> None:
    other = "h100-qwen2.5-3b-tp1"
    found = log.run.search(gpu_kinds=["h100"], gpus=[GPUS], gpus_per_actor=[1])
    planned = log.run.explore(profile=other, gpus=GPUS)
    assert planned.wait(300)
    assert planned.planned is not None
    base = rl.load(responses(), GPUS, other, verbose=False).setting.latency.base_s
    assert planned.planned.setting.latency.base_s == pytest.approx(base * log.run.times.scale.factor)
    again = rl.load(log.run.trace, GPUS, other, verbose=False, assumptions=Assumptions(calibrate=False)).setting
    scaled = replace(again, latency=log.run.times.scale.of(again.latency))
    expected = simulate(log.run.rollouts, scaled, ["solver"]).table
    for name in ("time_s", "gpu_seconds"):
        assert found.table[name].tolist() == pytest.approx(expected[name].tolist(), rel=1e-9)


@pytest.mark.full
def test_without_calibration_the_profile_stays_as_it_is(log: Log) -> None:
    plain = loaded(log.path, assumptions=Assumptions(calibrate=False))
    expected = plain.plan().compare("static", "random").table.set_index("policy")
    assert plain.calibrated.latency.base_s == plain.setting.latency.base_s
    assert (plain.times.scale.factor, plain.times.scale.steps) == (1.0, 0)
    agrees(plain.simulate(POLICIES, steps=[1]).table, expected)
    assert (expected["time_s"] < log.expected["time_s"]).all() == (log.name != "no times")


def test_a_whole_step_of_calls_says_that_its_seconds_are_not_scaled(log: Log) -> None:
    assert "not scaled to times of the log" in repr(log.run.plan_step(levers="none"))
