"""GRPO against TRL's trainer on the same batch: advantages, loss and every gradient, for each option that both have.

TRL generates nothing here: its trainer is given the tokens, scores them and computes the loss. float32 on both sides; losses
agree to 1e-6, gradients to 1e-6 + 1e-4 |g|.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl", reason="TRL, which losses are compared with, is not installed: pip install 'trl==1.12.0'")
with mock.patch("trl.import_utils.is_vllm_available", return_value=False):  # it cannot load newer ones, and needs none here
    import trl.trainer.grpo_trainer  # noqa: F401
from datasets import Dataset  # noqa: E402
from learning_samples import gradient_of, noise_batch, small_model, still, word_tokenizer  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from rlhfless.training.advantages import group_advantages  # noqa: E402
from rlhfless.training.algorithm import frozen_copy  # noqa: E402
from rlhfless.training.batch import Batch  # noqa: E402
from rlhfless.training.grpo import Grpo, GrpoOptions  # noqa: E402

# One case per option: ours, and TRL's words for it. TRL always takes the sample deviation and adds 1e-4 to it.
LIMIT = 14
REFERENCE = 1  # seed of the model that the penalty pulls to
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "token": ({}, {"loss_type": "dapo"}),
    "sequence": ({"aggregation": "sequence"}, {"loss_type": "grpo"}),
    "constant": ({"aggregation": "constant", "response_limit": LIMIT}, {"loss_type": "dr_grpo"}),
    "no std": ({"std": "none"}, {"loss_type": "dapo", "scale_rewards": "none"}),
    "clip": ({"clip_low": 0.1, "clip_high": 0.28}, {"loss_type": "dapo", "epsilon": 0.1, "epsilon_high": 0.28}),
    "kl": ({"kl_weight": 0.3}, {"loss_type": "dapo", "beta": 0.3}),
    "kl by sequence": ({"kl_weight": 0.3, "aggregation": "sequence"}, {"loss_type": "grpo", "beta": 0.3}),
    "truncated": ({"mask_truncated": True}, {"loss_type": "dapo", "mask_truncated_completions": True}),
    "truncated by sequence": (
        {"mask_truncated": True, "aggregation": "sequence"},
        {"loss_type": "grpo", "mask_truncated_completions": True},
    ),
    "temperature": ({"temperature": 0.7}, {"loss_type": "dapo", "temperature": 0.7}),
    "importance": (
        {"old_logprobs": "recomputed", "importance_cap": 1.1},
        {"loss_type": "dapo", "vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 1.1},
    ),
}


def trl_gradient(
    folder: Path, model: Any, batch: Batch, samples: int, engine_is_old: bool, **options: Any
) -> tuple[np.ndarray, float, Any]:
    """Advantages, loss and gradient of TRL's trainer on the batch."""
    rewards = np.asarray(batch.rewards)
    arguments = GRPOConfig(
        folder, per_device_train_batch_size=len(rewards), num_generations=samples, max_completion_length=LIMIT, use_cpu=True,
        bf16=False, gradient_checkpointing=False, report_to=[], use_bias_correction_kl=False, disable_dropout=True,
        **{"beta": 0.0, "temperature": 1.0, **options},
    )  # fmt: skip
    small_model(REFERENCE).save_pretrained(folder / "reference")
    model.config._name_or_path = str(folder / "reference")  # where TRL looks for its reference
    rows = [{"prompt": f"t{i}"} for i in range(len(rewards))]
    trainer = GRPOTrainer(
        model, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=word_tokenizer(),
        reward_funcs=lambda completions, **_: rewards.tolist(),
        rollout_func=lambda prompts, trainer: {
            "prompt_ids": batch.prompt_ids, "completion_ids": batch.response_ids,
            "logprobs": [x.tolist() for x in batch.engine_logprobs],
        },
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    trainer.use_vllm = "vllm_importance_sampling_mode" in options  # where TRL keeps the correction; no vLLM is asked
    trainer._last_loaded_step = trainer.state.global_step
    trainer.model.train()
    scored = trainer._generate_and_score_completions(rows)
    if engine_is_old:
        scored["old_per_token_logps"] = scored["sampling_per_token_logps"]
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, scored)
    loss.backward()
    return scored["advantages"].numpy(), float(loss.detach()), gradient_of(trainer.model)


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_are_those_of_trl(case: str, tmp_path: Path) -> None:
    ours, theirs = CASES[case]
    samples, model = 4, small_model()
    batch = noise_batch(model, samples=samples)
    options = GrpoOptions(**{"std": "sample", "eps": 1e-4, "max_grad_norm": math.inf, "token_budget": 64, **ours})
    algorithm = Grpo(model, still(model), options)
    if options.kl_weight:
        algorithm.reference = frozen_copy(small_model(REFERENCE))
    metrics = algorithm.learn(batch)
    gradient = gradient_of(model)
    assert gradient.abs().max() > 1e-3
    if options.old_logprobs == "engine":
        assert metrics["clip_share"] > 0, "the batch is far enough from the model for the clip to matter"

    advantages, loss, expected = trl_gradient(
        tmp_path, small_model(), batch, samples, options.old_logprobs == "engine", **theirs
    )
    np.testing.assert_allclose(group_advantages(batch.rewards, batch.group_of, options.std, options.eps), advantages, atol=1e-6)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-6)
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-4)
