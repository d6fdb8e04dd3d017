"""Fronts of a step that is learned from after generation and while others decode: as simulated, and above the bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from every_plot import part

import solver
from rlhfless.errors import InputError
from rlhfless.latency import load_profile
from rlhfless.simulate import Comparison, LoggedStep, SimulationConfig, fusion_front, logged_steps, simulate_steps, streaming
from solver.step.work import Learner, TokenWork

pytestmark = pytest.mark.full
WEIGHTS = [0.3, 1.0]


@pytest.fixture(scope="module")
def step() -> tuple[LoggedStep, SimulationConfig]:
    rng = np.random.default_rng(0)
    rows = [
        {"run": "log", "step": 0, "epoch": 0, "prompt_id": f"p{i // 4}", "sample": i % 4, "prompt_tokens": 40,
         "finish_reason": "stop", "response_tokens": int(tokens)}
        for i, tokens in enumerate(np.clip(rng.lognormal(5, 0.8, 48), 1, 900))
    ]  # fmt: skip
    logged = next(logged_steps(pd.DataFrame(rows), max_response_tokens=900))
    work, learner = TokenWork(2e-4, 8e-4), Learner(own=2, grows=False, place="released")
    profile = load_profile("l40s-qwen2.5-3b-tp2")
    cluster = solver.Cluster(1, 16, 2, kind="l40s")
    return logged, SimulationConfig(cluster, profile, work=work, learner=learner, bound_work=0)


@pytest.fixture(scope="module")
def front(step: tuple[LoggedStep, SimulationConfig]) -> Comparison:
    return fusion_front(*step, ["random", "spread"], WEIGHTS)


def test_every_row_is_the_step_simulated_alone(front: Comparison, step: tuple[LoggedStep, SimulationConfig]) -> None:
    logged, setting = step
    learner = replace(setting.learner, streams=True, overlaps=True)
    alone = replace(setting, objective=replace(setting.objective, time_weight=1.0), learner=learner)
    expected = simulate_steps([logged], alone, ["spread"]).table.iloc[0]
    row = front.table.query("policy == 'spread' and learning == 'stream' and time_weight == 1.0").iloc[0]
    assert (row["time_s"], row["gpu_seconds"]) == (expected["time_s"], expected["gpu_seconds"])
    assert len(front.table) == 2 * 2 * len(WEIGHTS)


def test_no_step_is_below_the_bound_and_fronts_fall(front: Comparison) -> None:
    results = front.table
    assert (results["gpu_seconds"] >= results["bound_gpu_seconds"] * (1 - 1e-9)).all()
    for _, rows in results[results["on_front"]].groupby("learning"):
        assert rows["time_s"].is_monotonic_increasing
        assert rows["gpu_seconds"].is_monotonic_decreasing


def test_batch_stands_beside_stream(front: Comparison) -> None:
    table = streaming(front, 1.0)
    assert set(table.index) == {"random", "spread"}
    assert (table["speed_up"] >= 1 - 1e-9).all()  # a held learner only gains by beginning earlier
    assert table["speed_up"].tolist() == pytest.approx((table["batch_s"] / table["stream_s"]).tolist())
    assert (table["stream_gpu_s"] >= table["bound_gpu_s"] * (1 - 1e-9)).all()
    with refused(InputError, "0.5"):
        streaming(front, 0.5)


def test_work_and_time_weights_are_needed(step: tuple[LoggedStep, SimulationConfig]) -> None:
    logged, setting = step
    with refused(InputError, "work is needed"):
        fusion_front(logged, replace(setting, work=None, learner=Learner()))
    with refused(InputError):
        fusion_front(logged, setting, time_weights=[])
    with refused(InputError, "'stream'"):
        fusion_front(logged, setting, ["random", "stream"])


def test_the_figure_has_both_fronts_and_the_bound(front: Comparison) -> None:
    fig = front.plot()
    assert [trace.name for trace in fig.data if trace.showlegend is not False] == [
        "lower bound of any schedule", "learns after generation", "learns while others decode",
    ]  # fmt: skip
    assert sum(len(trace.x) for trace in fig.data if "markers" in trace.mode) == len(part(fig, "results"))
    nothing = replace(front, table=front.table.iloc[:0]).plot()
    assert "no policy has run" in nothing.layout.annotations[0].text


def test_no_step_whose_learner_starts_when_it_is_needed_is_below_the_bound(step: tuple[LoggedStep, SimulationConfig]) -> None:
    """The learner has little to do, so it starts late and is held for less than the step; one from the start is held longer."""
    logged, setting = step
    learner, work = Learner(own=2, grows=False, streams=True, overlaps=True), TokenWork(2e-6, 4e-6)
    held = simulate_steps([logged], replace(setting, work=work, learner=learner), ["random"]).table.iloc[0]
    needed = simulate_steps([logged], replace(setting, work=work, learner=learner, learner_start="needed"), ["random"])
    row = needed.table.iloc[0]
    assert row["bound_gpu_seconds"] <= row["gpu_seconds"] < held["gpu_seconds"]
    assert row["bound_gpu_seconds"] < held["bound_gpu_seconds"] <= held["gpu_seconds"]
    assert needed.bounds[0].shortest_s() <= row["time_s"]
