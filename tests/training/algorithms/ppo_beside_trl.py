"""PPO against TRL's trainer on the same batch: loss and every gradient of policy and critic. float32, within 1e-6 + 1e-4 |g|.

TRL had PPO until 1.12, which is not in the environment: ``test_ppo_trl.py`` fetches it and runs this file with it.
Its trainer runs one whole step here; what it would have generated and scored is given to it. The critic is a model of its own,
as TRL's is. All responses have one length: after a shorter one TRL adds a state behind the end token and rewards that, where
the papers (and this project) reward the last token; ``test_ppo.py`` has the reference for ragged batches.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from learning_samples import TOKENIZER, gradient_of, noise_batch, policy_gradient, small_model, word_tokenizer
from transformers import Qwen2ForSequenceClassification
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

from rlhfless.training.algorithms.base import frozen_copy
from rlhfless.training.algorithms.batch import Batch
from rlhfless.training.algorithms.critic import Critic, PolicyAndCritic
from rlhfless.training.logprobs import response_logprobs

PROMPT, LENGTH, ROWS, GENERATED, REFERENCE = 4, 9, 8, 2, 1  # the last two are seeds of models
RATE = 0.1  # of plain gradient descent, where there are several updates

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "defaults": ({"kl_coef": 0.05, "lam": 0.95}, {}),
    "all changed": (
        {
            "kl_coef": 0.3, "gamma": 0.9, "lam": 0.7, "clip_ratio_low": 0.1, "clip_ratio_high": 0.1, "value_clip": 0.01,
            "vf_coef": 0.5,
        },
        {"kl_coef": 0.3, "gamma": 0.9, "lam": 0.7, "cliprange": 0.1, "cliprange_value": 0.01, "vf_coef": 0.5},
    ),
    "several updates": (
        {"kl_coef": 0.05, "lam": 0.95, "num_updates": 3, "value_clip": 0.01},
        {"num_ppo_epochs": 3, "cliprange_value": 0.01, "learning_rate": RATE, "optim": "sgd", "lr_scheduler_type": "constant"},
    ),
}  # fmt: skip


def value_model() -> Any:
    """A critic with random weights, the same ones every time."""
    config = small_model().config
    config.num_labels = 1
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Qwen2ForSequenceClassification(config)


def fixed_batch() -> Batch:
    """Responses of one length that another policy generated."""
    drawn = noise_batch(small_model(), prompts=ROWS // 4, tokens=(LENGTH, LENGTH))
    prompts = [(p * PROMPT)[:PROMPT] for p in drawn.prompt_ids]
    engine = response_logprobs(small_model(GENERATED), prompts, drawn.response_ids)
    return Batch(prompts, drawn.response_ids, drawn.rewards, drawn.group_of, engine)


def trl_step(monkeypatch: pytest.MonkeyPatch, folder: Path, batch: Batch, **options: Any) -> tuple[float, Any, Any]:
    """Loss, and gradients of policy and critic, in TRL's last update of one step."""
    ids = torch.tensor([p + r for p, r in zip(batch.prompt_ids, batch.response_ids, strict=True)])
    with torch.no_grad():
        logits = small_model(GENERATED)(ids).logits[:, PROMPT - 1 : -1]
    judge, original, found = value_model(), ppo_trainer.get_reward, []

    def get_reward(model: Any, *given: Any) -> Any:
        scores = torch.tensor(np.asarray(batch.rewards), dtype=torch.float32)
        return (None, scores, None) if model is judge else original(model, *given)

    monkeypatch.setattr(ppo_trainer, "batch_generation", lambda *_: (ids, logits))
    monkeypatch.setattr(ppo_trainer, "get_reward", get_reward)
    arguments = PPOConfig(
        folder, per_device_train_batch_size=ROWS, gradient_accumulation_steps=1, num_mini_batches=1,
        total_episodes=ROWS, response_length=LENGTH, temperature=1.0, num_sample_generations=0, use_cpu=True,
        bf16=False, report_to=[], save_strategy="no", gradient_checkpointing=False,
        **{"num_ppo_epochs": 1, "learning_rate": 0.0, **options},
    )  # fmt: skip
    rows = Dataset.from_list([{"input_ids": p} for p in batch.prompt_ids])
    trainer = PPOTrainer(
        arguments, word_tokenizer(), small_model(), small_model(REFERENCE), judge, rows, value_model(), eval_dataset=rows
    )

    def backward(loss: Any) -> None:
        loss.backward()
        found.append((float(loss.detach()), gradient_of(trainer.policy_model), gradient_of(trainer.value_model)))

    monkeypatch.setattr(trainer.accelerator, "backward", backward)
    trainer.train()
    assert len(found) == arguments.num_ppo_epochs
    return found[-1]


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_are_those_of_trl(case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ours, theirs = CASES[case]
    batch, critic = fixed_batch(), value_model()
    trained = PolicyAndCritic(small_model(), Critic(critic.score, critic.model))
    optimizer = torch.optim.SGD(trained.parameters(), lr=RATE) if "num_updates" in ours else None
    reference = frozen_copy(small_model(REFERENCE))
    given = {"max_grad_norm": math.inf, "max_tokens_per_micro_batch": 40, **ours}
    algorithm = policy_gradient("ppo", trained, optimizer, reference, **given)
    options: Any = algorithm.config
    metrics = algorithm.learn(batch)
    assert metrics["clip_share"] > 0
    assert (metrics["value_clip_share"] > 0) == (options.num_updates > 1), "the first update finds the old values"

    loss, of_policy, of_critic = trl_step(monkeypatch, tmp_path, batch, **theirs)
    if options.num_updates == 1:  # else ours is the mean over the updates
        assert metrics["loss"] + options.vf_coef * metrics["value_loss"] == pytest.approx(loss, abs=1e-6)
    torch.testing.assert_close(gradient_of(trained.policy), of_policy, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(gradient_of(critic), of_critic, atol=1e-6, rtol=1e-4)
    assert TOKENIZER.pad_token_id not in np.array(batch.response_ids)
