"""When the learner's GPUs are allocated: with the first prompt, for the whole step, or when they are needed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from busy_machine import Gate, gate_last
from error_messages import refused
from training_samples import RaggedTrainer, config, farthest

from rlhfless.trace import read_trace
from rlhfless.training.config import TrainError
from rlhfless.training.step_result import TrainedStep
from solver import Workload

OWN = ("learner", "learner-0", "learner-1")
STREAM: dict[str, Any] = {
    "learning": "stream", "kl_coef": 0.05, "policy": "static", "gpus": 1, "gpus_per_node": 1, "max_response_tokens": 100,
    "steps": 1,
}  # fmt: skip


class Foreseen(RaggedTrainer):
    """The lengths are known, so what is left between plan and trace is the profile's fit."""

    def workload(self, problems: Any, forecast: Any) -> Workload:
        lengths = [request.target_tokens for request in self.requests(problems, self.next_step)]
        owner = np.repeat(np.arange(len(problems)), self.config.rollout.samples_per_prompt)
        return Workload(self._prompt_tokens(problems), owner, lengths, max_response_tokens=100)


def learner_of(step: TrainedStep) -> tuple[float, float]:
    """When the learner's own GPUs are allocated, and their GPU-seconds."""
    held = [row for row in step.trace.allocations.to_dict("records") if row["holder"] in OWN]
    seconds = sum((row["end_s"] - row["start_s"]) * len(row["gpu_ids"]) for row in held)
    return min(row["start_s"] for row in held) - step.record.start_s, seconds


@pytest.mark.parametrize("grows", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_learner_that_is_needed_later_costs_less_and_ends_as_early(grows: bool, model: Path) -> None:
    steps, weights = {}, {}
    for start in ("first", "step", "needed"):
        given = config(**STREAM, learner_start=start, learner_gpus=2, learner_grows=grows, reward_s_per_response=1e-3)
        with Foreseen(given, model=model, progress=False) as trainer:
            steps[start] = trainer.step()
            weights[start] = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    begins, costs = ({name: learner_of(step)[k] for name, step in steps.items()} for k in (0, 1))
    took = {name: step.record.end_s - step.record.start_s for name, step in steps.items()}
    assert begins["step"] == 0 < begins["first"] < begins["needed"]
    assert costs["step"] > costs["first"] > costs["needed"]
    assert took["step"] == took["first"]
    assert took["needed"] == pytest.approx(took["step"], rel=0.05)
    assert farthest(weights["first"], weights["step"]) == farthest(weights["step"], weights["needed"]) == 0
    (said,) = [json.loads(event["detail"]) for event in steps["needed"].record.events if event["name"] == "learner"]
    assert said["from_s"] == pytest.approx(begins["needed"])
    assert (said["gpus"], said["grows"]) == (2, grows)
    assert said["planned_gpu_s"] < said["held_gpu_s"]
    assert said["planned_step_s"] <= 1.005 * said["held_step_s"]
    assert took["needed"] == pytest.approx(said["planned_step_s"], rel=0.15)


def holds(trainer: RaggedTrainer) -> bool:
    """Whether a server of work holds GPUs in the step under way."""
    under_way = trainer.actor_pool._step  # type: ignore[union-attr]
    return under_way is not None and any(server.held is not None for server in under_way.work.servers)


@pytest.mark.full
def test_on_the_wall_clock_gpus_are_the_learners_from_then_on(tmp_path: Path, model: Path) -> None:
    """Both in one run, which is resumed with the other option; weights are those of the virtual clock.

    In the first step no response ends before the learner holds its GPUs.
    """
    gate = Gate(tmp_path / "the learner holds its GPUs")
    options = {**STREAM, "steps": 2, "stream_order": "canonical", "optimizer": "sgd", "learning_rate": 0.5, "gpus": 1}
    with RaggedTrainer(config(**options), model=model, progress=False) as virtual:
        virtual.train()
        expected = {name: value.clone() for name, value in virtual.model.state_dict().items()}
    steps = []
    for start in ("step", "needed"):
        given = config(**options, executor="local", learner_start=start)
        with RaggedTrainer(
            given, tmp_path / "run", model=None if steps else model, resume=bool(steps), progress=False
        ) as trainer:
            if start == "step":
                gate_last(trainer, gate, given.rollout.prompts_per_step * given.rollout.samples_per_prompt)
            with gate.opened(partial(holds, trainer)):
                steps.append(trainer.step())
            weights = trainer.model.state_dict()
    assert farthest(weights, expected) == 0
    trace = read_trace(tmp_path / "run")  # which checks it
    held = trace.allocations[trace.allocations["role"] == "learner"].set_index("step")
    learned = trace.spans[trace.spans["phase"] == "learn"].groupby("step")
    completed_s = trace.rollouts.groupby("step")["end_s"].min()
    assert held["start_s"][0] < completed_s[0] <= learned["start_s"].min()[0], "with the actors"
    (said,) = [json.loads(event["detail"]) for event in steps[1].record.events if event["name"] == "learner"]
    assert said["from_s"] > 0
    assert held["start_s"][1] >= steps[1].record.start_s + said["from_s"]
    assert held["start_s"][1] <= learned["start_s"].min()[1]
    assert (held["end_s"] >= learned["end_s"].max() - 1e-9).all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"learner_start": "late"}, ("learner_start", "'late'", "'needed'")),
        ({"learner_start": "step", "learning": "batch"}, ("learner_start", "'step'", "'stream'")),
        ({"learner_start": "needed", "learner_gpus": "auto"}, ("learner_start", "'needed'", "'auto'")),
    ],
)
def test_starts_that_do_not_fit_are_refused(changes: dict[str, Any], said: tuple[str, ...]) -> None:
    with refused(TrainError, *said):
        config(**{**STREAM, **changes})
