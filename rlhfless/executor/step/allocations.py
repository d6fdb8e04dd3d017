"""Writes which holder had which GPUs for how long, once a step is over: the actors' allocations and the learner's.

Inputs: the record, the plan, its cluster and the finished actors. Output: allocation and learner rows in the record.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlhfless.executor.step.actor_state import Allocation
from rlhfless.executor.step.record import StepRecord, holder_of
from solver.model.cluster import Cluster, MixedCluster
from solver.model.objective import NonGenerationPhases
from solver.model.plan import Plan


def bill(
    record: StepRecord, plan: Plan, held: Sequence[Allocation], cluster: Cluster | MixedCluster, phases: NonGenerationPhases
) -> None:
    """Write the phases after generation and the allocations, and close the record.

    Actors have their GPUs until they are done, or for as long as the plan says, at the price in the plan.
    """
    generated_s = record.start_s + record.makespan_s
    end_s = generated_s + phases.seconds
    until = {"generation": generated_s, "step": end_s}
    for number, role, actor, start_s, done_s in sorted(held, key=lambda allocation: allocation.number):
        record.allocate(
            holder_of(number), role, actor.node, actor.gpu_ids, actor.kind, actor.market, actor.usd_per_gpu_s, start_s,
            max(until.get(actor.release, done_s), done_s),
        )  # fmt: skip
    if phases.learner_gpus:
        _learner(record, plan, cluster, phases, generated_s, end_s)
    record.close(max([end_s, *(row["end_s"] for row in record.allocations)]))


def _learner(
    record: StepRecord,
    plan: Plan,
    cluster: Cluster | MixedCluster,
    phases: NonGenerationPhases,
    generated_s: float,
    end_s: float,
) -> None:
    """Write the learner's GPUs, which are not among the cluster's: prefill where no other actor does it, then preparation and
    learning.
    """
    first = cluster.pools[0]
    usd_per_gpu_s = first.usd_per_gpu_s if phases.usd_per_gpu_hour is None else phases.usd_per_gpu_hour / 3600.0
    node, learner_gpu_ids = sum(pool.nodes for pool in cluster.pools), range(cluster.gpus, cluster.gpus + phases.learner_gpus)
    record.allocate("learner", "learner", node, learner_gpu_ids, first.kind, first.market, usd_per_gpu_s, record.start_s, end_s)
    if plan.prefill is not None and plan.prefill_actor is None:
        computed_s = record.start_s + plan.prefill.done_s
        record.span("learner", "prefill", record.start_s, computed_s, tokens=plan.prefill.computed_tokens)
    record.span("learner", "prepare", generated_s, generated_s + phases.prepare_s)
    record.span("learner", "learn", generated_s + phases.prepare_s, end_s)
