"""Deduplicates the prefill of a plan: chooses prefixes to compute once, places and times the result, and keeps it if it pays.

The paper's two sources of repeated prefill (RLHFless, arXiv 2602.22718, deduplicated prefill) are removed in two ways. Samples
of a prompt on one actor share one prefill there, which costs nothing. Prefixes that several actors or prompts share are
computed by a prefill actor and sent. A prompt whose samples are split over actors is computed once and its KV cache sent to
each of them. Kept together it needs no transfer.

Of every prompt an actor receives as many tokens as pay (``ActorPlan.prefix_tokens``) and computes the rest itself. A prefix
that many prompts share saves far more than the tokens after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from solver.model.errors import PlanningError, check_flags
from solver.model.latency import LatencyModel
from solver.model.offers import latency_of
from solver.model.plan import ActorPlan, Plan, check_plan
from solver.model.problem import PlanningProblem, check_problem
from solver.model.workload import IntArray, Workload
from solver.prefix_sharing.choose_prefixes import PrefixChoice, PrefixCosts, choose_prefixes
from solver.prefix_sharing.placement import (
    Placement,
    bandwidth_bytes_per_s,
    check_nodes,
    nodes_of,
    place,
    retimed,
    transfer_coefficients,
)
from solver.prefix_sharing.prefix_tree import PrefixTree
from solver.timing.build_plan import timed
from solver.timing.evaluate import cached_tokens, evaluate


@dataclass(frozen=True, eq=False)
class Deduplication:
    """Result of deduplicating a plan's prefill.

    Attributes:
        plan: the better plan, or the given one when nothing pays; times are those of ``solver.evaluate``.
        how: ``prefill actor``, ``shared in actors`` (one prefill per prompt and actor, no prefill actor) or ``none``.
        choice: the prefixes of the prefill actor, compared with sharing in actors; without a prefill actor, those it could
            compute.
        placement: of the plan with the prefill actor; None when there is none.
        tokens_before, tokens_after: prefill tokens computed in the given plan and in this one.
    """

    plan: Plan
    how: str
    choice: PrefixChoice
    placement: Placement | None
    tokens_before: int
    tokens_after: int

    def __repr__(self) -> str:
        fewer = 1 - self.tokens_after / self.tokens_before if self.tokens_before else 0.0
        return (
            f"Deduplication({self.how}: {self.tokens_before:,} prefill tokens before, {self.tokens_after:,} after ({fewer:.1%} "
            f"fewer); makespan {self.plan.makespan_s:.3f} s, {self.plan.gpu_seconds:.2f} GPU-seconds)"
        )


def step_key(plan: Plan, problem: PlanningProblem) -> tuple[float, float]:
    """Return ``Objective.key`` of the whole step under a plan, over all scenarios or for the one set of lengths."""
    phases, unit = problem.phases, problem.objective.cost
    if problem.workload.scenarios is None:
        makespan_s, gpu_s, usd = (np.array([x]) for x in (plan.makespan_s, plan.gpu_seconds, plan.cost_usd))
    else:
        times = evaluate(plan, problem)
        makespan_s, gpu_s, usd = times.makespans_s, times.gpu_seconds_of, times.cost_usd_of
    time_s = makespan_s + phases.seconds
    learner_rate = phases.learner_rate(unit, problem.cluster.pools[0].usd_per_gpu_s)  # the learner is on the first pool
    return problem.objective.key(time_s, (gpu_s if unit == "gpu_s" else usd) + learner_rate * time_s)


def computations(plan: Plan, workload: Workload) -> IntArray:
    """Return (N, P) how often each actor prefills each prompt of the plan, in part or whole, as ``solver.evaluate`` counts.

    An empty prompt is never prefilled.
    """
    counts = np.zeros((len(plan.actors), len(workload.prompt_tokens)), np.int64)
    for j, actor in enumerate(plan.actors):
        np.add.at(
            counts[j], workload.prompt_of[np.asarray(actor.responses, dtype=np.int64)], _computed_tokens(actor, workload) > 0
        )
    return counts


def _computed_tokens(actor: ActorPlan, workload: Workload) -> IntArray:
    """Return the (n,) prompt tokens that each of the actor's responses computes when nothing is generated yet."""
    responses = np.asarray(actor.responses, dtype=np.int64)
    cached = cached_tokens(workload, responses, actor.prefixes, actor.prefix_tokens, actor.shares_prompts)
    return np.where(workload.remaining_tokens[responses] > 0, workload.context_tokens[responses] - cached, 0)


def deduplicate(
    plan: Plan,
    problem: PlanningProblem,
    token_ids: Sequence[ArrayLike] | None = None,
    *,
    share_in_actors: bool = True,
    prefill_actor: bool = True,
    capacity_tokens: int | None = None,
    learner_node: int | None = None,
    prefill_latency: LatencyModel | None = None,
    late_start: bool = False,
) -> Deduplication:
    """Return the plan with deduplicated prefill, or unchanged if that does not pay.

    Args:
        plan: made for ``problem``; its actors' nodes may change, their responses stay.
        problem: its objective decides whether deduplication pays (``Objective.key``). A plan that misses its deadline or budget
            by less is better than one that misses it by more.
        token_ids: the P prompts, so that prefixes shared by prompts count; None when only their lengths are known.
        share_in_actors: allow samples of a prompt on one actor to share its prefill. prefill_actor: allow a prefill actor.
        capacity_tokens: KV tokens that it holds; None takes what the latency model says.
        learner_node, prefill_latency, late_start: see ``solver.prefix_sharing.placement.place``.

    A prefill actor is considered only if its net saving in actor-seconds is above 0; its own seconds count on GPUs of its own
    only.

    Raises:
        PlanningError: an option makes no sense, the token ids do not fit the workload, a response has tokens generated already,
            or see ``place``.
    """
    check_plan(plan)
    check_problem(problem)
    workload = problem.workload
    check_nodes(problem.cluster, plan.actors, learner_node)
    check_flags(share_in_actors=share_in_actors, prefill_actor=prefill_actor, late_start=late_start)
    if plan.prefill or any(a.prefixes or not a.responses for a in plan.actors):
        raise PlanningError("the plan already has a prefill actor; give the plan before deduplication")
    if np.any(workload.generated_tokens > 0):
        first = int(np.argmax(workload.generated_tokens > 0))
        raise PlanningError(f"response {first} already has tokens; prefill can be deduplicated only at the start of a step")
    tree = _prefix_tree(workload, token_ids)
    unchanged = timed(plan, problem)
    tokens_before = _prefill_tokens(unchanged, workload)
    sharing = replace(plan, actors=tuple(replace(a, shares_prompts=a.shares_prompts or share_in_actors) for a in plan.actors))
    sharing = retimed(sharing, problem)
    best, how, tokens_after = sharing, "shared in actors", _prefill_tokens(sharing, workload)
    if tokens_after == tokens_before or step_key(sharing, problem) > step_key(unchanged, problem):
        best, how, tokens_after = unchanged, "none", tokens_before
    models = [latency_of(problem.latency, a.kind, len(a.gpu_ids)) for a in plan.actors]
    prefill_model = prefill_latency or models[int(np.argmax([a.predicted_s for a in unchanged.actors]))]
    capacity = prefill_model.kv_capacity_tokens if capacity_tokens is None else capacity_tokens
    source = sharing.actors[0].node if learner_node is None else learner_node  # a guess without a learner; place() times it
    nodes = nodes_of(problem.cluster)
    speeds = [bandwidth_bytes_per_s(nodes[source].pool, nodes[a.node].pool, source == a.node) for a in plan.actors]
    transfers = np.array([transfer_coefficients(m, speed) for m, speed in zip(models, speeds, strict=True)])
    # The learner's GPUs are allocated in any case, and their prefill overlaps the start of the actors. Actors that wait for it
    # cost time, which `place` counts.
    prefill_s = (prefill_model.prefill_base_s, prefill_model.prefill_per_token_s) if learner_node is None else (0.0, 0.0)
    costs = PrefixCosts([m.prefill_per_token_s for m in models], transfers[:, 0], transfers[:, 1], *prefill_s)
    counts = computations(sharing, workload)

    def choose(capacity_tokens: int) -> PrefixChoice:
        return choose_prefixes(tree, counts, costs, capacity_tokens=capacity_tokens)

    choice = candidate = choose(capacity if prefill_actor else 0)
    placement, last_key = None, (np.inf, np.inf)
    while candidate.net_s > 0:
        placed = place(
            _with_prefixes(sharing, candidate.prefix_tokens), problem, tree=tree, learner_node=learner_node,
            prefill_latency=prefill_latency, late_start=late_start,
        )  # fmt: skip
        key = step_key(placed.plan, problem)
        if key < step_key(best, problem):
            best, how, choice, placement = placed.plan, "prefill actor", candidate, placed
            tokens_after = candidate.computed_tokens + _prefill_tokens(placed.plan, workload)
        if key >= last_key:
            break
        # All actors wait for the one prefill actor, so half of the tokens may be better, and half of those.
        last_key = key
        candidate = choose(candidate.computed_tokens // 2)
    notes = {**plan.notes, "prefill": {"how": how, "tokens_before": tokens_before, "tokens_after": tokens_after}}
    deduplicated = plan if how == "none" else replace(best, notes=notes)
    return Deduplication(deduplicated, how, choice, placement, tokens_before, tokens_after)


def _prefix_tree(workload: Workload, token_ids: Sequence[ArrayLike] | None) -> PrefixTree:
    if token_ids is None:
        return PrefixTree.of_lengths(workload.prompt_tokens)
    if len(token_ids) != len(workload.prompt_tokens):
        raise PlanningError(f"token_ids has {len(token_ids)} prompts, but the workload has {len(workload.prompt_tokens)}")
    tree = PrefixTree.of_token_ids(token_ids)
    differs = np.flatnonzero(tree.prompt_tokens != workload.prompt_tokens)
    if len(differs):
        i = int(differs[0])
        raise PlanningError(
            f"token_ids[{i}] has {tree.prompt_tokens[i]} tokens, but prompt_tokens[{i}] of the workload is "
            f"{workload.prompt_tokens[i]}; both must be the same prompt"
        )
    return tree


def _prefill_tokens(plan: Plan, workload: Workload) -> int:
    """Return the prompt tokens that the plan's decode actors compute."""
    return int(sum(_computed_tokens(actor, workload).sum() for actor in plan.actors))


def _with_prefixes(plan: Plan, prefix_tokens: IntArray) -> Plan:
    """Return the plan in which each actor receives its row of (N, P) tokens of the prompts."""
    actors = [
        replace(a, prefixes=tuple(np.flatnonzero(row).tolist()), prefix_tokens=tuple(row[row > 0].tolist()))
        for a, row in zip(plan.actors, prefix_tokens, strict=True)
    ]
    return replace(plan, actors=tuple(actors))
