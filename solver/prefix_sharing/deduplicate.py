"""Deduplicates the prefill of a plan: chooses the prefixes computed once and their receivers, places and times the result, and
keeps it if it pays.

The paper's two sources of repeated prefill (RLHFless, arXiv 2602.22718, deduplicated prefill) are removed in two ways. Samples
of a prompt on one actor share one prefill there, which costs nothing. Prefixes that several actors or prompts share are
computed by a prefill actor and sent. A prompt whose samples are split over actors is computed once and its KV cache sent to
each of them; kept together it needs no transfer.

Of every prompt an actor receives as many tokens as pay (``ActorPlan.prefix_tokens``) and computes the rest itself: a prefix
that many prompts share saves far more than the tokens after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import PlanningError, check_flags
from solver.model.latency import LatencyModel
from solver.model.objective import NonGenerationPhases, Objective
from solver.model.offers import Latencies, check_priced, latency_of
from solver.model.plan import ActorPlan, Plan
from solver.model.workload import IntArray, Workload
from solver.prefix_sharing.choose_prefixes import PrefixChoice, PrefixCosts, PrefixTree, choose_prefixes
from solver.prefix_sharing.kv_transfer import bandwidth_bytes_per_s, pool_of_node, transfer_coefficients
from solver.prefix_sharing.placement import check_options, place, retimed
from solver.prefix_sharing.placement_result import Placement
from solver.prefix_sharing.step_value import StepValue
from solver.timing.build_plan import timed
from solver.timing.evaluate import cached_tokens


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


def computations(plan: Plan, workload: Workload) -> IntArray:
    """Return (N, P) how often each actor prefills each prompt of the plan, in part or whole, as ``solver.evaluate`` counts.

    An empty prompt is never prefilled.
    """
    counts = np.zeros((len(plan.actors), len(workload.prompt_tokens)), np.int64)
    for j, actor in enumerate(plan.actors):
        np.add.at(counts[j], workload.prompt_of[np.asarray(actor.responses, dtype=np.int64)], _computed(actor, workload) > 0)
    return counts


def _computed(actor: ActorPlan, workload: Workload) -> IntArray:
    """Return the (n,) prompt tokens that each of the actor's responses computes when nothing is generated yet."""
    chosen = np.asarray(actor.responses, dtype=np.int64)
    there = cached_tokens(workload, chosen, actor.prefixes, actor.prefix_tokens, actor.shares_prompts)
    return np.where(workload.remaining_tokens[chosen] > 0, workload.context_tokens[chosen] - there, 0)


def deduplicate(
    plan: Plan,
    workload: Workload,
    cluster: Cluster | MixedCluster,
    latency: Latencies,
    token_ids: Sequence[ArrayLike] | None = None,
    *,
    share_in_actors: bool = True,
    prefill_actor: bool = True,
    capacity_tokens: int | None = None,
    max_batch: int | None = None,
    learner_node: int | None = None,
    prefill_latency: LatencyModel | None = None,
    overlap: str = "priced",
    streamed: bool = True,
    late_start: bool = False,
    objective: Objective = Objective(),  # noqa: B008 (frozen)
    phases: NonGenerationPhases = NonGenerationPhases(),  # noqa: B008 (frozen)
    admission: str = "reserve",
) -> Deduplication:
    """Return the plan with deduplicated prefill, or unchanged if that does not pay.

    Args:
        plan: made for ``workload``; its actors' nodes may change, their responses stay (but with ``overlap="hard"``).
        token_ids: the P prompts, so that prefixes shared by prompts count; None when only their lengths are known.
        share_in_actors: allow samples of a prompt on one actor to share its prefill. prefill_actor: allow a prefill actor.
        capacity_tokens: KV tokens that it holds; None takes what the latency model says. max_batch: most prefixes of it.
        learner_node, prefill_latency, overlap, streamed, late_start: see ``solver.prefix_sharing.placement.place``.
        objective: what decides whether it pays, the given plan's step being the reference; a plan that misses its deadline or
            budget by less is better than one that misses it by more. phases: the step outside generation, which time, cost,
            deadline and budget include as in planning. A prefill actor is considered only if its net saving in actor-seconds
            is above 0; its own seconds count on GPUs of its own only.

    Raises:
        PlanningError: an option makes no sense, the token ids do not fit the workload, a response has tokens generated already,
            cost is in dollars and nothing has a price, or see ``place``.
    """
    check_options(cluster, learner_node, overlap)
    check_flags(share_in_actors=share_in_actors, prefill_actor=prefill_actor, streamed=streamed, late_start=late_start)
    check_priced(objective.cost, cluster)
    if plan.prefill or any(a.prefixes or not a.responses for a in plan.actors):
        raise PlanningError("the plan already has a prefill actor; give the plan before deduplication")
    if np.any(workload.generated_tokens > 0):
        first = int(np.argmax(workload.generated_tokens > 0))
        raise PlanningError(f"response {first} already has tokens; prefill can be deduplicated only at the start of a step")
    tree = _tree(workload, token_ids)
    given = timed(plan, workload, latency, phases, admission=admission)
    before = _prefill_tokens(given, workload)
    sharing = replace(plan, actors=tuple(replace(a, shares_prompts=a.shares_prompts or share_in_actors) for a in plan.actors))
    sharing = retimed(sharing, workload, latency, phases, admission)
    best, how, after = sharing, "shared in actors", _prefill_tokens(sharing, workload)
    judged = StepValue.of(workload, cluster, latency, objective, phases, admission).against(given)

    if after == before or judged.rank(sharing) > judged.rank(given):
        best, how, after = given, "none", before
    options = {"tree": tree, "learner_node": learner_node, "prefill_latency": prefill_latency, "overlap": overlap,
               "streamed": streamed, "late_start": late_start, "phases": phases, "admission": admission}  # fmt: skip
    models = [latency_of(latency, a.kind, len(a.gpu_ids)) for a in plan.actors]
    own = prefill_latency or models[int(np.argmax([a.predicted_s for a in given.actors]))]
    capacity = own.kv_capacity_tokens if capacity_tokens is None else capacity_tokens
    source = sharing.actors[0].node if learner_node is None else learner_node  # a guess without a learner; place() times it
    rates = np.array([_rate(cluster, source, a.node, m) for a, m in zip(plan.actors, models, strict=True)])
    # The learner's GPUs are held in any case, and what they compute while actors start costs no time either: what waiting for
    # them costs is seen when a choice is placed.
    own_s = (own.prefill_base_s, own.prefill_per_token_s) if learner_node is None else (0.0, 0.0)
    costs = PrefixCosts([m.prefill_per_token_s for m in models], rates[:, 0], rates[:, 1], *own_s)
    counts = computations(sharing, workload)

    def choose(room_tokens: int) -> PrefixChoice:
        return choose_prefixes(tree, counts, costs, capacity_tokens=room_tokens, max_batch=max_batch)

    choice = tried = choose(capacity if prefill_actor else 0)
    placement, least = None, (np.inf, np.inf)
    while tried.net_s > 0:
        placed = place(_receiving(sharing, tried.prefix_tokens), workload, cluster, latency, **options)  # type: ignore[arg-type]
        rank = judged.rank(placed.plan)
        if rank < judged.rank(best):
            best, how, choice, placement = placed.plan, "prefill actor", tried, placed
            after = tried.computed_tokens + _prefill_tokens(placed.plan, workload)
        if rank >= least:
            break
        # One prefill actor works for all, who wait for it: half as much may be better, and half of that.
        least = rank
        tried = choose(tried.computed_tokens // 2)
    notes = {**plan.notes, "prefill": {"how": how, "tokens_before": before, "tokens_after": after}}
    return Deduplication(plan if how == "none" else replace(best, notes=notes), how, choice, placement, before, after)


def _rate(cluster: Cluster | MixedCluster, source: int, target: int, model: LatencyModel) -> tuple[float, float]:
    """Return (base seconds, seconds per KV token) of a transfer between two nodes."""
    ends = pool_of_node(cluster, source), pool_of_node(cluster, target)
    return transfer_coefficients(model, bandwidth_bytes_per_s(*ends, source == target))


def _tree(workload: Workload, token_ids: Sequence[ArrayLike] | None) -> PrefixTree:
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
    return int(sum(_computed(actor, workload).sum() for actor in plan.actors))


def _receiving(plan: Plan, prefix_tokens: IntArray) -> Plan:
    """Return the plan in which each actor receives its row of (N, P) tokens of the prompts."""
    actors = [
        replace(a, prefixes=tuple(np.flatnonzero(row).tolist()), prefix_tokens=tuple(row[row > 0].tolist()))
        for a, row in zip(plan.actors, prefix_tokens, strict=True)
    ]
    return replace(plan, actors=tuple(actors))
