"""The learner that measures what pieces cost on this machine's cores, and learns in the pieces that pay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from training_samples import RaggedTrainer, config, farthest

from rlhfless.executor import StepRecord
from rlhfless.training.loop import Trainer
from rlhfless.training.measured_learning import MeasuredLearning
from rlhfless.training.responses import make_batch, read_responses
from solver.stage_fusion.pieces import PieceCosts

AUTO: dict[str, Any] = {
    "learning": "stream", "learner_gpus": "auto", "gpus": 2, "gpus_per_node": 2, "policy": "static", "max_response_tokens": 100,
    "kl_coef": 0.05, "optimizer": "sgd", "learning_rate": 0.5, "prompts_per_step": 8, "prompts": 16, "samples_per_prompt": 4,
}  # fmt: skip


def variety(completions: list[str], **_: Any) -> list[float]:
    """The share of characters that differ."""
    return [len(set(text)) / max(1, len(text)) for text in completions]


def said(record: StepRecord) -> dict[str, Any]:
    (event,) = [json.loads(event["detail"]) for event in record.events if event["name"] == "learner"]
    return dict(event)


def test_measuring_changes_neither_weights_nor_random_streams(model: Path) -> None:
    given = config(**{**AUTO, "learning": "batch", "learner_gpus": None}, steps=1)
    with Trainer(given, model=model, rewards=variety, progress=False) as trainer:
        problems, samples = trainer.problems_of(0), given.rollout.samples_per_prompt
        step = trainer.step()
        responses = read_responses(problems, step.record.completions, trainer.tokenizer, samples)
        batch = make_batch(responses, step.rollouts["reward"].to_numpy(), step.record.completions, trainer.tokenizer, samples)
        before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        drawn = torch.get_rng_state()
        measured = MeasuredLearning(given, cores=2)
        assert measured.costs is None
        for _ in range(3):
            measured.measure(trainer.state.learner, trainer.model, 0, batch)  # type: ignore[arg-type]
        assert len(measured.measured) == 2, "then it is known"
        assert farthest(trainer.model.state_dict(), before) == 0
        assert torch.equal(torch.get_rng_state(), drawn)
    costs = measured.costs
    assert costs is not None
    assert costs.batch_per_token_s > 0
    assert costs.join_s == max(one.join_s for one in measured.measured) > 0


def test_the_canonical_order_and_given_learners_are_not_measured(model: Path) -> None:
    with Trainer(config(**AUTO), model=model, progress=False) as trainer:
        learner = trainer.state.learner
    for changes in (
        {"stream_order": "canonical"}, {"learner_gpus": 1}, {"learning": "batch", "learner_gpus": None},
        {"executor": "ray", "ray_address": "auto"},
    ):  # fmt: skip
        chosen = config(**{**AUTO, "executor": "local", **changes})
        assert MeasuredLearning.of(chosen, learner, "cpu", on_pool=True) is None
    chosen = config(**{**AUTO, "executor": "local"})
    assert MeasuredLearning.of(chosen, learner, "cpu", on_pool=True) is not None
    assert MeasuredLearning.of(chosen, learner, "cuda", on_pool=True) is None
    assert MeasuredLearning.of(chosen, learner, "cpu", on_pool=False) is None


@pytest.mark.full
def test_pieces_that_pay_give_the_weights_of_the_batch_and_others_are_left_out(tmp_path: Path, model: Path) -> None:
    """The first step measures and learns from the batch; then pieces are said to pay, then they are said not to."""
    with RaggedTrainer(config(**{**AUTO, "learning": "batch", "learner_gpus": None}, steps=3), model=model, rewards=variety,
                       progress=False) as alone:  # fmt: skip
        alone.run()
        expected = alone.model.state_dict()
    given = config(**AUTO, steps=3, executor="local", idle_timeout_s=600.0)
    with RaggedTrainer(given, tmp_path / "run", model=model, rewards=variety, progress=False) as trainer:
        first = trainer.step()
        measured = trainer.state.measured
        assert measured is not None
        assert len(measured.measured) == 1
        assert not [event for event in first.record.events if event["name"] == "learner"], "nothing was known"
        measured.cores, measured.measured = 9, [PieceCosts(1e-2, 1e-4, 1e-2, 1e-4)] * 2
        paid = trainer.step()
        measured.measured = [PieceCosts(1e-4, 9.0, 1e-4, 9.0)] * 2
        costly = trainer.step()
        assert farthest(trainer.model.state_dict(), expected) < 1e-5
    told = said(paid.record)
    assert told["learning"] == "stream"
    assert told["planned_step_s"] < told["batch_step_s"]
    assert told["costs"]["fixed_s"] == 1e-4
    learned = [ran for ran in paid.record.work if ran.item.kind == "learn" and ran.item.responses]
    assert len(learned) == told["pieces"] < 8
    assert sorted(i for ran in learned for i in ran.item.responses) == list(range(32))
    assert paid.rollouts["reward"].notna().all()
    assert said(costly.record)["learning"] == "batch"
    assert said(costly.record)["pieces"] == 1
