"""What an executed run could have saved: against itself nothing, of what is fixed nothing, never more than the bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rlhfless.analysis import OwnTimes, own_times, savings, step_parts
from rlhfless.latency import load_profile, scaled
from rlhfless.report.study import study
from rlhfless.simulate import Comparison, SimulationConfig, simulate
from rlhfless.trace import OpenedLog, Trace
from solver.model.cluster import Cluster

SETTING = SimulationConfig(Cluster(1, 8, 2, kind="l40s", usd_per_gpu_hour=3.6), load_profile("l40s-qwen2.5-3b-tp2"))
POLICIES = ("static", "random", "fold")


def rollouts(steps: int = 4, prompts: int = 12) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    rows = [
        {"run": "r", "step": s, "epoch": s, "prompt_id": f"p{p}", "sample": k, "prompt_tokens": 50,
         "response_tokens": int(np.clip(rng.lognormal(5 + 0.1 * p, 0.4), 1, 1500)), "finish_reason": "stop"}
        for s in range(steps) for p in range(prompts) for k in range(4)
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def simulation() -> Comparison:
    return simulate(rollouts(), SETTING, ["static", "random", "fold"])


def opened(trace: Trace) -> OpenedLog:
    return OpenedLog(trace, pd.DataFrame({"step": []}), "")


def times_of(trace: Trace) -> OwnTimes:
    return own_times(opened(trace), SETTING)


def learning(trace: Trace, seconds: float, gpus: int = 1) -> Trace:
    """The trace with a learner of so many GPUs beside the cluster, held all the step, that learns after generation."""
    held, worked = trace.allocations.copy(), trace.spans.copy()
    more: list[dict[str, Any]] = []
    for step, own in held.groupby("step"):
        begin, end = float(own["start_s"].min()), float(own["end_s"].max())
        ids = [100 * (int(str(step)) + 1) + i for i in range(gpus)]  # steps of this trace follow without a rest between them
        more.append({**own.iloc[0].to_dict(), "holder": "learner", "role": "learner", "gpu_ids": ids, "start_s": begin,
                     "end_s": end + seconds})  # fmt: skip
        span = {"run": "r", "step": step, "holder": "learner", "phase": "learn", "start_s": end, "end_s": end + seconds}
        worked = pd.concat([worked, pd.DataFrame([span])], ignore_index=True)
    held = pd.concat([held, pd.DataFrame(more)], ignore_index=True)
    return Trace(trace.rollouts, held, worked, trace.events, meta=trace.meta)


def test_a_step_is_generation_what_waits_for_it_and_other_phases() -> None:
    same = {"run": "r", "step": 0, "kind": "l40s", "usd_per_gpu_s": 0.01}
    held = [
        {"holder": "actor-0", "role": "decode", "gpu_ids": [0, 1], "start_s": 0.0, "end_s": 4.0, **same},
        {"holder": "actor-1", "role": "decode", "gpu_ids": [2, 3], "start_s": 0.0, "end_s": 10.0, **same},  # held on
        {"holder": "learner", "role": "learner", "gpu_ids": [4], "start_s": 0.0, "end_s": 10.0, **same},
    ]
    spans = [
        {"holder": "actor-0", "phase": "decode", "start_s": 1.0, "end_s": 4.0, "run": "r", "step": 0},
        {"holder": "actor-1", "phase": "decode", "start_s": 0.5, "end_s": 3.0, "run": "r", "step": 0},
        {"holder": "learner", "phase": "prepare", "start_s": 3.0, "end_s": 5.0, "run": "r", "step": 0},
        {"holder": "learner", "phase": "learn", "start_s": 5.0, "end_s": 10.0, "run": "r", "step": 0},
    ]
    row = step_parts(Trace(rollouts(1), held, spans)).iloc[0]
    assert (row["time_s"], row["generation_s"], row["working_s"], row["fixed_s"]) == (10.0, 4.0, 3.0, 6.0)
    assert (row["gpu_s"], row["generation_gpu_s"]) == (8.0 + 20.0 + 10.0, 28.0)
    assert row["waiting_gpus"] == pytest.approx(3.0 / 4.0)  # until its preparation began
    assert row["fixed_gpu_s"] == pytest.approx(7.0)


def test_a_trace_without_generation_has_no_steps() -> None:
    learns = {"holder": "learner", "role": "learner", "gpu_ids": [4], "start_s": 0.0, "end_s": 10.0, "run": "r", "step": 0}
    assert step_parts(Trace(rollouts(1), [{**learns, "kind": "l40s", "usd_per_gpu_s": 0.0}])).empty


@pytest.mark.parametrize("policy", ["static", "random", "fold"])
def test_against_itself_a_run_saves_nothing(simulation: Comparison, policy: str) -> None:
    took = step_parts(learning(simulation.traces[policy], 3.0))
    row = savings(simulation, (policy,), [took]).iloc[0]
    own = row.drop(["policy", "replicas low", "replicas high", "time most", "GPU-seconds most"]).astype(float)
    assert own.to_numpy() == pytest.approx(0.0, abs=1e-9)


def test_work_that_no_schedule_changes_dilutes_savings(simulation: Comparison) -> None:
    trace = simulation.traces["static"]
    alone, whole = (savings(simulation, ("fold",), [step_parts(t)]).iloc[0] for t in (trace, learning(trace, 60.0)))
    assert 0 < whole["GPU-seconds mean"] < alone["GPU-seconds mean"]
    assert whole["time most"] < 0.5 * alone["time most"]
    for row in (alone, whole):
        assert row["time high"] <= row["time most"] + 1e-9
        assert row["GPU-seconds high"] <= row["GPU-seconds most"] + 1e-9


def test_a_run_that_was_slower_than_its_profile_corrects_it() -> None:
    slow = replace(SETTING, latency=replace(scaled(SETTING.latency, 1.7), start_s=5.0))
    trace = simulate(rollouts(), slow, ["static"]).traces["static"]
    times = times_of(trace)
    latency, found = times.setting.latency, times.calibrated
    assert times.checks[0].ours == pytest.approx(step_parts(trace)["working_s"].mean() / 1.7)
    assert (found.factor, found.steps) == (pytest.approx(1.7, rel=1e-6), 4)
    assert (latency.start_s, latency.sync_s) == (pytest.approx(5.0), pytest.approx(slow.latency.sync_s))
    assert latency.base_s == pytest.approx(slow.latency.base_s)


def test_steps_whose_responses_moved_correct_nothing(simulation: Comparison) -> None:
    trace = simulation.traces["static"]
    moved = [{"run": "r", "step": s, "time_s": 0.1, "name": "move"} for s in (0, 1, 2, 3)]
    trace = Trace(trace.rollouts, trace.allocations, trace.spans, moved)
    found = times_of(trace).calibrated
    assert (found.factor, found.steps) == (1.0, 0)


def test_findings_of_an_executed_run_count_its_other_phases(simulation: Comparison) -> None:
    found = study(opened(learning(simulation.traces["static"], 6.0)), SETTING, None, 2)
    assert found.times.calibrated.factor == pytest.approx(1.0)
    assert found.took["fixed_s"].to_numpy() == pytest.approx(6.0)
    assert found.given_back["GPU-seconds mean"].max() > 0.1  # static holds all GPUs until the last response
