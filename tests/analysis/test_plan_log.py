"""A plan for every step: predictions are those of the last visit, nothing later is known, sizes follow lengths."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from error_messages import refused

from rlhfless.analysis import last_visits, plan_every_step
from rlhfless.latency import load_profile
from rlhfless.plots import plot_steps
from rlhfless.predict import EwmaPredictor
from rlhfless.simulate import SimulationConfig
from rlhfless.trace import TraceError, validate
from solver.model.cluster import Cluster

SETTING = SimulationConfig(Cluster(2, 8, 2, kind="l40s"), load_profile("l40s-qwen2.5-3b-tp2"), max_response_tokens=4000)


def rollouts(steps: int = 6, prompts: int = 24) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    rows = [
        {"step": s, "prompt_id": f"p{(p + 12 * (s % 2)) % 30}", "sample": k, "prompt_tokens": 50,
         "response_tokens": int(rng.integers(40, 400)), "finish_reason": "stop"}
        for s in range(steps) for p in range(prompts) for k in range(4)
    ]  # fmt: skip
    return validate("rollouts", pd.DataFrame(rows), "test")


def test_predictions_are_the_papers_last_visit() -> None:
    log = rollouts()
    mine = last_visits(log)
    assert mine[log["step"] == 0].isna().all()
    for step in range(1, 6):
        own, history = log[log["step"] == step], log[log["step"] < step]
        seen = own["prompt_id"].isin(history["prompt_id"])
        theirs = EwmaPredictor(1).fit(history).predict(own["prompt_id"].tolist(), max_response_tokens=4000)
        assert mine[own.index][seen].to_numpy() == pytest.approx(theirs[seen.to_numpy()])
        assert (mine[own.index].notna() == seen).all()


def test_later_steps_change_no_earlier_plan() -> None:
    log = rollouts()
    later = log.assign(response_tokens=log["response_tokens"].where(log["step"] < 4, 4000))
    before, after = plan_every_step(log, SETTING), plan_every_step(later, SETTING)
    planned = ["actors", "makespan_s", "gpu_seconds", "known"]
    pd.testing.assert_frame_equal(before.loc[:4, planned], after.loc[:4, planned])
    assert before.loc[5, "makespan_s"] != after.loc[5, "makespan_s"]


def test_plans_are_the_same_however_fast_the_clock_runs(monkeypatch) -> None:
    log = pd.concat([rollouts().assign(sample=lambda table, i=i: table["sample"] + 4 * i) for i in range(4)], ignore_index=True)
    planned = plan_every_step(log, SETTING, [4, 5])
    now = iter(range(0, 1 << 60, 1000))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(now)))
    pd.testing.assert_frame_equal(plan_every_step(log, SETTING, [4, 5]), planned)


def test_more_work_is_planned_on_more_actors() -> None:
    few = rollouts()
    more = pd.concat([few.assign(sample=few["sample"] + 4 * i) for i in range(16)], ignore_index=True)
    actors = [plan_every_step(log, SETTING, [5])["actors"].iloc[0] for log in (few, more)]
    assert actors[1] > actors[0]
    assert plan_every_step(few, SETTING)["gap"].between(0, 1).all()


def test_the_plot_shows_lengths_and_actors() -> None:
    table = pd.DataFrame({"step": [0, 1, 2], "mean_tokens": [10.0, 20.0, 30.0], "actors": [1, 2, 4]})
    fig = plot_steps(table)
    assert "rank correlation between actors and mean length 1.00" in fig.layout.title.text
    assert "rank correlation" not in plot_steps(table.assign(actors=2)).layout.title.text
    flat = pd.DataFrame({"step": [0, 1, 2, 3], "mean_tokens": [10.0, 20.0, 30.0, 40.0], "actors": [3, 1, 4, 2]})
    assert plot_steps(flat).layout.title.text.endswith("length 0.00</span>")
    assert [list(curve.y) for curve in fig.data] == [[10.0, 20.0, 30.0], [1, 2, 4]]


def test_chosen_steps_are_planned_as_among_all() -> None:
    log = rollouts()
    every = plan_every_step(log, SETTING)
    some = plan_every_step(log, SETTING, [2, 5])
    pd.testing.assert_frame_equal(every[every["step"].isin([2, 5])].reset_index(drop=True), some)
    assert plot_steps(every.iloc[:0]).layout.annotations[0].text == "There are no steps."
    with refused(TraceError, "--run"):
        plan_every_step(pd.concat([log, log.assign(run="other")]), SETTING)
