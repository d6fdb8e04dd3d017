"""Builds a ``Plan`` from groups of responses: placement on GPUs, admission order, exact times.

Every planner and every scheduling policy builds its plan here, so that their numbers are comparable. How the groups are found
plays no part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from solver.model.errors import PlanningError
from solver.model.node_placement import place
from solver.model.offers import Offer
from solver.model.plan import ActorPlan, Plan
from solver.model.plurals import counted
from solver.model.problem import PlanningProblem
from solver.timing.evaluate import ActorSeconds, Evaluation, actor_busy_s, admission_of, check_each_once, evaluate, evaluated
from solver.timing.step_cost import Pricing


def assemble(
    policy: str,
    groups: Sequence[ArrayLike],
    problem: PlanningProblem,
    offers: Sequence[int] | None = None,
    *,
    max_batch: int | None = None,
    seconds: ActorSeconds = actor_busy_s,
) -> Plan:
    """Return a plan with one actor per group, in the given admission order, timed by the planning model.

    Actors are placed in the order of the groups, larger ones first, nodes filled one after the other. In every pool, the
    prewarmed containers go to the actors whose start would cost most; of equal ones to the first.

    Args:
        problem: its bounds on the number of actors do not count.
        offers: index into ``problem.offers`` of every actor; may be left out where there is one offer.
        max_batch: slots of an actor, if fewer than the latency model has.
        seconds: ``actor_busy_s``, or a function that knows some of its results.

    Raises:
        PlanningError: the groups do not hold every response once, or the actors do not fit.
    """
    workload, members = problem.workload, [np.asarray(group, dtype=np.int64) for group in groups]
    check_each_once(members, len(workload))
    if offers is None:
        offers = [0] * len(groups)
        if problem.several_kinds:
            raise PlanningError(
                f"the problem has {len(problem.offers)} offers of actors; say with offers which one each group runs on"
            )
    chosen = [problem.offers[r] for r in offers]
    places = place(problem.cluster.pools, [(offer.pool, offer.gpus) for offer in chosen])
    if places is None:
        raise PlanningError(_no_place(problem, chosen))
    warm = Pricing.of(problem).prewarmed_of(np.array(offers, dtype=np.int64))
    actors = []
    for i, (offer, responses, (node, gpu_ids)) in enumerate(zip(chosen, members, places, strict=True)):
        prompts = dict.fromkeys(workload.prompt_of[responses].tolist())
        actors.append(
            ActorPlan(
                offer.kind, gpu_ids, node, tuple(responses.tolist()), tuple(prompts),
                admission_of(offer.latency, max_batch).max_batch, release=problem.release, market=offer.market,
                usd_per_gpu_s=offer.usd_per_gpu_s, prewarmed=bool(warm[i]), shares_prompts=problem.share_prefill,
            )
        )  # fmt: skip
    plan = Plan(tuple(actors), policy, 0.0, 0.0, 0.0)
    return with_times(plan, evaluated(plan, problem, [offer.latency.affine for offer in chosen], seconds))


def _no_place(problem: PlanningProblem, actors: Sequence[Offer]) -> str:
    """Return the error message for actors that do not fit into the nodes."""
    sizes = Counter(f"{counted(offer.gpus, 'GPU')} of {offer.kind!r}" for offer in actors)
    wanted = " and ".join(f"{counted(number, 'actor')} of {size}" for size, number in sizes.items())
    room = " and ".join(
        f"{counted(pool.nodes, 'node')} of {counted(pool.gpus_per_node, 'GPU')}"
        + (f" of {pool.kind!r}" if len(problem.cluster.pools) > 1 else "")
        for pool in problem.cluster.pools
    )
    if not problem.several_kinds:
        wanted, most = f"{counted(len(actors), 'actor')} of {counted(actors[0].gpus, 'GPU')}", actors[0].max_actors
        return f"{wanted} are requested, but {room} can hold {most}"
    return f"{wanted} are requested, which do not fit into {room}; start fewer actors or smaller ones"


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
