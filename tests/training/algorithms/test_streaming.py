"""A step learned from in pieces, in any order, has the gradient of the whole batch, for everything that needs all of it.

float32: sums are taken in another order, so gradients agree to 1e-5 of their norm.
"""

from __future__ import annotations

from typing import Any

import pytest
from error_messages import refused

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from learning_samples import gradient_of, noise_batch, pieces_of, small_model, still  # noqa: E402

from rlhfless.errors import InputError  # noqa: E402
from rlhfless.training.algorithms.registry import make_algorithm  # noqa: E402
from rlhfless.training.learner.learner import LocalLearner  # noqa: E402


def both(name: str, seed: int, size: int | None, off: float = 0.2, **options: Any) -> tuple[Any, Any, dict, dict]:
    """Gradients and numbers of one batch, learned from as a whole and in pieces."""
    gradients, numbers = [], []
    for whole in (True, False):
        model = small_model(seed)
        algorithm = make_algorithm(name, model, learning_rate=1e-3, max_tokens_per_micro_batch=64, **options)
        algorithm.optimizer = still(algorithm.trained)
        if name == "ppo":  # a critic that expects something
            with torch.no_grad():
                algorithm.trained.critic.head.weight.copy_(torch.linspace(-0.5, 0.5, 32)[None])
        batch = noise_batch(model, seed, prompts=5, off=off)
        if whole:
            numbers.append(algorithm.learn(batch))
        else:
            algorithm.begin()
            for piece in pieces_of(batch, seed, size):
                algorithm.add(piece)
            numbers.append(algorithm.finish())
        gradients.append(gradient_of(algorithm.trained))
    return *gradients, *numbers


def assert_same(of_batch: Any, in_pieces: Any, numbers: dict[str, float], streamed: dict[str, float]) -> None:
    assert float(of_batch.norm()) > 1e-4
    assert float((of_batch - in_pieces).norm() / of_batch.norm()) < 1e-5
    same = set(numbers) - {"seconds", "prepare_seconds"}
    assert same <= set(streamed)
    for name in same:
        assert streamed[name] == pytest.approx(numbers[name], rel=1e-4, abs=1e-6, nan_ok=True), name


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
@pytest.mark.parametrize("advantage_std", ["population", "sample", "none"])
@pytest.mark.parametrize("loss_aggregation", ["token", "sequence", "constant"])
def test_groups_in_any_order_have_the_gradient_of_the_batch(loss_aggregation: str, advantage_std: str, kl_coef: float) -> None:
    options = {"loss_aggregation": loss_aggregation, "advantage_std": advantage_std, "kl_coef": kl_coef}
    assert_same(*both("grpo", 3, None, max_response_tokens=16, mask_truncated=kl_coef > 0, **options))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rloo", {}),
        ("rloo", {"kl_coef": 0.3, "old_logprobs_from": "recomputed", "mask_truncated": True}),
        ("gspo", {"kl_coef": 0.3}),
        ("gspo", {"loss_aggregation": "token", "clip_ratio_low": 0.1, "clip_ratio_high": 0.1}),
    ],
)
def test_groups_with_a_ratio_for_each_response_have_the_gradient_of_the_batch(name: str, options: dict[str, Any]) -> None:
    assert_same(*both(name, 3, None, **options))


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize(("critic", "kl_coef", "off"), [("head", 0.1, 0.02), ("model", 0.0, 0.15)])
def test_responses_in_any_order_have_the_gradient_of_the_batch(whiten: bool, critic: str, kl_coef: float, off: float) -> None:
    """Small differences of engine and learner leave ratios within the clip range; large ones make responses wait."""
    options = {"whiten": whiten, "critic": critic, "kl_coef": kl_coef, "old_logprobs_from": "engine", "lam": 0.95}
    *results, streamed = both("ppo", 1, 3, off, loss_aggregation="sequence" if critic == "head" else "token", **options)
    assert_same(*results, streamed)
    if whiten:
        assert streamed["waited"] == 0 if off < 0.1 else 0.3 < streamed["waited"] < 1
    else:
        assert streamed["waited"] == 0


def test_responses_whose_importance_is_corrected_have_the_gradient_of_the_batch() -> None:
    assert_same(*both("ppo", 2, 4, importance_ratio_cap=1.2, old_logprobs_from="recomputed"))


def test_later_updates_follow_on_the_whole_batch() -> None:
    """Only the first update can be accumulated before its weights are there; the second needs them."""
    weights = []
    for whole in (True, False):
        model = small_model()
        algorithm = make_algorithm("grpo", model, num_updates=2, learning_rate=1e-2, max_tokens_per_micro_batch=64)
        algorithm.optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        batch = noise_batch(model)
        if whole:
            algorithm.learn(batch)
        else:
            algorithm.begin()
            for piece in pieces_of(batch, 0):
                algorithm.add(piece)
            algorithm.finish()
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert float((weights[0] - weights[1]).abs().max()) < 1e-5


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("name", ["grpo", "ppo", "rloo", "gspo"])
def test_minibatches_of_prompts_are_batches_of_their_own_whatever_completes_first(name: str, updates: int) -> None:
    """Three runs end alike: one batch of two mini-batches, two batches, and pieces in random order within each mini-batch."""
    weights, numbers = [], []
    batch = noise_batch(small_model(), prompts=5)
    halves = [batch.take(range(12)), batch.take(range(12, 20))]
    options = {"learning_rate": 1e-2, "optimizer": "sgd", "max_tokens_per_micro_batch": 64, "num_updates": updates}
    for kind in ("whole", "halves", "pieces"):
        model = small_model()
        learner = LocalLearner.make(name, model, **options, num_mini_batches=1 if kind == "halves" else 2)
        if kind == "whole":
            numbers.append(learner.learn(batch))
        elif kind == "halves":
            numbers += [learner.learn(half) for half in halves]
        else:
            learner.begin()
            for seed, half in enumerate(halves):
                for piece in pieces_of(half, seed):
                    learner.add(piece)
                if not seed:
                    learner.update()
            numbers.append(learner.finish())
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    start = torch.cat([p.detach().flatten() for p in small_model().parameters()])
    assert float((weights[0] - start).abs().max()) > 1e-3
    assert torch.equal(weights[0], weights[1])
    assert float((weights[0] - weights[2]).abs().max()) < 1e-5
    whole, first, second, streamed = numbers
    assert whole["tokens"] == streamed["tokens"] == sum(batch.response_tokens)
    assert whole["loss"] == pytest.approx((first["loss"] + second["loss"]) / 2)
    assert whole["mismatch_mean"] == first["mismatch_mean"] == pytest.approx(streamed["mismatch_mean"])


def test_a_step_without_pieces_and_a_group_in_two_pieces_are_refused() -> None:
    model = small_model()
    batch = noise_batch(model)
    for name in ("grpo", "ppo", "rloo", "gspo"):
        algorithm = make_algorithm(name, model, learning_rate=1e-3)
        algorithm.begin()
        with refused(InputError, "no ", "added"):
            algorithm.finish()
    for name in ("grpo", "rloo"):
        algorithm = make_algorithm(name, model, learning_rate=1e-3)
        algorithm.begin()
        algorithm.add(batch.take([0, 1]))
        with refused(InputError, "group 0", "second time"):
            algorithm.add(batch.take([2, 3]))
