"""Preparation: the same results after generation or overlapping it, on its own GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from error_messages import refused
from training_samples import config

from rlhfless.trace import Trace, allocation_metrics, interval_union_s
from rlhfless.training.config import TrainError
from rlhfless.training.loop import Trainer, train
from rlhfless.training.preparation import Charge
from solver.model.latency import LatencyModel

PPO = {"algorithm": "ppo", "kl_coef": 0.05, "critic": "model"}


def test_charges_of_a_profile_are_those_of_prefilled_tokens() -> None:
    latency = LatencyModel("x", 1, base_s=1.0, per_response_s=0.0, prefill_per_token_s=0.01)
    tokens, learned = np.array([10, 30]), {"prepare_pass_tokens": 80.0, "learn_pass_tokens": 120.0, "seconds": 7.0}
    charge = Charge.by_profile(latency, tokens, learned, reward_s_per_response=0.5)
    assert charge.prepare_s.tolist() == pytest.approx([0.5 + 0.2, 0.5 + 0.6])
    assert charge.learn_s == pytest.approx(1.2)
    here = Charge.measured(tokens, learned | {"prepare_seconds": 4.0}, judging_s=1.0)
    assert here.prepare_s.tolist() == pytest.approx([0.5 + 1.0, 0.5 + 3.0])
    assert here.learn_s == pytest.approx(3.0)


def phase(trace: Trace, name: str) -> pd.DataFrame:
    return trace.spans[trace.spans["phase"] == name]


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, PPO, {"kl_coef": 0.05, "charging": "measured"}], ids=["grpo", "ppo", "measured"])
def test_overlapping_changes_when_and_where_but_nothing_else(tmp_path: Path, model: Path, options: dict[str, Any]) -> None:
    traces, weights = {}, {}
    for when in ("after", "overlap"):
        with Trainer(config(preparation=when, **options), tmp_path / when, model=model, progress=False) as trainer:
            trace = trainer.train()
        assert trace is not None
        traces[when], weights[when] = trace, trainer.state.learner.algorithm.trained.state_dict()
    after, overlap = traces["after"], traces["overlap"]
    same = ["prompt_id", "sample", "response", "reward", "response_tokens"]
    pd.testing.assert_frame_equal(after.rollouts[same], overlap.rollouts[same])
    assert weights["after"].keys() == weights["overlap"].keys()
    assert all(torch.equal(weights["after"][name], weights["overlap"][name]) for name in weights["after"])

    generated = after.rollouts.groupby("step")["end_s"].max()
    for row in phase(after, "prepare").itertuples():
        assert row.start_s >= generated[row.step]
    own = overlap.allocations[overlap.allocations["role"] == "prepare"]
    assert {gpu for ids in own["gpu_ids"] for gpu in ids} == {16}, "its GPU stands beside the cluster's sixteen"
    assert {gpu for ids in after.allocations["gpu_ids"] for gpu in ids} <= set(range(16))
    preparing, learning = (dict(list(phase(overlap, name).groupby("step"))) for name in ("prepare", "learn"))
    for step, rows in overlap.rollouts.groupby("step"):
        prepared, learned = preparing[step], learning[step]
        assert prepared["start_s"].min() == rows["end_s"].min(), "the first response is prepared at once"
        assert prepared["end_s"].max() > rows["end_s"].max(), "the last response is prepared as well"
        assert learned["start_s"].min() == prepared["end_s"].max()
        before = np.minimum(prepared["end_s"], rows["end_s"].max())
        behind = interval_union_s(prepared["start_s"], before)
        assert behind > 0, "some of it is done while others still generate"
        details = [json.loads(detail) for detail in prepared["detail"]]
        assert sum(detail["responses"] for detail in details) == len(rows)
        assert {detail["clock"] for detail in details} == {options.get("charging", "profile")}


def test_more_actors_prepare_sooner_and_hold_their_gpus_only_while_they_do(model: Path) -> None:
    ends = {}
    for actors in (1, 3):
        given = config(preparation_actors=actors, reward_s_per_response=0.01, steps=1)
        step = Trainer(given, model=model, progress=False).step()
        metrics = allocation_metrics(step.trace)
        own = metrics[metrics["role"] == "prepare"]
        assert len(own) == actors
        assert own["gpu_seconds"].sum() == pytest.approx(12 * 0.01)
        assert own["idle_gpu_seconds"].sum() == pytest.approx(0)
        ends[actors] = own["end_s"].max() - step.rollouts["end_s"].max()
    assert ends[1] == pytest.approx(0.12)
    assert ends[3] == pytest.approx(0.04)


def test_released_gpus_prepare_while_others_generate(model: Path) -> None:
    """The same weights as after generation; only GPUs of the cluster are used, each after its actor has given it back."""
    weights, ends = {}, {}
    for when in ("after", "released"):
        trainer = Trainer(config(preparation=when, policy="rlhfuse", gpus=4, steps=1), model=model, progress=False)
        step = trainer.step()
        weights[when] = trainer.model.state_dict()
        allocations = step.trace.allocations
        own = allocations[allocations["role"] == "prepare"]
        assert {gpu for ids in allocations["gpu_ids"] for gpu in ids} <= set(range(4))
        ends[when] = own["end_s"].max()
        if when == "released":
            assert own["start_s"].min() < step.rollouts["end_s"].max(), "some is done while others generate"
            released = step.trace.events[step.trace.events["name"] == "released"]
            given_back = allocations[allocations["role"] == "decode"].set_index("holder")["end_s"]
            assert released["time_s"].to_list() == given_back[released["holder"]].to_list()
    assert all(torch.equal(weights["after"][name], weights["released"][name]) for name in weights["after"])
    assert ends["released"] <= ends["after"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preparation": "before"}, ("'before'",)),
        ({"preparation": "overlap", "executor": "local"}, ()),
        ({"preparation_actors": 0}, ("preparation_actors",)),
        ({"reward_s_per_response": -1.0}, ("reward_s_per_response", "-1.0")),
        ({"preparation": "released", "preparation_actors": 2}, ("preparation_actors", "'released'")),
    ],
)
def test_wrong_options_are_refused(changes: dict[str, Any], message: tuple[str, ...]) -> None:
    with refused(TrainError, *message):
        config(**changes)


def test_there_are_gpus_for_as_many_actors_as_generated(tmp_path: Path, model: Path) -> None:
    with refused(TrainError, "preparation_actors"):
        train(config(gpus=2, preparation_actors=3), tmp_path, model=model)
    train(config(gpus=2, preparation_actors=3, preparation="overlap", steps=1), tmp_path / "own", model=model)
