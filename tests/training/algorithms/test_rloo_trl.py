"""RLOO against TRL's trainer on the same batch: advantages, loss and every gradient; and weights after several updates.

TRL generates nothing here: its trainer is given the tokens, scores them and computes the loss. float32 on both sides; losses
agree to 1e-6 of themselves, gradients to 1e-5 + 1e-4 |g|, weights to 1e-5 where they moved by 5e-4 and more.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if find_spec("trl") is None:  # imported by the tests that use it, as that takes long
    pytest.skip("TRL, which losses are compared with, is not installed: pip install 'trl>=1.16'", allow_module_level=True)
from learning_samples import gradient_of, noise_batch, policy_gradient, small_model, word_tokenizer  # noqa: E402

from rlhfless.training.algorithms.base import frozen_copy  # noqa: E402
from rlhfless.training.algorithms.batch import Batch  # noqa: E402
from rlhfless.training.learner.learner import LocalLearner  # noqa: E402

if TYPE_CHECKING:
    from trl import RLOOTrainer

SAMPLES = 4
REFERENCE = 1  # seed of the model that the penalty pulls to
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "recomputed": ({"old_logprobs_from": "recomputed"}, {}),
    "engine": ({}, {}),
    "clip": ({"clip_ratio_low": 0.4, "clip_ratio_high": 0.05}, {"epsilon": 0.4, "epsilon_high": 0.05}),
    "kl": ({"kl_coef": 0.3, "old_logprobs_from": "recomputed"}, {"beta": 0.3}),
    "temperature and kl": (
        {"kl_coef": 0.3, "old_logprobs_from": "recomputed", "temperature": 0.7},
        {"beta": 0.3, "temperature": 0.7},
    ),
    "truncated": ({"mask_truncated": True}, {"mask_truncated_completions": True}),
    "truncated and kl": (
        {"mask_truncated": True, "kl_coef": 0.3, "old_logprobs_from": "recomputed"},
        {"mask_truncated_completions": True, "beta": 0.3},
    ),
}


def trl_trainer(folder: Path, model: Any, batches: list[Batch], **options: Any) -> RLOOTrainer:
    """TRL's trainer of a model, which is given the responses and rewards of one batch after the other."""
    from datasets import Dataset
    from trl import RLOOConfig, RLOOTrainer

    rows = len(batches[0].response_ids)
    arguments = RLOOConfig(
        folder, per_device_train_batch_size=rows, num_generations=SAMPLES, max_completion_length=14, use_cpu=True, bf16=False,
        gradient_checkpointing=False, report_to=[], disable_dropout=True, **{"beta": 0.0, "temperature": 1.0, **options},
    )  # fmt: skip
    small_model(REFERENCE).save_pretrained(folder / "reference")
    model.config._name_or_path = str(folder / "reference")  # where TRL looks for its reference
    left, given = iter(batches), []

    def prompts_of_next(prompts: Any) -> Any:
        given.append(next(left))
        return given[-1].prompt_ids, None, {}

    def rewards(completions: Any, **_: Any) -> list[float | None]:
        return [None if math.isnan(reward) else float(reward) for reward in np.asarray(given[-1].rewards)]

    trainer = RLOOTrainer(
        model, args=arguments, train_dataset=Dataset.from_list([{"prompt": f"t{i}"} for i in range(rows)]),
        processing_class=word_tokenizer(), reward_funcs=rewards,
    )  # fmt: skip
    trainer._tokenize_prompts = prompts_of_next
    trainer._generate_single_turn = lambda *_: given[-1].response_ids
    trainer.model.train()
    return trainer


def trl_scored(trainer: RLOOTrainer, engine: list[np.ndarray] | None) -> dict[str, Any]:
    """What TRL computes losses of the next batch from; ``engine`` replaces the old log-probabilities."""
    scored = trainer._generate_and_score_completions([{"prompt": row["prompt"]} for row in trainer.train_dataset])
    if engine is not None:
        counts = scored["completion_mask"].any(1)
        scored["old_logps"] = torch.where(counts, torch.tensor([float(x.sum()) for x in engine]), 0.0)
    return scored


@pytest.mark.parametrize("unjudged", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_are_those_of_trl(case: str, unjudged: bool, tmp_path: Path) -> None:
    ours, theirs = CASES[case]
    model, batch = small_model(), noise_batch(small_model(), samples=SAMPLES)
    if unjudged:  # one response of the first group, and all but one of the second
        np.asarray(batch.rewards)[[3, 5, 6, 7]] = math.nan
    reference = frozen_copy(small_model(REFERENCE)) if "kl_coef" in ours else None
    given = {"max_grad_norm": math.inf, "max_tokens_per_micro_batch": 64, **ours}
    algorithm = policy_gradient("rloo", model, reference=reference, **given)
    metrics = algorithm.learn(batch)
    gradient, recomputes = gradient_of(model), algorithm.config.recomputes
    assert gradient.abs().max() > 1e-2
    if not recomputes and not unjudged:
        assert metrics["clip_share"] > 0, "the batch is far enough from the model for the clip to matter"

    trainer = trl_trainer(tmp_path, small_model(), [batch], **theirs)
    scored = trl_scored(trainer, None if recomputes else batch.engine_logprobs)
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, scored)
    loss.backward()
    torch.testing.assert_close(gradient, gradient_of(trainer.model), atol=1e-5, rtol=1e-4)
    masked = ~scored["completion_mask"].any(1)  # TRL's loss has -A of these as a constant, without a gradient
    constant = -float((scored["advantages"] * masked).sum()) / len(masked)
    assert metrics["loss"] == pytest.approx(float(loss.detach()) - constant, rel=1e-5, abs=1e-6)
    if not ours.get("kl_coef"):
        advantages = algorithm.config.advantages(np.asarray(batch.rewards), np.asarray(batch.group_of))
        np.testing.assert_allclose(advantages, scored["advantages"].numpy(), atol=1e-6)


@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
def test_weights_after_several_updates_are_those_of_trl(kl_coef: float, tmp_path: Path) -> None:
    """TRL's optimizer and clipping of gradients; the second update of a batch has ratios that are not 1."""
    batches, model, other = [noise_batch(small_model(), seed=seed) for seed in range(3)], small_model(), small_model()
    learner = LocalLearner.make(
        "rloo", model, learning_rate=1e-3, num_updates=2, old_logprobs_from="recomputed", kl_coef=kl_coef,
        max_tokens_per_micro_batch=64,
    )  # fmt: skip
    if kl_coef:
        learner.algorithm.reference = frozen_copy(small_model(REFERENCE))
    for batch in batches:
        assert learner.learn(batch)["kl_old"] > 0

    trainer = trl_trainer(tmp_path, other, batches, beta=kl_coef, learning_rate=1e-3, lr_scheduler_type="constant")
    trainer.create_optimizer_and_scheduler(num_training_steps=6)
    for _ in batches:
        scored = trl_scored(trainer, None)
        for _ in range(2):
            trainer.optimizer.zero_grad()
            trainer.compute_loss(trainer.model, scored).backward()
            torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), trainer.args.max_grad_norm)
            trainer.optimizer.step()
    first = small_model()
    assert max(float((p - q).detach().abs().max()) for p, q in zip(first.parameters(), model.parameters(), strict=True)) > 5e-4
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-5, rtol=0)
