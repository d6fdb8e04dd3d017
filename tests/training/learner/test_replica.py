"""A replica computes the bits of its learner, whoever adds them; what was computed in several processes is one step."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from learning_samples import noise_batch, pieces_of, small_model

from rlhfless.training.learner.learner import LocalLearner
from rlhfless.training.learner.replica import InTrainer, Joined, Loading, StepWeights, drops, piece_of_group

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {"kl_coef": 0.1, "num_updates": 2}),
    "grpo without a reference": ("grpo", {"loss_aggregation": "token"}),
    "ppo": ("ppo", {"kl_coef": 0.1, "critic": "model"}),
    "ppo whitened": ("ppo", {"whiten": True, "num_updates": 2}),
}


def learner_of(name: str) -> LocalLearner:
    """A learner in which micro-batches are smaller than groups."""
    kind, options = OPTIONS[name]
    return LocalLearner.make(kind, small_model(1), learning_rate=1e-2, max_tokens_per_micro_batch=64, **options)


def weights_of(learner: LocalLearner) -> list[torch.Tensor]:
    return [p.detach().clone() for p in learner.algorithm.trained.parameters()]


def elsewhere(learner: LocalLearner, name: str) -> Joined:
    """What another process makes of the learner."""
    kind, _ = OPTIONS[name]
    options = {"learning_rate": 1e-2, "max_tokens_per_micro_batch": 64, **OPTIONS[name][1]}
    model = getattr(learner.algorithm.trained, "policy", learner.algorithm.trained)
    loading = Loading(learner, InTrainer(), model.config, kind, options)
    assert loading(None).learner is learner
    joined = pickle.loads(pickle.dumps(loading))("cpu")
    assert isinstance(joined, Joined)
    return joined


@pytest.mark.parametrize("name", OPTIONS)
def test_pieces_of_a_replica_have_the_bits_of_the_learner(name: str) -> None:
    """Two steps; the reference is what training began with. Every second piece crosses to another process and back."""
    alone, shared = learner_of(name), learner_of(name)
    for step in range(2):
        groups = pieces_of(noise_batch(small_model(), seed=step, prompts=4, off=0.15), seed=step)
        joined = elsewhere(shared, name)
        for learner in (alone, shared):
            learner.begin()
        for number, group in enumerate(groups):
            alone.add(group)
            by = joined if number % 2 else Joined(shared, InTrainer())
            result = pickle.loads(pickle.dumps(piece_of_group((0, step, number), (), (group,), by)))
            shared.take(result)
            assert result.terms.gradients == {}, "added gradients are kept nowhere else"
        ours, theirs = alone.finish(), shared.finish()
        assert all(torch.equal(a, b) for a, b in zip(weights_of(alone), weights_of(shared), strict=True))
        timed = ("seconds", "prepare_seconds")
        assert {k: v for k, v in ours.items() if k not in timed} == pytest.approx(
            {k: v for k, v in theirs.items() if k not in timed}, nan_ok=True
        )


def test_weights_after_an_update_reach_a_replica_that_is_there() -> None:
    learner = learner_of("grpo")
    groups = pieces_of(noise_batch(small_model(), seed=3, prompts=3), seed=3)
    joined = elsewhere(learner, "grpo")
    learner.begin()
    learner.add(groups[0])
    learner.update()
    sent = pickle.loads(pickle.dumps(StepWeights(learner)))
    assert isinstance(sent.flat, np.ndarray)
    there = joined.piece(groups[1], (0, 1), sent)
    here = Joined(learner, InTrainer()).piece(groups[1], (0, 1), StepWeights(learner))
    for a, b in zip(there.terms.gradients["loss"], here.terms.gradients["loss"], strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


def test_the_sum_of_groups_is_the_same_however_a_group_is_split_into_micro_batches_of_its_own() -> None:
    """Each group is summed by itself first, so the bits of a sum depend on the order of groups only."""
    learner = learner_of("grpo")
    groups = pieces_of(noise_batch(small_model(), seed=5, prompts=4), seed=5)
    sums = []
    for order in (range(4), reversed(range(4))):
        pieces = {i: learner.piece(groups[i]) for i in order}
        learner.begin()
        for i in range(4):
            learner.take(pieces[i])
        learner.algorithm._gradients.combine({"loss": 1.0})  # type: ignore[attr-defined]
        sums.append([p.grad.clone() for p in learner.algorithm.trained.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*sums, strict=True))


def test_dropout_is_seeded_by_the_group_wherever_it_is_computed() -> None:
    learner = learner_of("grpo")
    learner.algorithm.trained.config.attention_dropout = 0.3
    for module in learner.algorithm.trained.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3
    assert drops(learner.algorithm.trained)
    group = pieces_of(noise_batch(small_model(), seed=3, prompts=1), seed=3)[0]
    here, there = Joined(learner, InTrainer()), elsewhere(learner, "grpo")
    first, again, other = here.piece(group, (0, 1)), there.piece(group, (0, 1)), here.piece(group, (0, 2))
    one, two, three = (piece.terms.values["loss"] for piece in (first, again, other))
    assert one == two != three


def test_what_fails_in_the_trainer_is_kept_as_it_was() -> None:
    here = InTrainer()
    with pytest.raises(ValueError, match="no"), here.draws(None, (0, 1)):
        raise ValueError("no")
    assert [type(error) for error in here.failures] == [ValueError]
