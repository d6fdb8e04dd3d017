"""Right-sized random split on several offers: the baseline that mixed plans are compared with.

Inputs: ``MixedWork`` and the workload's prompts. Whole prompts are shuffled and assigned. One group of candidates has equal
counts on a single offer, for every number of actors. The other has actors of all offers, the cheapest work first, with prompts
in proportion to their speed. The candidate with the least T^w * C^(1-w) is taken, as for one kind. Where responses wait for
slots, the iterations of all splits are estimated first, and only those of the best few are followed response by response.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np

from solver.model.workload import IntArray, Workload
from solver.planning.actor_count import rank_key
from solver.planning.mixed_kinds.actor_fill import iterations_and_calls, prefills_of
from solver.planning.mixed_kinds.fill import FilledPlan
from solver.planning.mixed_kinds.items import MixedWork
from solver.planning.mixed_kinds.node_placement import place
from solver.planning.prompt_dealing import candidate_counts, dealt_prompts, equal_counts
from solver.timing.step_cost import StepObjective

FOLLOWED = 8
Shape = Callable[[MixedWork, IntArray, int], tuple[float, float]]
"""Iterations and prefill calls of responses in that order in so many slots."""


COUNTS = 8, 1.15  # all numbers of actors up to the first, then such steps
Prompts = list[IntArray]
"""Sorted positions of the responses of every prompt, in shuffled order."""


def random_groups(
    work: MixedWork, workload: Workload, goal: StepObjective, seed: int, least: int, most: int
) -> FilledPlan | None:
    """Return the best random split; None if none fits into memories and pools.

    Groups list their prompts in shuffled order and a prompt's responses in workload order. The bounds ``least`` and ``most`` on
    actors are kept where there are that many prompts. Times are estimates where memory or a token budget binds.
    """
    positions = np.empty(len(work.order), dtype=np.int64)
    positions[work.order] = np.arange(len(work.order))
    shuffled = np.random.default_rng(seed).permutation(np.unique(workload.prompt_of))
    order, first = dealt_prompts(workload, shuffled)
    dealt = np.split(positions[order], first[1:-1])
    most = min(most, len(dealt))
    least = min(least, most)
    splits: list[list[tuple[int, IntArray]]] = []
    fits = [bool(row.all()) for row in work.allowed]
    counts = [n for n in candidate_counts(min(most, sum(pool.gpus for pool in work.pools)), *COUNTS) if n >= least]
    equal: dict[int, list[IntArray]] = {}
    for r, offer in enumerate(work.offers):
        for n in counts if fits[r] else []:
            if n <= offer.max_actors:
                if n not in equal:
                    equal[n] = [np.concatenate(dealt[a:b]) for a, b in equal_counts(len(dealt), n)]
                splits.append([(r, group) for group in equal[n]])
    splits += [split for n in counts if (split := _proportional(work, dealt, n))]
    splits = [split for split in splits if place(work.pools, [_size(work, r) for r, _ in split]) is not None]

    def best(how: Shape) -> list[tuple[list[tuple[int, IntArray]], tuple[tuple[bool, ...], float, float]]]:
        shapes: dict[tuple[int, int], tuple[float, float]] = {}
        timed = [(split, _timed(work, split, goal, shapes, how)) for split in splits]
        return sorted(timed, key=lambda pair: rank_key(*goal.step(pair[1][1], pair[1][2]), goal.objective))[:FOLLOWED]

    if len(splits) > FOLLOWED:
        splits = [split for split, _ in best(about_iterations_and_calls)]
    if not splits:
        return None
    split, (warm, makespan, cost) = best(iterations_and_calls)[0]
    actors = tuple((r, int(work.items_of(group).min())) for r, group in split)
    groups = tuple(tuple(work.order[group].tolist()) for _, group in split)
    value = goal.value(makespan, cost)
    return FilledPlan(actors, ((1.0, 0),) * len(groups), groups, warm, makespan, cost, value, makespan)


def _proportional(work: MixedWork, dealt: Prompts, actors: int) -> list[tuple[int, IntArray]] | None:
    """Return ``actors`` actors of all offers, those with the cheapest work first, with prompts in proportion to their speed."""
    at_once = np.minimum(work.slots, max(1, len(work.order) // actors))
    per_pass = work.load.sum(axis=1) + work.base_s * float(work.steps.sum()) / at_once
    by_price = np.argsort(work.rate * per_pass, kind="stable").tolist()
    chosen: list[int] = []
    if not work.allowed[by_price[0]].all():  # some prompts need more memory than the cheapest offer has
        chosen.append(int(np.argmax(work.kv_tokens)))
    for r in by_price:  # as many as fit beside those chosen, found by halving
        fewest, most = 0, min(actors - len(chosen), work.offers[r].max_actors)
        while fewest < most:
            middle = (fewest + most + 1) // 2
            fits = place(work.pools, [_size(work, j) for j in [*chosen, *[r] * middle]]) is not None
            fewest, most = (middle, most) if fits else (fewest, middle - 1)
        chosen += [r] * fewest
    if len(chosen) != actors:
        return None
    speed = 1.0 / np.maximum(per_pass[chosen], 1e-12)
    if work.allowed[chosen].all():
        edges = np.concatenate([[0.0], np.cumsum(speed)]) / speed.sum() * len(dealt)
        cuts = edges.round().astype(int).tolist()
        return [(r, np.concatenate(dealt[a:b])) for r, (a, b) in zip(chosen, itertools.pairwise(cuts), strict=True) if b > a]
    queue = [(0.0, j) for j in range(actors)]
    taken: list[list[IntArray]] = [[] for _ in chosen]
    for prompt in dealt:
        aside = []
        while queue and not work.allowed[chosen[queue[0][1]], work.items_of(prompt)].all():
            aside.append(heapq.heappop(queue))
        if not queue:
            return None
        load, j = heapq.heappop(queue)
        taken[j].append(prompt)
        for entry in [*aside, (load + len(prompt) / float(speed[j]), j)]:
            heapq.heappush(queue, entry)
    return [(r, np.concatenate(group)) for r, group in zip(chosen, taken, strict=True) if group]


def _size(work: MixedWork, r: int) -> tuple[int, int]:
    return int(work.pool[r]), int(work.gpus[r])


def _timed(
    work: MixedWork,
    split: list[tuple[int, IntArray]],
    goal: StepObjective,
    shapes: dict[tuple[int, int], tuple[float, float]],
    how: Shape,
) -> tuple[tuple[bool, ...], float, float]:
    """Return which actors of a split are prewarmed, its time and its cost.

    ``how`` computes iterations and calls of a group; ``shapes`` caches them by the group's identity and slots.
    """
    left = Counter({i: pool.prewarmed for i, pool in enumerate(work.pools)})
    done, warm = [], []
    for r, group in split:
        slots = work.at_once(r, group)
        shape = (id(group), min(slots, len(group)))
        if shape not in shapes:
            shapes[shape] = how(work, group, slots)
        iterations, calls = shapes[shape]
        busy = float(work.load[r, work.items_of(group)].sum() + work.base_s[r] * iterations + work.call_s[r] * calls)
        warm.append(left[int(work.pool[r])] > 0)
        left[int(work.pool[r])] -= warm[-1]
        done.append(float(work.sync_s[r]) + (0.0 if warm[-1] else float(work.start_s[r])) + busy)
    makespan = max(done)
    rates = [float(work.rate[r]) for r, _ in split]
    after = goal.held_after_s
    held = done if after is None else [makespan + after] * len(done)
    return tuple(warm), makespan, sum(rate * t for rate, t in zip(rates, held, strict=True))


def about_iterations_and_calls(work: MixedWork, chosen: IntArray, slots: int) -> tuple[float, float]:
    """Return an estimate of ``iterations_and_calls``.

    Slots are assumed full until the queue is empty; then half of the longest response is left on average.
    """
    working = chosen[work.iterations[chosen] > 0]
    lengths, prefills = work.iterations[working], prefills_of(work, working)
    longest, at_first = float(lengths.max(initial=0)), float(prefills[:slots].any())
    if len(working) <= slots:
        return longest, at_first
    full = float(lengths.sum()) / slots
    span = max(full, 1.0)  # calls of those that join at random times in as many iterations, sharing one where times agree
    late = -span * math.expm1(-float(prefills[slots:].sum()) / span)
    return max(longest, full + longest / 2), at_first + late
