"""Builds the error message if no plan on several offers meets a limit: the limit, a lower bound, and the best plan found.

The lower bound is that of the sequences of actors. Over scenarios it is the mean (of the worst ones) of every scenario's own
bound, as for one kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from solver.model.offers import Offer
from solver.model.plurals import counted
from solver.planning.infeasible import capacity_hint, limit_message, limit_of, scaled_up
from solver.planning.mixed_kinds.items import MixedWork
from solver.planning.mixed_kinds.problem import MixedProblem
from solver.planning.mixed_kinds.sequence_bound import Sequences
from solver.planning.mixed_kinds.step_value import PlanValue
from solver.planning.mixed_kinds.work_budget import WorkBudget

HALVINGS = 40


def infeasibility_reason(
    problem: MixedProblem, works: Sequence[MixedWork], worth: PlanValue, best: float, effort: WorkBudget, room: str = ""
) -> str:
    """Return the error message for a deadline or a budget that no plan found meets.

    Args:
        works: of the predicted lengths, or of every scenario. worth: with the limit as objective.
        best: time (cost) of the step of the best plan found, a risk over scenarios. effort: work budget for the lower bound.
        room: the part of the message about slots and memory.
    """
    objective, least = problem.objective, []
    min_actors = problem.needed_actors if len(works) == 1 else 1  # in a scenario fewer may have anything to do
    for i, work in enumerate(works):
        share = WorkBudget((effort.most_s - effort.spent_s) / (len(works) - i), effort.stop_at)
        sequences = Sequences(
            work, min_actors=min_actors, max_actors=problem.max_actors, release=problem.release,
            after_s=problem.phases.seconds, effort=share,
        )  # fmt: skip
        find = _least_time_s if objective.deadline_s is not None else _least_cost
        least.append(find(work, worth, sequences))
        effort.spend(share.spent_s)
    alone = _too_long_together(problem, works[0], worth) if len(works) == 1 and objective.deadline_s is not None else ""
    return limit_message(objective, objective.risk(np.array(least)), best, scenarios=len(works), where=alone, room=room)


def _least_time_s(work: MixedWork, worth: PlanValue, sequences: Sequences) -> float:
    """Return a lower bound on the step's time, by bisection as long as the work budget lasts."""
    low, high = work.shortest_makespan_s, work.longest_makespan_s
    for _ in range(HALVINGS):
        if sequences.effort.over:
            break
        middle = math.sqrt(low * high) if high > 2 * low > 0 else (low + high) / 2
        found = sequences.at(middle)
        low, high = (low, middle) if math.isfinite(found.cost) else (middle, high)
    return worth.phases.step_time_s(low)


def _least_cost(work: MixedWork, worth: PlanValue, sequences: Sequences) -> float:
    """Return a lower bound on the step's cost."""
    found = sequences.at(work.longest_makespan_s)
    return worth.step(work.shortest_makespan_s, found.cost if math.isfinite(found.cost) else 0.0)[1]


def room_of(problem: MixedProblem, keeps: Callable[[MixedProblem], bool], stop_at: float) -> str:
    """Return the part of the message about slots and KV memory if no plan meets the limit.

    Args:
        keeps: whether a plan with other offers meets it. stop_at: time of the clock (``perf_counter``) to stop.
    """

    def roomier(offer: Offer, slots: float, kv_tokens: float) -> Offer:
        model = offer.latency
        room = scaled_up(model.max_batch, slots), scaled_up(model.kv_capacity_tokens, kv_tokens)
        return replace(offer, latency=replace(model, max_batch=room[0], kv_capacity_tokens=room[1]))

    def kept(slots: float, kv_tokens: float) -> bool:
        return keeps(replace(problem, offers=tuple(roomier(offer, slots, kv_tokens) for offer in problem.offers)))

    models = [offer.latency for offer in problem.offers]
    most = len(problem.workload), int(problem.workload.reserved_tokens.sum())
    have = [m.max_batch for m in models], [m.kv_capacity_tokens for m in models]
    return capacity_hint(*have, most, limit_of(problem.objective)[0], kept, stop_at)


def _too_long_together(problem: MixedProblem, work: MixedWork, worth: PlanValue) -> str:
    """Return the text naming the prompt whose responses, which stay together, miss the deadline even on an actor of
    their own."""
    assert worth.objective.deadline_s is not None
    alone_s = work.alone_s.min(axis=0)
    i = int(np.argmax(alone_s))
    least_s, count = worth.phases.step_time_s(float(alone_s[i])), int(work.edge[i + 1] - work.edge[i])
    if count == 1 or least_s <= worth.objective.deadline_s:
        return ""
    prompt = int(work.prompt[work.edge[i]])
    number = prompt if problem.prompt_numbers is None else int(problem.prompt_numbers[prompt])
    return f" (the {count} responses of prompt {number} are kept together and take {least_s:.6g} s on one actor)"


def no_room(work: MixedWork, least: int, most: int) -> str:
    """Return the error message if not even the random split fits."""
    room = sum(pool.gpus for pool in work.pools)
    return (
        f"no plan of {least} to {counted(most, 'actor')} was found: the pools have {counted(room, 'GPU')}, and the "
        f"smallest actor takes {int(work.gpus.min())}; lower min_actors or add GPUs"
    )
