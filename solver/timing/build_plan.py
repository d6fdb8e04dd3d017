"""Builds a ``Plan`` from groups of responses: placement on GPUs, admission order, exact times.

Every planner and every scheduling policy builds its plan here, so that their numbers are comparable. How the groups are found
plays no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel
from solver.model.objective import NonGenerationPhases
from solver.model.offers import Latencies, offers_of
from solver.model.plan import ActorPlan, Plan
from solver.model.plurals import counted
from solver.model.workload import Workload
from solver.timing.evaluate import Evaluation, admission_of, evaluate


def check_fits(workload: Workload, cluster: Cluster | MixedCluster, latency: Latencies) -> None:
    """Refuse a problem that no plan can solve: no actor fits the cluster, or no actor's KV memory can hold some response.

    Raises:
        PlanningError: the message names the limit and by how much it is missed.
    """
    most = workload.reserved_tokens
    worst = int(np.argmax(most))
    roomiest = max((offer.latency for offer in offers_of(cluster, latency)), key=lambda model: model.kv_capacity_tokens)
    if most[worst] > roomiest.kv_capacity_tokens:
        prompt = int(workload.prompt_tokens[workload.prompt_of[worst]])
        room = roomiest.kv_capacity_tokens - prompt
        shorter = f"responses of at most {room:,} tokens" if room > 0 else "shorter prompts"
        raise PlanningError(
            f"response {worst} can reach {most[worst]} KV tokens (prompt {prompt} + limit "
            f"{workload.max_response_tokens}), but an "
            f"actor of {roomiest.name!r} holds {roomiest.kv_capacity_tokens}; {shorter}, or larger actors, are needed"
        )


def assemble(
    policy: str,
    groups: Sequence[ArrayLike],
    workload: Workload,
    cluster: Cluster,
    latency: LatencyModel,
    phases: NonGenerationPhases = NonGenerationPhases(),  # noqa: B008 (frozen)
    *,
    max_batch: int | None = None,
    release: str = "done",
    admission: str = "reserve",
    shares_prompts: bool = False,
) -> Plan:
    """Return a plan with one actor per group, in the given admission order, timed by the planning model.

    Actors are placed in the order of the groups, nodes filled one after the other. The first ones use the prewarmed containers.
    """
    if len(groups) > cluster.max_actors:
        raise PlanningError(
            f"{counted(len(groups), 'actor')} of {counted(cluster.gpus_per_actor, 'GPU')} are requested, but "
            f"{counted(cluster.nodes, 'node')} of {counted(cluster.gpus_per_node, 'GPU')} can hold {cluster.max_actors}"
        )
    slots = admission_of(latency, max_batch).max_batch
    actors = []
    for i, group in enumerate(groups):
        node, gpu_ids = cluster.place(i)
        responses = np.asarray(group, dtype=np.int64)
        prompts = dict.fromkeys(workload.prompt_of[responses].tolist())
        actors.append(
            ActorPlan(
                cluster.kind, gpu_ids, node, tuple(responses.tolist()), tuple(prompts), slots, release=release,
                market=cluster.market, usd_per_gpu_s=cluster.usd_per_gpu_s, prewarmed=i < cluster.prewarmed,
                shares_prompts=shares_prompts,
            )
        )  # fmt: skip
    return timed(Plan(tuple(actors), policy, 0.0, 0.0, 0.0), workload, latency, phases, admission=admission)


def timed(
    plan: Plan,
    workload: Workload,
    latency: Latencies,
    phases: NonGenerationPhases = NonGenerationPhases(),  # noqa: B008 (frozen)
    *,
    admission: str = "reserve",
) -> Plan:
    """Return the plan with the times and costs that the planning model gives it on ``workload``."""
    return with_times(plan, evaluate(plan, workload, latency, phases, admission=admission))


def with_times(plan: Plan, taken: Evaluation) -> Plan:
    """Return the plan with the times and costs of its evaluation."""
    return replace(
        plan,
        actors=tuple(replace(a, predicted_s=float(t)) for a, t in zip(plan.actors, taken.done_s, strict=True)),
        makespan_s=taken.makespan_s,
        gpu_seconds=taken.gpu_seconds,
        cost_usd=taken.cost_usd,
    )
