"""Actors of other sizes on the paper's machines: a lever that the paper's settings, with one size per model, leave out.

The learner keeps the tensor-parallel size of the setting, and may consist of the GPUs of several smaller actors. So preparation
and learning take the same GPU-seconds whatever size actors have, and the charges of a learner depend on its GPUs only.
"""

from __future__ import annotations

import math
from dataclasses import replace

from rlhfless.latency import CallTable, StepBatch, generation_latency
from rlhfless.paper.machine import Machine
from rlhfless.simulate import SimulationConfig, StepCosts
from rlhfless.simulate.whole_steps.whole_step import StepVariant
from solver.model.latency import LatencyModel
from solver.model.step_levers import ACTOR_SIZE
from solver.model.workload import Workload
from solver.stage_fusion.sized_charges import SizedCharges


def size_variants(
    machine: Machine, costs: StepCosts, setting: SimulationConfig, predicted: Workload
) -> tuple[StepVariant, ...]:
    """Return a variant for every other size of actors that the table of measured operators has.

    Args:
        costs, setting: of the machine's own size. predicted: prompts and expected lengths of the step, at which prefill is
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
                replace(setting, cluster=cluster, latency=latency), _costs(costs, own.gpus_per_actor, size, machine.gpus),
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


def _costs(costs: StepCosts, own_gpus: int, size: int, gpus: int) -> StepCosts:
    """Return costs per server of another size; a learner has whole servers of the own size."""
    charges = []
    for servers in range(1, gpus // size + 1):
        own_servers, left = divmod(servers * size, own_gpus)
        charges.append(
            (math.inf,) * 3
            if left
            else (costs.charges.slower(own_servers), costs.charges.finish_s(own_servers), costs.charges.loading_s(own_servers))
        )
    slower, finish_s, loading_s = zip(*charges, strict=True)
    return replace(
        costs, prepare_per_token_s=costs.prepare_per_token_s * own_gpus / size,
        learn_per_token_s=costs.learn_per_token_s * own_gpus / size,
        charges=SizedCharges(tuple(slower), tuple(finish_s), tuple(loading_s)),
        naive_servers=max(1, costs.naive_servers * own_gpus // size),
    )  # fmt: skip
