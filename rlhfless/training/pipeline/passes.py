"""Runs the models of GRPO and PPO in pipeline stages, as ``algorithms/passes.py`` asks for: the same losses, other processes.

The optimizer and its state stay in the trainer's process, and so does the norm of the gradient, over the stages of all devices.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhfless.training import missing_torch

try:
    from torch import Tensor
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.algorithms.batch import Batch, Part
from rlhfless.training.algorithms.critic import PolicyAndCritic
from rlhfless.training.algorithms.passes import Looked, Loss, LossPart, Models, add_to
from rlhfless.training.config.pipeline import PipelineOptions
from rlhfless.training.logprobs import logits_to_logprobs
from rlhfless.training.pipeline.fused import FusedTraining, ModelLoss, PipelineStep
from rlhfless.training.worker_group import WorkerGroup
from solver.pipeline import Chain, PipelinePlan, PipelineProblem, fused, one_f_one_b, schedule_pipeline, serial

PLANNING_S = 1.0  # of counted work, once per run


@dataclass(frozen=True)
class PolicyEnd:
    """What the actor's last stage computes from logits (B, T, V), see ``ModelLoss``."""

    loss: Loss | None
    temperature: float

    def __call__(self, logits: Tensor, each: LossPart) -> tuple[Tensor, tuple[dict[str, float], Tensor]]:
        """Return the loss; report its numbers and the log-probabilities."""
        assert self.loss is not None
        new = logits_to_logprobs(logits, each.input_ids, self.temperature)
        loss, numbers = self.loss(each, new)
        return loss, (numbers, new.detach().cpu())

    def look(self, logits: Tensor, each: Part) -> Tensor:
        """Report the log-probabilities."""
        return logits_to_logprobs(logits, each.input_ids, self.temperature).cpu()


@dataclass(frozen=True)
class CriticEnd:
    """What the critic's last stage computes from values (B, T - 1), see ``ModelLoss``."""

    loss: Loss | None

    def __call__(self, values: Tensor, each: LossPart) -> tuple[Tensor, dict[str, float]]:
        """Return the loss; report its numbers."""
        assert self.loss is not None
        return self.loss(each, values)

    def look(self, values: Tensor, each: Part) -> Tensor:
        """Report the values."""
        return values.cpu()


class PipelinePasses:
    """Runs an algorithm's models in stages, one process per device; see ``Passes``.

    Args:
        algorithm: GRPO, or PPO with a critic that is a model.
        options: of the pipeline. group: see ``FusedTraining``.

    Attributes:
        steps: what the updates on the last batch gave.

    Raises:
        InputError: a model cannot be split into these stages.
    """

    def __init__(self, algorithm: Models, options: PipelineOptions, group: WorkerGroup | None = None) -> None:
        trained = algorithm.trained
        both = isinstance(trained, PolicyAndCritic)
        self._policy: Any = trained.policy if both else trained
        self._critic: Any = trained.critic if both else None
        self._options = options
        plan = pipeline_plan(options, _blocks(self._policy), None if self._critic is None else _blocks(self._critic.backbone))
        self._temperature = algorithm.options.temperature
        ends: dict[str, ModelLoss] = {"actor": PolicyEnd(None, self._temperature), "critic": CriticEnd(None)}
        gpus = self._policy.device.type == "cuda"
        self.fused = FusedTraining(
            self._policy, self._critic, plan, ends, reference=algorithm.reference, gpus=gpus, group=group
        )
        self.steps: list[PipelineStep] = []

    def parts(self, batch: Batch, rows: np.ndarray) -> list[Part]:
        """See ``Passes``: exactly as many as the pipeline has micro-batches."""
        self.steps = []
        return batch.equal_parts(rows, self._options.micro_batches, self._policy.device)

    def look(self, parts: Sequence[Part], sums: dict[str, float]) -> list[Looked]:
        """See ``Passes``."""
        logprobs = self._look("actor", parts, sums)
        values = [None] * len(parts) if self._critic is None else self._look("critic", parts, sums)
        references = self.reference(parts, sums) if self.fused.has_reference else [None] * len(parts)
        return [Looked(*found) for found in zip(logprobs, values, references, strict=True)]

    def reference(self, parts: Sequence[Part], sums: dict[str, float]) -> list[Tensor]:
        """See ``Passes``."""
        return self._look("reference", parts, sums)

    def _look(self, model: str, parts: Sequence[Part], sums: dict[str, float]) -> list[Tensor]:
        began = time.perf_counter()
        found = self.fused.look(model, [part.to("cpu") for part in parts]) if parts else []
        sums["prepare_seconds"] += time.perf_counter() - began
        return [values.to(self._policy.device) for values in found]

    def accumulate(self, micro_batches: Sequence[LossPart], losses: Sequence[Loss], sums: dict[str, float]) -> list[Tensor]:
        """See ``Passes``."""
        if not micro_batches:
            return []
        self.fused.losses = {"actor": PolicyEnd(losses[0], self._temperature), "critic": CriticEnd(losses[-1])}
        given = [each.to("cpu") for each in micro_batches]
        step = self.fused.step(given, given if self._critic is not None else ())
        self.steps.append(step)
        for numbers in [*(numbers for numbers, _ in step.reports["actor"]), *step.reports["critic"]]:
            add_to(sums, numbers)
        return [new.to(self._policy.device) for _, new in step.reports["actor"]]

    def close(self) -> None:
        """See ``Passes``."""
        self.fused.close()


def pipeline_plan(options: PipelineOptions, blocks: int, critic_blocks: int | None = None) -> PipelinePlan:
    """Return the schedule of a training run.

    A block's forward pass counts as one unit of time and of memory, its backward pass as two.

    Args:
        blocks: of the actor. critic_blocks: of the critic; None: there is none.
    """
    stages, count, critic_stages = options.stages, options.micro_batches, options.critic_stages
    block = -(-blocks // stages)
    if critic_stages is None or critic_blocks is None:
        problem = PipelineProblem([Chain("actor", range(stages), count, block, 2 * block, block)])
    else:
        critic_block = -(-critic_blocks // critic_stages)
        critic = (critic_stages, critic_block, count // options.copies)
        problem = fused((stages, block, count), critic, activations=(block, critic_block))
    if options.schedule == "1f1b":
        return one_f_one_b(problem)
    return serial(problem) if options.schedule == "serial" else schedule_pipeline(problem, time_limit_s=PLANNING_S)


def _blocks(model: Any) -> int:
    blocks: int = model.config.num_hidden_layers
    return blocks
