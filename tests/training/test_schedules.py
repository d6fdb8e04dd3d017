"""Scheduling changes nothing about learning: whatever plans and moves responses, tokens, rewards and weights are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from training_samples import config

from rlhfless.scheduling.replan import SolverReplan
from rlhfless.training.loop import Trainer

SAME = ["step", "prompt_id", "sample", "response_tokens", "finish_reason", "response", "reward"]
SCHEDULES = {
    "static": {"policy": "static"},
    "rlhfless": {"policy": "rlhfless", "tau": 0.3},
    "solver+replan": {"policy": "solver+replan"},
    "replan on few": {"policy": "solver+replan", "gpus": 4, "time_weight": 0.2, "preparation": "overlap"},
    "always replan": {"policy": "solver+replan", "time_weight": 0.95},
    "fold": {"policy": "fold"},
}  # fmt: skip
PLANNERS = {"always replan": SolverReplan(looks_ahead=False)}  # else it finds that moving is not worth it in steps so short
MOVES = ("rlhfless", "always replan", "fold")


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_schedules_give_the_same_tokens_rewards_and_weights(tmp_path: Path, model: Path, algorithm: str) -> None:
    found: dict[str, tuple[pd.DataFrame, dict[str, Any], list[Any], pd.DataFrame]] = {}
    for name, schedule in SCHEDULES.items():
        options = config(algorithm=algorithm, max_response_tokens=96, samples_per_prompt=6, **schedule)
        with Trainer(options, tmp_path / name, model=model, planner=PLANNERS.get(name), progress=False) as trainer:
            trainer.train()
        trace, weights = trainer.state.trace, trainer.state.learner.algorithm.trained.state_dict()
        assert trace is not None
        moved = trace.spans[trace.spans["phase"] == "migrate"]
        found[name] = (trace.rollouts[SAME], weights, trace.allocations["end_s"].tolist(), moved)
    rollouts, weights, *_ = found["static"]
    for other, others, *_ in found.values():
        pd.testing.assert_frame_equal(other, rollouts)
        assert others.keys() == weights.keys()
        assert all(torch.equal(others[name], weights[name]) for name in weights)
    for name in MOVES:
        assert (found[name][3]["kv_tokens"] > 0).any(), f"{name} moved no KV cache, so nothing was shown"
    assert len({tuple(ends) for _, _, ends, _ in found.values()}) == len(found), "the schedules do not differ"
