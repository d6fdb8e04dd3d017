"""Improves a filled plan on several offers whose actors refill slots: admission orders, and exchanges between actors.

The greedy filler decides which items an actor takes, in the order in which it takes them. Here every actor gets its fastest
order of admission. Then items and places in that order are exchanged while that makes the plan better, timed exactly. Exchange
and orders are those of one kind.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray, IntArray
from solver.planning.actor_count import rank_key
from solver.planning.admission_order import admission_orders, fastest_orders
from solver.planning.exchange import RESPONSE_S, Exchange, Rank
from solver.planning.mixed_kinds.fill import FilledPlan, GreedyFiller
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes, Split
from solver.timing.step_cost import StepObjective


def exchanged(
    filled: FilledPlan, problem: PlanningProblem, filler: GreedyFiller, goal: StepObjective, most_s: float, stop_at: float
) -> FilledPlan | None:
    """Return a better plan than ``filled`` that has the same actors or fewer of them; None if none is found.

    Args:
        filled: may miss the deadline. filler: of the items that it is made of. most_s: counted seconds of work; stop_at: time
            of the clock (``perf_counter``) to stop.
    """
    work, points = filler.work, problem.workload
    groups = [np.array(group, dtype=np.int64) for group in filled.groups]
    offers = [r for r, _ in filled.actors]
    times = {}
    for r in set(offers):
        model = work.offers[r].latency.affine
        rule = admission_of(model, None, problem.admission)
        times[r] = GroupTimes.of(points, model, rule, work.order, problem.share_prefill)
    held = points.reserved_tokens
    refills = [
        len(group) > work.slots[r] or held[group].sum() > work.kv_tokens[r] for r, group in zip(offers, groups, strict=True)
    ]
    if not any(refills):
        return None

    def group_s(actor: int, group: IntArray) -> float:
        r = offers[actor]
        return times[r].group_s(group) if held[group].max() <= work.kv_tokens[r] else float("inf")

    def busy_s_of(actor: int, split: Split) -> FloatArray:
        return np.array([[group_s(actor, split.order)]])

    def priced(actors: list[int], busy_s: FloatArray) -> tuple[list[bool], float, float]:
        chosen = tuple(filled.actors[k] for k in actors)
        return filler.timed(chosen, busy_s.tolist())

    def rank(actors: list[int], busy_s: FloatArray) -> Rank:
        _, makespan_s, cost = priced(actors, busy_s)
        return goal.value(makespan_s, cost), *rank_key(*goal.step(makespan_s, cost), goal.objective)

    for k, (r, group) in enumerate(zip(offers, groups, strict=True)):
        if refills[k]:
            split = Split(group, np.array([0, len(group)]))
            orders = admission_orders(split, points, int(work.slots[r]), problem.share_prefill)
            groups[k] = fastest_orders(split, orders, partial(busy_s_of, k))[0].order
    item_of = np.empty(len(work.order), dtype=np.int64)
    item_of[work.order] = np.repeat(np.arange(len(work)), np.diff(work.edge))
    exchange = Exchange(groups, [int(work.slots[r]) for r in offers], item_of, group_s, rank, problem.needed_actors)
    exchange.run(most_s / RESPONSE_S, stop_at)
    warm, makespan_s, cost = priced(exchange.actors, exchange.busy_s)
    value = goal.value(makespan_s, cost)
    if not value < filled.value:
        return None
    return replace(
        filled,
        actors=tuple(filled.actors[k] for k in exchange.actors),
        tilts=tuple(filled.tilts[k] for k in exchange.actors),
        groups=tuple(tuple(group.tolist()) for group in exchange.groups),
        warm=tuple(warm),
        makespan_s=makespan_s,
        cost=cost,
        value=value,
    )
