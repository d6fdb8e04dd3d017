"""Defines ``solver.plan_of``: the plan of a given assignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from solver.model.errors import PlanningError, as_given, is_whole
from solver.model.plan import Plan
from solver.model.plurals import counted
from solver.model.problem import PlanningProblem, check_problem
from solver.model.workload import IntArray
from solver.timing.build_plan import assemble
from solver.timing.evaluate import check_each_once

Group = Sequence[int] | IntArray | tuple[int, Sequence[int] | IntArray]
"""The responses of one actor in admission order; with several offers the number of the actor's offer and its responses."""


def plan_of(groups: Sequence[Group], problem: PlanningProblem, *, policy: str = "given") -> Plan:
    """Return the plan of an assignment of your own, one actor per group, with the same time and cost model as every other plan.

    The plan has no ``value`` and no bound. ``solver.evaluate`` times it with other lengths; executors and simulations run it.
    The first of equal actors use the prewarmed containers.

    Args:
        groups: for each actor the indices of its responses in the workload, in the order of admission. Where the problem has
            several kinds, sizes or markets of actors, pairs of a number of ``problem.offers`` and the indices.
        policy: the name that the plan shows.

    Raises:
        PlanningError: a response is missing, in two groups or not in the workload; there are more actors than fit or than
            ``max_actors``, or fewer than ``min_actors``; an offer is unknown or cannot hold a response; or a prompt is divided
            though the problem keeps prompts together.

    Example:
        >>> import solver
        >>> latency = solver.LatencyModel("mine", 1, base_s=5e-3, per_response_s=1e-5, max_batch=64, start_s=1.0)
        >>> workload = solver.Workload([100] * 4, [0, 1, 2, 3], [100, 200, 300, 2000])
        >>> problem = solver.PlanningProblem(workload, solver.Cluster(1, 8, 1), latency)
        >>> mine = solver.plan_of([[3], [2, 1, 0]], problem, policy="the long one alone")
        >>> [actor.responses for actor in mine.actors]
        [(3,), (2, 1, 0)]
        >>> mine.makespan_s < 11.1, solver.plan(problem).gpu_seconds < mine.gpu_seconds
        (True, True)
    """
    check_problem(problem)
    if not isinstance(policy, str):
        raise PlanningError(f"policy is {as_given(policy)}; a name for the plan is needed")
    if not isinstance(groups, Sequence | np.ndarray) or isinstance(groups, str) or not len(groups):
        raise PlanningError(f"groups is {as_given(groups)}; a list with the responses of each actor is needed")
    offers, responses = [], []
    for i, group in enumerate(groups):
        offer, given = _offer_of(i, group, problem) if problem.several_kinds else (0, group)
        offers.append(offer)
        responses.append(_indices(i, given))
    _check_counts(len(groups), problem)
    check_each_once(responses, len(problem.workload))
    for i, (offer, chosen) in enumerate(zip(offers, responses, strict=True)):
        _check_memory(i, offer, chosen, problem)
    plan = assemble(policy, responses, problem, offers)
    if problem.keep_together:
        _check_together(plan)
    return plan


def _offer_of(i: int, group: Any, problem: PlanningProblem) -> tuple[int, Any]:
    """Return the number of the offer of group ``i`` and what is given as its responses."""
    known = ", ".join(f"{k}: {o.gpus} x {o.kind} ({o.market})" for k, o in enumerate(problem.offers))
    if not isinstance(group, tuple | list) or len(group) != 2 or not isinstance(group[1], Sequence | np.ndarray):
        raise PlanningError(f"group {i} is {as_given(group)}; (offer, responses) is needed, with one of the offers {known}")
    offer, responses = group
    if not is_whole(offer, 0) or offer >= len(problem.offers):
        raise PlanningError(f"group {i} is for offer {as_given(offer)}, which is unknown; choose one of {known}")
    return int(offer), responses


def _indices(i: int, given: Any) -> IntArray:
    """Return the responses of group ``i`` as whole numbers."""
    try:
        chosen = np.asarray(given)
    except ValueError:  # lists of several depths
        chosen = np.zeros(0)
    if chosen.ndim != 1 or not len(chosen) or chosen.dtype.kind not in "iu":
        raise PlanningError(
            f"group {i} is {as_given(given)}; a list of whole numbers is needed, the index of each of its responses"
        )
    return chosen.astype(np.int64)


def _check_counts(actors: int, problem: PlanningProblem) -> None:
    """Refuse more or fewer actors than the problem allows."""
    if problem.max_actors is not None and actors > problem.max_actors:
        raise PlanningError(
            f"there are {counted(actors, 'group')}, but max_actors is {problem.max_actors}; give fewer or raise it"
        )
    if actors < problem.needed_actors:
        raise PlanningError(
            f"there are {counted(actors, 'group')}, but min_actors is {problem.min_actors}; give more or lower it"
        )


def _check_memory(i: int, offer: int, chosen: IntArray, problem: PlanningProblem) -> None:
    """Refuse responses that can outgrow the KV memory of their actor."""
    reserved, latency = problem.workload.reserved_tokens, problem.offers[offer].latency
    if len(large := chosen[reserved[chosen] > latency.kv_capacity_tokens]):
        raise PlanningError(
            f"response {large[0]} of group {i} can reach {reserved[large[0]]:,} KV tokens, but an actor of {latency.name!r} "
            f"holds {latency.kv_capacity_tokens:,}; move it to an actor with more memory"
        )


def _check_together(plan: Plan) -> None:
    """Refuse prompts whose responses are on several actors."""
    group_of: dict[int, int] = {}
    for i, actor in enumerate(plan.actors):
        for prompt in actor.prompts:
            if group_of.setdefault(prompt, i) != i:
                raise PlanningError(
                    f"the responses of prompt {prompt} are in groups {group_of[prompt]} and {i}, but the problem keeps prompts "
                    f"together; move them into one group or set keep_together=False"
                )
