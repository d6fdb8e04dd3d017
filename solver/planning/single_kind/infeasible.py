"""Explains why no plan of one kind meets a limit: which limit, and by how much it is missed.

Inputs are the sorted work, the limits and the plans found; the output is the error message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from solver.model.latency import LatencyModel
from solver.model.objective import Objective
from solver.model.plurals import counted
from solver.model.workload import Workload
from solver.planning.infeasible import capacity_hint, limit_message, limit_of, scaled_up
from solver.planning.single_kind.items import SortedWork
from solver.planning.single_kind.relaxation import least_makespan_s, relaxed
from solver.planning.single_kind.rounding import next_fit
from solver.timing.step_cost import Pricing


def limit_missed(works: list[SortedWork], pricing: Pricing, found: list[tuple[float, float]], room: str) -> str:
    """Return the error message for a deadline or budget that no plan meets.

    Args:
        works: the sorted work of every scenario, or of the predicted lengths alone.
        found: time and cost of the plans known (over the scenarios).
        room: the part of the message about slots and memory.
    """
    phases, objective = pricing.phases, pricing.objective
    if objective.deadline_s is not None:
        least = objective.risk(np.array([phases.step_time_s(least_makespan_s(work)) for work in works]))
        best = min(time_s for time_s, _ in found)
        if len(works) == 1:
            best = min(best, phases.step_time_s(_shortest_next_fit_s(works[0])))
        where = f" on {counted(works[0].max_actors, 'actor')}"
    else:
        least = objective.risk(np.array([_least_cost(work, pricing) for work in works]))
        best, where = min(cost for _, cost in found), ""
    return limit_message(objective, least, best, scenarios=len(works), where=where, room=room)


def room_of(
    latency: LatencyModel, workload: Workload, objective: Objective, keeps: Callable[[LatencyModel], bool], stop_at: float
) -> str:
    """Return the part of the message about slots and KV memory if no plan meets the limit.

    Args:
        keeps: whether a plan on actors of another latency model meets the limit. stop_at: time of the clock (``perf_counter``)
            to stop.
    """

    def kept(slots: float, kv_tokens: float) -> bool:
        room = scaled_up(latency.max_batch, slots), scaled_up(latency.kv_capacity_tokens, kv_tokens)
        return keeps(replace(latency, max_batch=room[0], kv_capacity_tokens=room[1]))

    most = len(workload), int(workload.reserved_tokens.sum())
    return capacity_hint([latency.max_batch], [latency.kv_capacity_tokens], most, limit_of(objective)[0], kept, stop_at)


def _least_cost(work: SortedWork, pricing: Pricing) -> float:
    """Return a lower bound on cost: the relaxation without a time limit, and the learner until the fastest plan is done."""
    cheapest = relaxed(work, work.longest_makespan_s)
    held = 0.0 if cheapest is None else cheapest.actor_s
    return pricing.actor_rate * held + pricing.learner_rate * pricing.phases.step_time_s(work.shortest_makespan_s)


def _shortest_next_fit_s(work: SortedWork) -> float:
    """Return the least makespan for which next-fit finds groups, by bisection."""
    low, high = work.shortest_makespan_s, work.longest_makespan_s
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if next_fit(work, middle) is not None else (middle, high)
    return high
