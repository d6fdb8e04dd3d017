"""GRPO and GSPO against TRL's trainer on the same batch: advantages, loss and every gradient, for each option that both have;
and weights after several updates and batches with TRL's own optimizer and schedule.

TRL generates nothing here: its trainer is given the tokens, scores them and computes the loss. float32 on both sides; losses
agree to 1e-6, gradients to 1e-6 + 1e-4 |g|, weights to 1e-5 where they moved by 5e-4 and more.
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
from trl_page import page_rows  # noqa: E402

from rlhfless.training.algorithms.base import frozen_copy  # noqa: E402
from rlhfless.training.algorithms.batch import Batch  # noqa: E402
from rlhfless.training.algorithms.builtin.grpo import GrpoConfig  # noqa: E402
from rlhfless.training.learner.learner import LocalLearner  # noqa: E402

if TYPE_CHECKING:
    from trl import GRPOTrainer

# One case per option: ours, and TRL's words for it. TRL always takes the sample deviation and adds 1e-4 to it.
LIMIT = 14
REFERENCE = 1  # seed of the model that the penalty pulls to
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "token": ({}, {"loss_type": "dapo"}),
    "sequence": ({"loss_aggregation": "sequence"}, {"loss_type": "grpo"}),
    "constant": ({"loss_aggregation": "constant", "max_response_tokens": LIMIT}, {"loss_type": "dr_grpo"}),
    "no std": ({"advantage_std": "none"}, {"loss_type": "dapo", "scale_rewards": "none"}),
    "clip": ({"clip_ratio_low": 0.1, "clip_ratio_high": 0.28}, {"loss_type": "dapo", "epsilon": 0.1, "epsilon_high": 0.28}),
    "kl": ({"kl_coef": 0.3}, {"loss_type": "dapo", "beta": 0.3}),
    "kl by sequence": ({"kl_coef": 0.3, "loss_aggregation": "sequence"}, {"loss_type": "grpo", "beta": 0.3}),
    "truncated": ({"mask_truncated": True}, {"loss_type": "dapo", "mask_truncated_completions": True}),
    "truncated by sequence": (
        {"mask_truncated": True, "loss_aggregation": "sequence"},
        {"loss_type": "grpo", "mask_truncated_completions": True},
    ),
    "temperature": ({"temperature": 0.7}, {"loss_type": "dapo", "temperature": 0.7}),
    "importance and kl": (
        {"old_logprobs_from": "recomputed", "importance_ratio_cap": 1.1, "kl_coef": 0.3, "loss_aggregation": "sequence"},
        {
            "loss_type": "grpo",
            "beta": 0.3,
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_importance_sampling_clip_max": 1.1,
        },
    ),
    "importance": (
        {"old_logprobs_from": "recomputed", "importance_ratio_cap": 1.1},
        {"loss_type": "dapo", "vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 1.1},
    ),
}
SEQUENCE_RATIO = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
CASES |= {
    "gspo": ({"name": "gspo"}, {**SEQUENCE_RATIO, "epsilon": 3e-4, "epsilon_high": 4e-4}),
    "gspo, wide": (
        {"name": "gspo", "clip_ratio_low": 0.05, "clip_ratio_high": 0.1},
        {**SEQUENCE_RATIO, "epsilon": 0.05, "epsilon_high": 0.1},
    ),
    "gspo, kl": ({"name": "gspo", "kl_coef": 0.3}, {**SEQUENCE_RATIO, "epsilon": 3e-4, "epsilon_high": 4e-4, "beta": 0.3}),
    "gspo, token": (
        {"name": "gspo", "loss_aggregation": "token"},
        {**SEQUENCE_RATIO, "loss_type": "dapo", "epsilon": 3e-4, "epsilon_high": 4e-4},
    ),
    "gspo, truncated": (
        {"name": "gspo", "mask_truncated": True},
        {**SEQUENCE_RATIO, "epsilon": 3e-4, "epsilon_high": 4e-4, "mask_truncated_completions": True},
    ),
}
VARIANTS = [row for row in page_rows("loss") if not row.missing]
CASES |= {
    f"{row.cells['loss']}, as the page says": (
        {**row.ours, **({"max_response_tokens": LIMIT} if row.ours.get("loss_aggregation") == "constant" else {})},
        {"loss_type": "dapo", **row.theirs},
    )
    for row in VARIANTS
}


def trl_trainer(folder: Path, model: Any, batches: list[Batch], samples: int, **options: Any) -> GRPOTrainer:
    """TRL's trainer of a model, which is given the responses and rewards of one batch after the other."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rows = len(batches[0].response_ids)
    arguments = GRPOConfig(
        folder, per_device_train_batch_size=rows, num_generations=samples, max_completion_length=LIMIT, use_cpu=True,
        bf16=False, gradient_checkpointing=False, report_to=[], disable_dropout=True,
        **{"beta": 0.0, "temperature": 1.0, "use_bias_correction_kl": False, **options},
    )  # fmt: skip
    small_model(REFERENCE).save_pretrained(folder / "reference")
    model.config._name_or_path = str(folder / "reference")  # where TRL looks for its reference
    left, given = iter(batches), []

    def generated(prompts: Any, trainer: Any) -> dict[str, Any]:
        given.append(batch := next(left))
        logprobs = [x.tolist() for x in batch.engine_logprobs]
        return {"prompt_ids": batch.prompt_ids, "completion_ids": batch.response_ids, "logprobs": logprobs}

    trainer = GRPOTrainer(
        model, args=arguments, train_dataset=Dataset.from_list([{"prompt": f"t{i}"} for i in range(rows)]),
        processing_class=word_tokenizer(), rollout_func=generated,
        reward_funcs=lambda completions, **_: np.asarray(given[-1].rewards).tolist(),
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    trainer.use_vllm = "vllm_importance_sampling_mode" in options  # where TRL keeps the correction; no vLLM is asked
    trainer._last_loaded_step = trainer.state.global_step
    trainer.model.train()
    return trainer


def trl_scored(trainer: GRPOTrainer, engine_is_old: bool) -> dict[str, Any]:
    """What TRL computes losses of the next batch from."""
    scored = trainer._generate_and_score_completions([{"prompt": row["prompt"]} for row in trainer.train_dataset])
    if engine_is_old:
        scored["old_per_token_logps"] = scored["sampling_per_token_logps"]
    return scored


def test_the_page_has_the_variants_that_both_have() -> None:
    assert {row.theirs.get("loss_type") for row in VARIANTS} >= {"grpo", "bnpo", "dapo", "dr_grpo"}


@pytest.fixture(autouse=True)
def eps_of_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GrpoConfig, "eps", 1e-4)


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_are_those_of_trl(case: str, tmp_path: Path) -> None:
    ours, theirs = CASES[case]
    samples, model = 4, small_model()
    batch = noise_batch(model, samples=samples)
    given = {"advantage_std": "sample", "max_grad_norm": math.inf, "max_tokens_per_micro_batch": 64, **ours}
    reference = frozen_copy(small_model(REFERENCE)) if "kl_coef" in ours else None
    algorithm = policy_gradient(given.pop("name", "grpo"), model, reference=reference, **given)
    metrics, config = algorithm.learn(batch), algorithm.config
    gradient = gradient_of(model)
    assert gradient.abs().max() > 1e-3
    if not config.recomputes:
        assert metrics["clip_share"] > 0, "the batch is far enough from the model for the clip to matter"

    trainer = trl_trainer(tmp_path, small_model(), [batch], samples, **theirs)
    scored = trl_scored(trainer, not config.recomputes)
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, scored)
    loss.backward()
    advantages = config.advantages(np.asarray(batch.rewards), np.asarray(batch.group_of))
    np.testing.assert_allclose(advantages, scored["advantages"].numpy(), atol=1e-6)
    assert metrics["loss"] == pytest.approx(float(loss.detach()), abs=1e-6)
    torch.testing.assert_close(gradient, gradient_of(trainer.model), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("ours", "theirs", "updates"),
    [
        ({}, {"lr_scheduler_type": "constant"}, 2),
        ({"lr_scheduler_type": "linear", "warmup_steps": 1}, {"lr_scheduler_type": "linear", "warmup_steps": 1}, 1),
        ({"lr_scheduler_type": "cosine", "max_grad_norm": 0.1}, {"lr_scheduler_type": "cosine", "max_grad_norm": 0.1}, 1),
        (
            {"optimizer": "sgd", "learning_rate": 0.1},
            {"lr_scheduler_type": "constant", "optim": "sgd", "learning_rate": 0.1},
            2,
        ),
        ({"name": "gspo"}, {**SEQUENCE_RATIO, "lr_scheduler_type": "constant", "epsilon": 3e-4, "epsilon_high": 4e-4}, 2),
    ],
)
def test_weights_after_several_updates_are_those_of_trl(
    ours: dict[str, Any], theirs: dict[str, Any], updates: int, tmp_path: Path
) -> None:
    """TRL's optimizer, schedule and clipping of gradients; its schedule counts updates, ours batches."""
    batches, model, other = [noise_batch(small_model(), seed=seed) for seed in range(3)], small_model(), small_model()
    given = {
        "advantage_std": "sample",
        "max_tokens_per_micro_batch": 64,
        "learning_rate": 1e-3,
        "num_updates": updates,
        **ours,
    }
    learner = LocalLearner.make(given.pop("name", "grpo"), model, lr_scheduler_steps=3, **given)
    rates = [learner.learn(batch)["learning_rate"] for batch in batches]

    trainer = trl_trainer(tmp_path, other, batches, 4, **{"loss_type": "dapo", "learning_rate": 1e-3, **theirs})
    trainer.create_optimizer_and_scheduler(num_training_steps=3 * updates)
    for batch_rate in rates:
        scored = trl_scored(trainer, engine_is_old=True)
        for _ in range(updates):
            trainer.optimizer.zero_grad()
            trainer.compute_loss(trainer.model, scored).backward()
            torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), trainer.args.max_grad_norm)
            assert trainer.lr_scheduler.get_last_lr()[0] == batch_rate
            trainer.optimizer.step()
            trainer.lr_scheduler.step()
    assert_moved_alike(model, other)


def assert_moved_alike(model: Any, other: Any) -> None:
    """Both models are as far from their first weights, and where."""
    moved = max(
        float((p - q).detach().abs().max()) for p, q in zip(small_model().parameters(), model.parameters(), strict=True)
    )
    assert moved > 5e-4
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-5, rtol=0)


def test_importance_sampling_of_several_mini_batches_is_that_of_trl(tmp_path: Path) -> None:
    """TRL computes old log-probabilities of the whole batch before its first update, and so do we."""
    model, other, samples, minibatches = small_model(), small_model(), 4, 3
    batch = noise_batch(model, samples=samples, off=0.3)
    given = {
        "advantage_std": "sample", "max_tokens_per_micro_batch": 64, "learning_rate": 1e-3,
        "loss_aggregation": "sequence", "old_logprobs_from": "recomputed", "importance_ratio_cap": 1.1, "num_updates": 2,
    }  # fmt: skip
    learner = LocalLearner.make("grpo", model, num_mini_batches=minibatches, **given)
    numbers = learner.learn(batch)
    assert numbers["prepare_pass_tokens"] == sum(batch.tokens[samples:]), "all but the first mini-batch are computed before"
    assert numbers["kl_old"] > 0
    assert numbers["importance_mean"] != 1

    correction = {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 1.1}
    options = {"loss_type": "grpo", "learning_rate": 1e-3, "lr_scheduler_type": "constant", **correction}
    trainer = trl_trainer(tmp_path, other, [batch], samples, **options)
    trainer.create_optimizer_and_scheduler(num_training_steps=2 * minibatches)
    scored = trl_scored(trainer, engine_is_old=False)
    for minibatch in range(minibatches):
        rows = slice(minibatch * samples, (minibatch + 1) * samples)
        part = {
            name: value[rows] if torch.is_tensor(value) and value.dim() and len(value) == len(batch.response_ids) else value
            for name, value in scored.items()
        }
        for _ in range(2):
            trainer.optimizer.zero_grad()
            trainer.compute_loss(trainer.model, part).backward()
            torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), trainer.args.max_grad_norm)
            trainer.optimizer.step()
    assert_moved_alike(model, other)
