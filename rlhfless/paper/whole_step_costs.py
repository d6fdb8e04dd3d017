"""What preparation, learning and a learner's size cost in whole steps on the paper's machines: named options, none measured."""

from __future__ import annotations

from dataclasses import dataclass

from rlhfless.paper.machine import KEPT_PER_DOUBLING, TRAINED_MODELS, Machine
from rlhfless.simulate import StepCosts
from solver.stage_fusion.learner_charges import LearnerCharges

UNLOCKS = {"PPO": "response", "GRPO": "group"}
"""What learning of a response waits for: GRPO's advantages need all samples of a prompt."""


@dataclass(frozen=True)
class ChargeOptions:
    """Assumptions behind the charges of a learner.

    Attributes:
        loss_per_doubling: speed that each GPU loses with every doubling of the learner beyond that of the naive system. A
            smaller learner gains nothing.
        load_bytes_per_s: from host memory to each GPU, when a learner's GPUs are allocated. They load the weights of the
            trained models, and the optimizer's state, in parts as of the naive learner's GPUs.
        weight_bytes, optimizer_bytes: per parameter.
        link_bytes_per_s: of each GPU, in the ring all-reduce of gradients with as many bytes as the weights.
    """

    loss_per_doubling: float = 1 - KEPT_PER_DOUBLING
    load_bytes_per_s: float = 20e9
    weight_bytes: float = 2.0
    optimizer_bytes: float = 12.0
    link_bytes_per_s: float = 20e9


def step_costs(machine: Machine, algorithm: str, options: ChargeOptions) -> StepCosts:
    """Return the costs of whole steps on a machine, for ``PPO`` or ``GRPO``.

    Seconds per token at full speed are those of ``Machine.phases``. Weight sync to the actors is in their latency profile.
    """
    gpus, learner = machine.latency.gpus_per_actor, machine.learner_gpus
    servers, trained = learner // gpus, TRAINED_MODELS[algorithm] * machine.parameters
    per_token = machine.phases(algorithm, 1.0)
    loaded = trained * (options.weight_bytes / gpus + options.optimizer_bytes / learner)
    charges = LearnerCharges(
        servers, options.loss_per_doubling, loaded / options.load_bytes_per_s,
        trained * options.weight_bytes / gpus / options.link_bytes_per_s,
    )  # fmt: skip
    return StepCosts(per_token.prepare_s * servers, per_token.learn_s * servers, UNLOCKS[algorithm], charges, servers)
