"""Repairs of a plan of chosen actors, timed exactly: repack batches, level actors, exchange items.

Each takes a plan and its problem's values and proposes others. Whoever calls keeps what is better.

**Repack** (where actors refill their slots). The items of an offer are cut into batches that fit at once and end in time.
Batches one after another on an actor take at most the sum of their times: when the longest responses of all batches before have
run one after the other, every slot is free of them. Packing them is bin packing (minimum bin slack).

**Level.** Actors that are done later than most give their shortest items to early ones, the largest of these to the actor with
the most room.

**Exchange.** An item moves, or two are swapped, between the actor that is done last and another. On an actor that refills its
slots two responses change places in the order of admission.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from solver.generation.fill import responses_of
from solver.generation.plan_values import Actors, PlanValues, ValuedPlan
from solver.model.workload import FloatArray, IntArray
from solver.timing.items import Items

ROOMS = (1.12, 1.08, 1.05, 1.03, 1.015, 1.0, 0.985, 0.97, 0.955)  # parts of the makespan into which batches are packed
OTHER_COUNTS = 2  # actors more or less that are tried
SLACKS = (1.04, 1.12)  # by which estimates may miss a limit
EXACTLY = 1e-3  # of the makespan, that a bin may leave open
WORSE = 1.04  # times the plan's value
MOST_BATCHES = 2000  # of more, packing takes longer than a plan may
LEVEL = 0.25  # of the way from the mean to the latest actor, to which actors are levelled where some do not refill
EXCHANGE_WORK = 400_000  # responses timed by exchanges, and these for each group in each scenario
LONGER = 6  # times as much while no plan keeps the limit
TIMING, REFILLING = 100, 1000
FROM_LAST, SWAPS = 0.6, 0.6  # shares of exchanges that take from the last actor, and that swap
REORDERS = 0.3  # share that change the order of an actor
STALE, KICKS = 2, 3  # tries without a better plan, for each response, after which so many changes are made
BLOCKS = 4, 12  # of 2^k items, a part of all items between these halvings, at least one item


class ItemsOf:
    """Finds the items of responses and the responses of items."""

    def __init__(self, values: PlanValues) -> None:
        self.items, self.length = values.items, values.problem.workload.points.iterations
        self.item_of = np.empty(len(self.items.order), dtype=np.int64)
        self.item_of[self.items.order] = np.repeat(np.arange(len(self.items)), np.diff(self.items.edge))

    def of(self, group: IntArray) -> IntArray:
        """Return the items of responses, longest first."""
        return np.asarray(np.unique(self.item_of[group]))

    def responses(self, chosen: IntArray) -> IntArray:
        """Return the responses of items, longest first."""
        return responses_of(self.items, self.length, chosen)


def refilling(values: PlanValues, plan: ValuedPlan) -> list[bool]:
    """Return which actors have more responses than slots, or than memory for all at once."""
    return [values.refills(r, group) for r, group in plan.actors]


def repacked(values: PlanValues, plan: ValuedPlan, of: ItemsOf, timed: int) -> Iterator[Actors]:
    """Yield plans in which the actors of one offer, as many or a few more or less, get their batches packed anew.

    Packings are compared by the sums of their batches' times. These are a little long, so near a limit those count, too, that
    miss it by a little. The best are yielded, with responses longest first, and batch by batch with the longest last, which
    makes fewer prefill calls.

    Args:
        timed: how many of them; a single one only if it is not much worse by these sums.
    """
    items, problem = values.items, values.problem
    refills, makespan_s, rates = refilling(values, plan), float(plan.makespan_s.mean()), values.items.rate
    objective = values.goal.objective
    objectives = [objective, *(objective.with_slack(slack) for slack in SLACKS if objective.limited)]
    for r in sorted({r for (r, _), full in zip(plan.actors, refills, strict=True) if full}):
        mine = [k for k, (offer, _) in enumerate(plan.actors) if offer == r]
        others = [k for k in range(len(plan.actors)) if k not in set(mine)]
        done = plan.done_s.mean(axis=0)
        latest = float(done[others].max(initial=0.0))
        paid = float((done[others] * rates[[plan.actors[k][0] for k in others]]).sum())
        chosen = of.of(np.concatenate([plan.actors[k][1] for k in mine]))
        ready, base = float(items.sync_s[r] + items.start_s[r]), float(items.base_s[r])
        most = min(problem.offers[r].max_actors, len(chosen), (problem.max_actors or len(items)) - len(others))
        tried: list[tuple[float, float, list[list[IntArray]]]] = []  # time and cost of the step
        for factor in ROOMS:
            room = makespan_s * factor - ready
            batches = _batches(items, r, chosen, room)
            if len(batches) > MOST_BATCHES:
                return
            took = np.array([base * items.length[b[0]] + items.load[r, b].sum() + items.call_s[r] for b in batches])
            order = np.argsort(-took, kind="stable")
            for count in range(max(1, len(mine) - OTHER_COUNTS), min(most, len(mine) + OTHER_COUNTS, len(batches)) + 1):
                packed = _packed(took[order], count, room, EXACTLY * makespan_s)
                ends = np.array([ready + took[order[group]].sum() for group in packed])
                last = max(latest, float(ends.max()))
                held = rates[r] * (float(ends.sum()) if values.goal.held_after_s is None else last * len(ends))
                time_s, cost = values.goal.step(last, paid + held)
                tried.append((time_s, cost, [[batches[order[b]] for b in group] for group in packed]))
        best = {
            k: None for one in objectives for k in sorted(range(len(tried)), key=lambda k: (one.key(*tried[k][:2]), k))[:timed]
        }
        for k in best:
            time_s, cost, groups = tried[k]
            if timed == 1 and not objective.limited and objective.key(time_s, cost)[1] > WORSE * plan.rank[-1]:
                continue
            rest = [plan.actors[k] for k in others]
            yield rest + [(r, of.responses(np.sort(np.concatenate(group)))) for group in groups]
            yield rest + [(r, np.concatenate([of.responses(batch) for batch in reversed(group)])) for group in groups]


def _batches(items: Items, offer: int, chosen: IntArray, room: float) -> list[IntArray]:
    """Cut items, longest first, into batches that fit into slots and memory and take at most ``room`` seconds."""
    responses = items.edge[chosen + 1] - items.edge[chosen]
    load = np.concatenate([[0.0], np.cumsum(items.load[offer, chosen])])
    count = np.concatenate([[0], np.cumsum(responses)])
    held = np.concatenate([[0.0], np.cumsum(responses * items.held[chosen])])
    cuts = [0]
    while (at := cuts[-1]) < len(chosen):
        by_time = np.searchsorted(load, load[at] + room - items.base_s[offer] * items.length[chosen[at]], side="right") - 1
        by_slots = np.searchsorted(count, count[at] + items.slots[offer], side="right") - 1
        by_memory = np.searchsorted(held, held[at] + items.kv_tokens[offer], side="right") - 1
        cuts.append(max(at + 1, int(min(by_time, by_slots, by_memory))))
    return [chosen[a:b] for a, b in itertools.pairwise(cuts)]


def _packed(took: FloatArray, bins: int, room: float, slack: float) -> list[list[int]]:
    """Pack durations, longest first, into ``bins`` bins of ``room`` each: one of the longest in every bin, which is then filled
    as exactly as one or two more can (minimum bin slack, Gupta and Ho 1999). What is left over goes where most room is."""
    packed = [[k] for k in range(bins)]
    left = room - took[:bins]
    waiting = np.arange(bins, len(took))
    for k in range(bins):
        while len(waiting):
            change = -took[waiting]  # rises
            at = int(change.searchsorted(-left[k]))
            if at == len(waiting):
                break
            take = [at]
            if left[k] + change[at] > slack:
                second = np.maximum(change.searchsorted(-left[k] - change[at:]), np.arange(at + 1, len(change) + 1))
                spare = left[k] + change[at:] + change[np.minimum(second, len(change) - 1)]
                exact = np.flatnonzero((second < len(change)) & (spare <= slack))
                if len(exact):
                    take = [at + int(exact[0]), int(second[exact[0]])]
            packed[k] += waiting[take].tolist()
            left[k] += float(change[take].sum())
            waiting = np.delete(waiting, take)
    for batch in waiting.tolist():
        k = int(np.argmax(left))
        packed[k].append(batch)
        left[k] -= took[batch]
    return [sorted(group) for group in packed]


def levelled(values: PlanValues, plan: ValuedPlan, of: ItemsOf) -> Actors | None:
    """Return the plan with work moved from late actors to early ones; None if there is nothing to move."""
    items, offer = values.items, [r for r, _ in plan.actors]
    each = items.load + (items.base_s / items.slots)[:, None] * items.steps
    full, done = refilling(values, plan), plan.done_s.mean(axis=0)
    target = float(done.mean()) + (0.0 if all(full) else LEVEL * float(done.max() - done.mean()))
    late = np.flatnonzero(done > target * (1 + 1e-4)).tolist()
    room = {k: target - float(done[k]) for k in np.flatnonzero(done < target).tolist()}
    if not late or not room:
        return None
    groups: dict[int, list[int]] = {}
    moved: list[int] = []
    for k in late:
        chosen = of.of(plan.actors[k][1])[::-1]  # shortest first
        cost = each[offer[k], chosen] if full[k] else items.load[offer[k], chosen]
        count = min(int(np.searchsorted(np.cumsum(cost), done[k] - target)), len(chosen) - 1)
        moved += chosen[:count].tolist()
        groups[k] = chosen[count:].tolist()
    queue = [(-left, k) for k, left in room.items()]
    heapq.heapify(queue)
    for item in sorted(moved):
        for _ in range(len(queue)):
            left, k = heapq.heappop(queue)
            if items.allowed[offer[k], item]:
                break
            heapq.heappush(queue, (left * 0.5, k))
        else:
            return None
        groups.setdefault(k, of.of(plan.actors[k][1]).tolist()).append(item)
        heapq.heappush(queue, (left + float((each if full[k] else items.load)[offer[k], item]), k))
    actors = list(plan.actors)
    for k, taken in groups.items():
        actors[k] = offer[k], of.responses(np.array(sorted(taken), dtype=np.int64))
    return actors


def exchanged(values: PlanValues, plan: ValuedPlan, of: ItemsOf, tries: int) -> ValuedPlan:
    """Return the plan after moves and swaps of items between actors, and of places in the order of one that refills.

    Single items and blocks of neighbours move; of many items single ones would move nothing.

    Those that are better by exact times are kept. Where none has been for long, a few are made whatever they cost, and the
    search goes on from there (iterated local search): with few responses whose order counts, descents end early.
    """
    rng, work = np.random.default_rng(0), 0
    best, since, kicks = plan, 0, 0
    patience = STALE * sum(len(group) for _, group in plan.actors)
    for _ in range(tries):
        if work > EXCHANGE_WORK * (1 if math.isfinite(best.value) else LONGER):
            break
        if since > patience:
            plan, since, kicks = best, 0, KICKS
        last = rng.random() < FROM_LAST
        g = int(np.argmax(plan.done_s.mean(axis=0))) if last else int(rng.integers(len(plan.actors)))
        orders = len(plan.actors) == 1 or rng.random() < REORDERS
        changed = _reordered(values, plan, g, rng) if orders else _moved(values, plan, of, g, rng)
        if not changed:
            work += TIMING
            continue
        trial, busy = list(plan.actors), plan.busy_s.copy()
        for k, group in changed.items():
            offer = trial[k][0]
            work += values.scenarios * (REFILLING if values.refills(offer, group) else TIMING) + len(group)
            trial[k], busy[:, k] = (offer, group), values.one(offer, group)
        tried = values.with_times(trial, busy)
        since += 1
        if kicks or tried.rank < plan.rank:
            plan, since, kicks = tried, 0, max(0, kicks - 1)
        if plan.rank < best.rank:
            best = plan
    return best


def _reordered(values: PlanValues, plan: ValuedPlan, g: int, rng: np.random.Generator) -> dict[int, IntArray]:
    """Return actor ``g`` with two responses in each other's place; nothing where the order changes no time."""
    offer, group = plan.actors[g]
    if len(group) < 2 or not values.refills(offer, group):
        return {}
    a, b = rng.choice(len(group), 2, replace=False).tolist()
    group = group.copy()
    group[[a, b]] = group[[b, a]]
    return {g: group}


def _block(
    of: ItemsOf,
    group: IntArray,
    rng: np.random.Generator,
    size: int,
    load: FloatArray | None = None,
    equal: float | None = None,
) -> NDArray[np.bool_]:
    """Return which responses of a group are of ``size`` items that are neighbours among its items, or of as many as together
    have about the load ``equal``."""
    chosen = of.of(group)
    first = int(rng.integers(len(chosen)))
    if load is not None and equal is not None:
        size = max(1, int(np.searchsorted(np.cumsum(load[chosen[first:]]), equal)))
    return np.isin(of.item_of[group], chosen[first : first + size])


def _moved(values: PlanValues, plan: ValuedPlan, of: ItemsOf, g: int, rng: np.random.Generator) -> dict[int, IntArray]:
    """Return actor ``g`` and another one after an item has moved to that one, or two were swapped; nothing where it cannot be.

    Items of one response that are swapped take each other's place in the order of admission.
    """
    items, length = values.items, of.length
    if len(plan.actors) < 2:
        return {}
    h = int(rng.integers(len(plan.actors) - 1))
    h += h >= g
    (r, a), (q, b) = plan.actors[g], plan.actors[h]
    size = max(1, len(items) >> int(rng.integers(*BLOCKS)))
    goes, comes = _block(of, a, rng, size), np.zeros(len(b), dtype=bool)
    if rng.random() < SWAPS:
        equal = None if size == 1 else float(items.load[q, of.of(a[goes])].sum())
        comes = _block(of, b, rng, size, items.load[q], equal)
    if goes.all() and not comes.any():
        return {}
    if not (items.allowed[r, of.item_of[b[comes]]].all() and items.allowed[q, of.item_of[a[goes]]].all()):
        return {}
    if goes.sum() == comes.sum() == 1:
        kept, given = a.copy(), b.copy()
        kept[goes], given[comes] = b[comes], a[goes]
        return {g: kept, h: given}
    kept, given = np.concatenate([a[~goes], b[comes]]), np.concatenate([b[~comes], a[goes]])
    return {g: kept[np.argsort(-length[kept], kind="stable")], h: given[np.argsort(-length[given], kind="stable")]}
