"""What preparation, learning, a learner's size and the size of actors cost in whole steps: named options, none measured.

The paper's settings have one size of actors per model. Where plans may choose it, the learner keeps the tensor-parallel size
of the setting, and may consist of the GPUs of several smaller actors. So preparation and learning take the same GPU-seconds
whatever size actors have, and the charges of a learner depend on its GPUs only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rlhfless.latency import CallTable, StepBatch, generation_latency
from rlhfless.paper.machine import KEPT_PER_DOUBLING, TRAINED_MODELS, Machine
from rlhfless.simulate import SimulationConfig
from rlhfless.simulate.whole_steps.whole_step import StepVariant
from solver.model.latency import LatencyModel
from solver.model.step_levers import ACTOR_SIZE
from solver.model.workload import Workload
from solver.step.charges import Charges
from solver.step.work import TokenWork

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


def step_costs(machine: Machine, algorithm: str, options: ChargeOptions) -> TokenWork:
    """Return the costs of whole steps on a machine, for ``PPO`` or ``GRPO``.

    Seconds per token at full speed are those of ``Machine.phases``. Weight sync to the actors is in their latency profile.
    """
    gpus, learner = machine.latency.gpus_per_actor, machine.learner_gpus
    servers, trained = learner // gpus, TRAINED_MODELS[algorithm] * machine.parameters
    per_token = machine.phases(algorithm, 1.0)
    loaded = trained * (options.weight_bytes / gpus + options.optimizer_bytes / learner)
    charges = Charges.by_formula(
        machine.gpus // gpus, servers, options.loss_per_doubling, loaded / options.load_bytes_per_s,
        trained * options.weight_bytes / gpus / options.link_bytes_per_s,
    )  # fmt: skip
    return TokenWork(per_token.prepare_s * servers, per_token.learn_s * servers, UNLOCKS[algorithm], charges)


def size_variants(
    machine: Machine, token_work: TokenWork, setting: SimulationConfig, predicted: Workload
) -> tuple[StepVariant, ...]:
    """Return a variant for every other size of actors that the table of measured operators has.

    Args:
        token_work, setting: of the machine's own size. predicted: prompts and expected lengths of the step, at which prefill is
            read.
    """
    tokens = (max(1, math.ceil(float(of.mean()))) for of in (predicted.prompt_tokens, predicted.response_tokens))
    batch = StepBatch(len(predicted), *tokens)
    own, kind = machine.latency, machine.latency.kind
    tables = generation_latency(CallTable(kind, {"actor": machine.model.lower()}, batch))
    found = []
    for size, model in tables.items():
        if size == own.gpus_per_actor or machine.gpus_per_node % size:
            continue
        cluster = replace(setting.cluster, gpus_per_actor=size)
        latency = _with_starts(model, own)
        found.append(
            StepVariant(
                replace(setting, cluster=cluster, latency=latency),
                _work_of_size(token_work, own.gpus_per_actor, size, machine.gpus),
                frozenset({ACTOR_SIZE}),
            )
        )  # fmt: skip
    return tuple(found)


def _with_starts(model: LatencyModel, own: LatencyModel) -> LatencyModel:
    """Return a model with the starts of the machine's own size, by weights per GPU, and with its transfers."""
    more = own.gpus_per_actor / model.gpus_per_actor
    return replace(
        model, start_s=own.start_s * more, sync_s=own.sync_s * more, transfer_base_s=own.transfer_base_s,
        transfer_per_kv_token_s=own.transfer_per_kv_token_s,
    )  # fmt: skip


def _work_of_size(token_work: TokenWork, own_gpus: int, size: int, gpus: int) -> TokenWork:
    """Return the work per server of another size; a learner has whole servers of the own size."""
    charges = []
    for servers in range(1, gpus // size + 1):
        own_servers, left = divmod(servers * size, own_gpus)
        possible = not left and token_work.charges.fits(own_servers)
        charges.append(token_work.charges.of_size(own_servers) if possible else (math.inf,) * 3)
    return replace(
        token_work, prepare_per_token_s=token_work.prepare_per_token_s * own_gpus / size,
        learn_per_token_s=token_work.learn_per_token_s * own_gpus / size,
        charges=Charges(*zip(*charges, strict=True)),
    )  # fmt: skip
