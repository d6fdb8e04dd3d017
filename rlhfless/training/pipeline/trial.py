"""Tries pipeline schedules on processes of this machine: PPO's losses on models too small to take time, passes that sleep.

So schedules and messages are measured, and that gradients are those of whole models, but not the speed of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rlhfless.errors import InputError
from rlhfless.training import missing_torch

try:
    import torch
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.training.algorithms.batch import Part
from rlhfless.training.algorithms.critic import PolicyAndCritic, make_critic
from rlhfless.training.algorithms.passes import LossPart
from rlhfless.training.algorithms.ppo import Ppo, critic_loss, policy_loss
from rlhfless.training.config.learning import PpoOptions
from rlhfless.training.models.tiny_model import tiny_qwen2
from rlhfless.training.pipeline.fused import FusedTraining, ModelLoss
from rlhfless.training.pipeline.passes import CriticEnd, PolicyEnd
from solver.pipeline import ExecutedPlan, PipelinePlan

OPTIONS = PpoOptions(vf_coef=0.5)
LOSSES = [partial(policy_loss, OPTIONS), partial(critic_loss, OPTIONS)]
ENDS: dict[str, ModelLoss] = {"actor": PolicyEnd(LOSSES[0], 1.0), "critic": CriticEnd(LOSSES[1])}
ROWS, WIDTH, TOKENS = 2, 16, 20  # of a micro-batch: responses, tokens of each, and token ids that occur


@dataclass(frozen=True, eq=False)
class TriedPlan:
    """A schedule that was executed by processes.

    Attributes:
        executed: its measured times. in_flight: most micro-batches that a device held at once.
        tensors: number of gradients. equal: of them, those that equal the gradients of whole models bit for bit.
        largest_difference: of a gradient to that of whole models, relative to its largest entry.
    """

    executed: ExecutedPlan
    in_flight: int
    tensors: int
    equal: int
    largest_difference: float


def try_plans(plans: Mapping[str, PipelinePlan], unit_s: float = 0.02, repeats: int = 1) -> dict[str, list[TriedPlan]]:
    """Execute schedules of an actor and a critic with PPO's losses, one process per device, and return what was measured.

    All schedules run in turn in the same processes. A first step, which opens connections, is not counted.

    Args:
        plans: of one problem, by name. unit_s: seconds that a pass takes at least per unit of its planned time.
        repeats: executions of every schedule.

    Raises:
        InputError: there is no plan, or plans are of several problems or of one model.
        LearnerError: a process died.
    """
    problems = {id(plan.problem): plan.problem for plan in plans.values()}
    if not problems or any(problem != next(iter(problems.values())) for problem in problems.values()):
        raise InputError(f"plans are of {len(problems)} problems; give at least one plan, and all of one problem")
    chain = next(iter(problems.values())).chains[0]
    both, parts = _models(chain.stages), _micro_batches(chain.micro_batches)
    whole = _gradients_of_whole_models(both, parts)
    found: dict[str, list[TriedPlan]] = {name: [] for name in plans}
    with FusedTraining(both.policy, both.critic, next(iter(plans.values())), ENDS, unit_s=unit_s) as training:
        training.step(parts, parts)
        for _ in range(repeats):
            for name, plan in plans.items():
                training.follow(plan)
                step = training.step(parts, parts)
                ours = _taken_gradients(both)
                apart = [float((ours[key] - whole[key]).abs().max() / whole[key].abs().max()) for key in whole]
                executed = ExecutedPlan(plan, step.passes, unit_s)
                equal = sum(difference == 0 for difference in apart)
                found[name].append(TriedPlan(executed, max(step.in_flight), len(apart), equal, max(apart)))
    return found


def _models(layers: int) -> PolicyAndCritic:
    """Return an actor and its critic of so many blocks."""
    actor = tiny_qwen2(CharTokenizer(), 0, hidden=16, layers=layers, heads=2, kv_heads=1, intermediate=32)
    critic = make_critic(actor, "model")
    weight: Any = critic.head.weight
    torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(1))  # 0 has no gradient below
    return PolicyAndCritic(actor, critic)


def _micro_batches(count: int) -> list[LossPart]:
    """Return micro-batches of noise, with what PPO's losses need."""
    generator, shape = torch.Generator().manual_seed(0), (ROWS, WIDTH - 1)
    found = []
    for _ in range(count):
        ids = torch.randint(2, TOKENS, (ROWS, WIDTH), generator=generator)
        drawn = {name: torch.randn(shape, generator=generator) for name in ("advantages", "values", "returns")}
        part = Part(list(range(ROWS)), ids, torch.ones(shape, dtype=torch.bool), {**drawn, "old": drawn["values"] - 3})
        tokens = float(count * ROWS * (WIDTH - 1))
        found.append(LossPart.of(part, {"weight": np.ones(ROWS)}, loss=tokens, value=tokens))
    return found


def _taken_gradients(both: PolicyAndCritic) -> dict[str, Any]:
    """Return gradients by name, and clear them."""
    found = {name: parameter.grad for name, parameter in both.named_parameters()}
    both.zero_grad()
    return found


def _gradients_of_whole_models(both: PolicyAndCritic, parts: list[LossPart]) -> dict[str, Any]:
    """Return the gradients that this process computes."""
    sums = dict.fromkeys(("loss", "value_loss", "clipped", "values_clipped", "kl"), 0.0)
    Ppo(both, None, OPTIONS).passes.accumulate(parts, LOSSES, sums)
    return _taken_gradients(both)
