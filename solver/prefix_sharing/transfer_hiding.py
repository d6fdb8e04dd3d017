"""Moves responses until the overlap inequality holds: the longest group finishes last, so every transfer is hidden behind it.

RLHFless (arXiv 2602.22718) makes the inequality a constraint of actor scaling. Here a late actor's longest responses move to
actor 1, the longest group:

    L_model(i) + L_kv(i) + L_decode(i) <= L_prefill + L_decode(1)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from solver.model.errors import PlanningError
from solver.model.offers import Latencies, latency_of
from solver.model.plan import ActorPlan, Plan, Prefill
from solver.model.workload import Workload
from solver.prefix_sharing.placement_result import Placement


def without_late(placement: Placement, place: Callable[[Plan], Placement], workload: Workload, latency: Latencies) -> Placement:
    """Return the placement after moving the longest responses of late actors to the longest group, until no actor is late.

    Args:
        place: places a plan and times it.

    Raises:
        PlanningError: an actor stays late, or the makespan would grow.
    """
    limit = placement.plan.makespan_s
    moved: list[int] = []
    for _ in range(4 * len(placement.slack_s)):  # far more than it takes; each turn helps one actor
        if not placement.late:
            break
        actor = min(placement.late, key=lambda i: float(placement.slack_s[i]))
        missing = -float(placement.slack_s[actor])
        repaired = _repaired(placement, place, workload, latency, actor, limit)
        if repaired is None:
            raise PlanningError(
                f"actor {actor} would be done {missing:.3f} s after the longest group (actor {placement.longest}), and moving "
                f"its responses there does not help; use overlap='priced', faster links or fewer actors"
            )
        before = set(placement.plan.actors[actor].responses)
        placement = repaired
        moved += sorted(before - set(placement.plan.actors[actor].responses))
    if placement.late:
        raise PlanningError(
            f"actors {placement.late} are still done after the longest group, also after moves; use overlap='priced'"
        )
    return replace(placement, moved=tuple(moved))


def _repaired(
    placement: Placement,
    place: Callable[[Plan], Placement],
    workload: Workload,
    latency: Latencies,
    actor: int,
    limit_s: float,
) -> Placement | None:
    """Return the placement with as few as possible of an actor's longest responses moved so that it is no longer late."""
    plan, goal = placement.plan, placement.longest
    source, target = plan.actors[actor], plan.actors[goal]
    model = latency_of(latency, target.kind, len(target.gpu_ids))
    chosen = np.array(source.responses, dtype=np.int64)
    fits = workload.reserved_tokens[chosen] <= model.kv_capacity_tokens
    by_length = chosen[fits][np.argsort(-workload.remaining_tokens[chosen[fits]], kind="stable")]

    def moving(count: int) -> Placement:
        leaving = set(by_length[:count].tolist())
        stay = tuple(r for r in source.responses if r not in leaving)
        actors = list(plan.actors)
        actors[actor] = _with_responses(source, stay, plan.prefill, workload)
        actors[goal] = _with_responses(target, (*target.responses, *by_length[:count].tolist()), plan.prefill, workload)
        return place(replace(plan, actors=tuple(actors)))

    most = min(len(by_length), len(chosen) - 1)
    low, high = 0, most  # late with `low` moves; whether `high` is enough is seen at the end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if actor not in moving(middle).late else (middle, high)
    if not most:
        return None
    repaired = moving(high)
    helped = actor not in repaired.late and repaired.plan.makespan_s <= limit_s + 1e-9
    return repaired if helped else None


def _with_responses(actor: ActorPlan, responses: tuple[int, ...], prefill: Prefill | None, workload: Workload) -> ActorPlan:
    """Return the actor with other responses; it receives the prefixes of their prompts that the prefill actor computes."""
    prompts = tuple(dict.fromkeys(workload.prompt_of[np.asarray(responses, dtype=np.int64)].tolist()))
    computed = {} if prefill is None else dict(zip(prefill.prompts, prefill.prefix_tokens, strict=True))
    prefixes = tuple(sorted(p for p in prompts if p in computed))
    tokens = tuple(computed[p] for p in prefixes)
    return replace(actor, responses=responses, prompts=prompts, prefixes=prefixes, prefix_tokens=tokens)
