"""Builds a ``Plan`` from groups of responses: placement on GPUs, admission order, exact times.

Every planner and every scheduling policy builds its plan here, so that their numbers are comparable. How the groups are found
plays no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from solver.model.errors import PlanningError
from solver.model.plan import ActorPlan, Plan
from solver.model.plurals import counted
from solver.model.problem import PlanningProblem
from solver.timing.evaluate import ActorSeconds, Evaluation, actor_busy_s, admission_of, check_complete, evaluate, evaluated


def assemble(
    policy: str,
    groups: Sequence[ArrayLike],
    problem: PlanningProblem,
    *,
    max_batch: int | None = None,
    seconds: ActorSeconds = actor_busy_s,
) -> Plan:
    """Return a plan with one actor per group, in the given admission order, timed by the planning model.

    Actors are placed in the order of the groups, nodes filled one after the other. The first ones use the prewarmed containers.

    Args:
        problem: with one kind of actors; its bounds on their number do not count. max_batch: slots of an actor, if fewer than
            the latency model has. seconds: ``actor_busy_s``, or a function that knows some of its results.

    Raises:
        PlanningError: the groups do not hold every response once, or there are more than actors fit.
    """
    workload, (cluster, latency) = problem.workload, problem.one_kind
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
                cluster.kind, gpu_ids, node, tuple(responses.tolist()), tuple(prompts), slots, release=problem.release,
                market=cluster.market, usd_per_gpu_s=cluster.usd_per_gpu_s, prewarmed=i < cluster.prewarmed,
                shares_prompts=problem.share_prefill,
            )
        )  # fmt: skip
    plan = Plan(tuple(actors), policy, 0.0, 0.0, 0.0)
    check_complete(plan, len(workload))
    return with_times(plan, evaluated(plan, problem, [latency.affine] * len(actors), seconds))


def timed(plan: Plan, problem: PlanningProblem) -> Plan:
    """Return the plan with the times and costs that the planning model gives it on the problem's workload."""
    return with_times(plan, evaluate(plan, problem))


def with_times(plan: Plan, evaluation: Evaluation) -> Plan:
    """Return the plan with the times and costs of its evaluation."""
    return replace(
        plan,
        actors=tuple(replace(a, predicted_s=float(t)) for a, t in zip(plan.actors, evaluation.done_s, strict=True)),
        makespan_s=evaluation.makespan_s,
        gpu_seconds=evaluation.gpu_seconds,
        cost_usd=evaluation.cost_usd,
    )
