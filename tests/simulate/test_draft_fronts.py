"""Fronts with and without drafts: what is on them, their bounds, and settings that are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from error_messages import refused

import solver
from rlhfless.errors import InputError
from rlhfless.simulate import STRONG, DrawnDrafts, LoggedStep, SimulationConfig, draft_fronts, logged_steps, simulate_steps
from solver.model.objective import NonGenerationPhases

LATENCY = solver.LatencyModel("x", 1, base_s=5e-3, per_response_s=1e-4, per_kv_token_s=1e-8, max_batch=256)
SETTING = SimulationConfig(solver.Cluster(1, 8, 1), LATENCY, drafts=DrawnDrafts(STRONG))


@pytest.fixture(scope="module")
def logged() -> LoggedStep:
    rng = np.random.default_rng(0)
    rows = [("r", v, v, f"q{p}", s, 30, int(rng.integers(10, 300))) for v in (0, 1) for p in range(6) for s in range(4)]
    columns = ["run", "step", "epoch", "prompt_id", "sample", "prompt_tokens", "response_tokens"]
    (step,) = logged_steps(pd.DataFrame(rows, columns=columns).assign(finish_reason="stop"), steps=[1])
    return step


@pytest.mark.parametrize("phases", [NonGenerationPhases(), NonGenerationPhases(prepare_s=0.5, learn_s=1.0, learner_gpus=2)])
def test_each_policy_runs_at_each_time_weight_above_its_bound(logged: LoggedStep, phases: NonGenerationPhases) -> None:
    setting, policies = replace(SETTING, phases=phases), ["random", "spec-fixed-2", "spec", "spec+critical"]
    fronts = draft_fronts(logged, setting, policies, [0.2, 0.9])
    table = fronts.table
    assert table["policy"].drop_duplicates().tolist() == policies
    assert table.groupby("policy")["time_weight"].apply(set).tolist() == [{0.2, 0.9}] * 4
    weighed = replace(setting, objective=solver.Objective(0.9))
    same = simulate_steps([logged], weighed, ["spec"]).table[["time_s", "gpu_seconds"]].to_numpy().tolist()
    spec = table[(table["policy"] == "spec") & (table["time_weight"] == 0.9)]
    assert spec[["time_s", "gpu_seconds"]].to_numpy().tolist() == same
    for bound, drafts in (("one_token", False), ("with_drafts", True)):
        curve = fronts.curves[bound]
        assert (np.diff(curve["gpu_seconds"].replace(np.inf, 1e9)) <= 1e-9).all() or phases.learner_gpus
        for row in table[table["policy"].ne("random") == drafts].itertuples():
            later = curve[curve["time_s"] >= row.time_s]
            assert later.empty or row.gpu_seconds >= later["gpu_seconds"].iloc[0] - phases.learner_gpus * (
                later["time_s"].iloc[0] - row.time_s
            )
    assert (fronts.curves["with_drafts"]["gpu_seconds"] <= fronts.curves["one_token"]["gpu_seconds"]).all()


def test_a_front_has_what_no_other_result_of_its_policy_beats(logged: LoggedStep) -> None:
    table = draft_fronts(logged, SETTING, ["random", "spec"], [0.0, 0.3, 0.6, 0.9, 1.0]).table
    for _, rows in table.groupby("policy"):
        for row in rows.itertuples():
            others = rows.drop(index=row.Index)
            beaten = (others["time_s"] <= row.time_s) & (others["gpu_seconds"] <= row.gpu_seconds)
            strictly = (others["time_s"] < row.time_s) | (others["gpu_seconds"] < row.gpu_seconds)
            if row.on_front:
                assert not (beaten & strictly).any()
            else:
                assert beaten.any()


def test_drafts_and_time_weights_are_needed(logged: LoggedStep) -> None:
    with refused(InputError, "drafts"):
        draft_fronts(logged, replace(SETTING, drafts=None))
    with refused(InputError, "time weight"):
        draft_fronts(logged, SETTING, time_weights=[])
