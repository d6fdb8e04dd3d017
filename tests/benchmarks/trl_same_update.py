"""One step that TRL and our trainer learn from the very same responses and rewards: how far their gradients are apart.

Both take a step of SGD, so the change of the weights is the gradient, scaled down to a norm of 1 where it is longer. (AdamW's
first step would divide each entry by itself, and so show the rounding of entries near 0.) That optimizers and schedules agree
is tested in ``tests/training/algorithms/test_grpo_trl.py``. For `trl_step_time.py`; needs TRL.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl_trainer import options_of, tokenizer_of

from rlhfless.training.algorithms.batch import Batch
from rlhfless.training.loop import Trainer

SGD = {"optimizer": "sgd", "learning_rate": 1.0}


def weights_of(model: Any) -> torch.Tensor:
    """All weights as one vector."""
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def same_update(make: Callable[[], Trainer]) -> dict[str, float]:
    """Compare one step of our trainer, made for SGD, with TRL's on its responses.

    Args:
        make: returns a trainer before its next step, the same one every time.

    Returns:
        ``relative_difference``: length of the difference of both changes of the weights, over that of TRL's; ``cosine`` of the
        two; ``grad_norm`` and ``trl_grad_norm``, before clipping; ``tokens`` that were learned from.
    """
    with make() as trainer:
        before, learner, taken = weights_of(trainer.model), trainer.state.learner, []
        plain = learner.learn

        def noted(batch: Batch) -> Any:
            taken.append(batch)
            return plain(batch)

        with mock.patch.object(learner, "learn", noted):
            step = trainer.step()
        ours, grad_norm = weights_of(trainer.model) - before, float(step.learning["grad_norm"])
    with make() as trainer:
        model, config, tokenizer = trainer.model, trainer.config, trainer.tokenizer
    change, trl_grad_norm = learned_by_trl(model, config, tokenizer, taken[0])
    return {
        "relative_difference": float((ours - change).norm() / change.norm()),
        "cosine": float(torch.dot(ours, change) / ours.norm() / change.norm()),
        "grad_norm": grad_norm, "trl_grad_norm": trl_grad_norm, "tokens": float(sum(map(len, taken[0].response_ids))),
    }  # fmt: skip


def learned_by_trl(model: Any, config: Any, tokenizer: Any, batch: Batch) -> tuple[torch.Tensor, float]:
    """The change of the weights by one step of TRL's trainer on a batch, and the norm of its gradient."""
    before, samples = weights_of(model), config.rollout.samples_per_prompt
    prompts = [tokenizer.decode(list(ids)) for ids in batch.prompt_ids[::samples]]

    def generated(given: Any, trainer: Any) -> dict[str, Any]:
        logprobs = [row.tolist() for row in batch.engine_logprobs]
        return {"prompt_ids": batch.prompt_ids, "completion_ids": batch.response_ids, "logprobs": logprobs}

    with tempfile.TemporaryDirectory() as folder:
        options = {**options_of(config, on_gpu=False), "optim": "sgd", "max_steps": 1, "logging_steps": 1}
        trainer = GRPOTrainer(
            model, args=GRPOConfig(folder, **options), processing_class=tokenizer_of(tokenizer), rollout_func=generated,
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
            reward_funcs=lambda completions, **_: [float(reward) for reward in batch.rewards],
        )  # fmt: skip
        trainer.train()
    (norm,) = [float(row["grad_norm"]) for row in trainer.state.log_history if "grad_norm" in row]
    return weights_of(trainer.model) - before, norm
