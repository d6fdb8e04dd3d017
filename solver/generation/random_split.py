"""Right-sized random split of the prompts over actors: the baseline of every objective and the plan of the policy ``random``.

Whole prompts are shuffled, from their canonical order so that their numbers do not matter, and assigned to actors. The best of
several splits is taken: the one with the least ``T^w C^(1-w)``, which needs no reference, or the one that keeps a limit. Splits
are

- actors of one offer with equal numbers of prompts, for every number of actors;
- with several offers, actors of all of them, those with the cheapest work first, with prompts in proportion to their speed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from solver.generation.actor_count import Groups, TimedSplit, best_split, least_keys
from solver.generation.canonical_order import Canonical
from solver.generation.infeasible import no_room
from solver.generation.prompt_order import candidate_counts, equal_counts, in_prompt_order
from solver.model.errors import PlanningError, as_given, check_flags, is_whole
from solver.model.node_placement import place
from solver.model.offers import check_counts
from solver.model.ordered_sums import dot
from solver.model.plan import Plan, Reference
from solver.model.plurals import counted
from solver.model.problem import PlanningProblem, check_problem
from solver.model.workload import FloatArray, IntArray, Workload
from solver.timing.build_plan import assemble
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes
from solver.timing.items import Items
from solver.timing.step_cost import Pricing

MIXED_COUNTS = 8, 1.15  # with several offers, all numbers of actors up to the first are tried, then such steps
TIMED = 8  # of the splits over several offers, the best for the predicted lengths, which are timed over the scenarios


def check_seed(seed: int) -> None:
    """Refuse a seed that is not a whole number of 0 or more (a PlanningError)."""
    if not is_whole(seed, 0) or not isinstance(seed, int | np.integer):
        raise PlanningError(f"seed is {as_given(seed)}; a whole number of 0 or more is needed")


def assign_prompts(workload: Workload, prompts: IntArray, actors: int) -> list[IntArray]:
    """Return the responses of at most ``actors`` actors: whole prompts, in the given order and in equal counts.

    There are as many groups as prompts if that is fewer; no group is empty.
    """
    order, first = in_prompt_order(workload, prompts)
    return [order[first[a] : first[b]] for a, b in equal_counts(len(prompts), actors)]


def random_split(problem: PlanningProblem, *, seed: int = 0, actors: int | None = None, spread: bool = False) -> Plan:
    """Return a random assignment of prompts to equal groups: the baseline that needs no predictions.

    It has the best number of actors for the objective, or ``actors``. If no split meets a deadline or budget, the nearest miss
    is returned. There are never more actors than prompts, and at least ``min_actors`` if there are that many prompts.

    Args:
        problem: the step to plan.
        seed: seed of the assignment.
        actors: number of actors; the best number for the objective when None.
        spread: assign single responses instead of whole prompts, so that no actor gets all samples of a long prompt. There may
            then be as many actors as responses.

    Raises:
        PlanningError: an option makes no sense, ``actors`` is above the number of prompts (responses, with ``spread``), or no
            split over so many actors fits into the pools.

    Example:
        >>> import solver
        >>> latency = solver.LatencyModel("mine", 1, base_s=5e-3, per_response_s=1e-3, max_batch=64)
        >>> workload = solver.Workload([100] * 8, list(range(8)), list(range(100, 900, 100)))
        >>> problem = solver.PlanningProblem(workload, solver.Cluster(1, 8, 1), latency)
        >>> len(solver.random_split(problem, actors=4).actors)
        4
    """
    check_problem(problem)
    check_seed(seed)
    check_flags(spread=spread)
    check_counts(problem.min_actors, actors=actors)
    workload = problem.workload
    items = len(workload) if spread else len(np.unique(workload.prompt_of))
    if actors is not None and actors > items:
        what = counted(items, "response" if spread else "prompt")
        raise PlanningError(f"actors is {actors}, but the workload has only {what}; give at most {items}")
    canonical = Canonical.of(workload)
    split = sized_split(replace(problem, workload=canonical.workload), seed=seed, actors=actors, spread=spread)
    return assemble("random", [canonical.response[group] for group in split.groups], problem, split.offers.tolist())


def reference_of(problem: PlanningProblem, split: TimedSplit) -> Reference:
    """Return the mean step under a split as reference, which values are relative to."""
    pricing, phases = Pricing.of(problem), problem.phases
    makespan_s, held_s = pricing.generation(split.busy_s, split.offers)
    time_s = phases.step_time_s(float(makespan_s.mean()))
    gpu_s, usd = (float(dot(held_s, rate[split.offers]).mean()) for rate in (pricing.gpu_rate, pricing.usd_rate))
    step = time_s, gpu_s + phases.learner_gpus * time_s, usd + problem.learner_rate("usd") * time_s
    return Reference(len(split.actors), *(max(amount, 1e-12) for amount in step))


def sized_split(problem: PlanningProblem, *, seed: int = 0, actors: int | None = None, spread: bool = False) -> TimedSplit:
    """Return the actors of ``random_split`` and their times, for a workload in canonical order.

    ``solver.generation.actor_count`` says which splits are timed exactly.
    """
    shuffled = _Shuffled.of(problem.workload, seed, spread)
    most = min(shuffled.units, problem.max_actors or shuffled.units)
    least = min(problem.min_actors, most)
    pricing = Pricing.of(problem)
    if not problem.several_kinds:
        limit = min(problem.offers[0].max_actors, most)
        sizes = [actors] if actors is not None else [n for n in candidate_counts(limit) if n >= min(least, limit)]
        splits = [[shuffled.equal(n)] for n in sizes]
        return best_split(len(splits), _Timings(problem, splits, shuffled).of, pricing)
    gpus = sum(pool.gpus for pool in problem.cluster.pools)
    sizes = [actors] if actors is not None else [n for n in candidate_counts(min(most, gpus), *MIXED_COUNTS) if n >= least]
    splits = list(_over_offers(problem, shuffled, sizes))
    if not splits:
        raise PlanningError(no_room(problem, min(sizes, default=least), max(sizes, default=most)))
    points = replace(problem, workload=problem.workload.points)
    keys = least_keys(len(splits), _Timings(points, splits, shuffled).of, pricing)
    first = sorted(range(len(splits)), key=lambda i: (keys[i], i))[:TIMED]
    return best_split(len(first), _Timings(problem, [splits[i] for i in first], shuffled).of, pricing)


@dataclass(frozen=True, eq=False)
class _Division:
    """Responses of consecutive actors of one offer: ``order[edges[g]:edges[g + 1]]`` is the g-th."""

    offer: int
    order: IntArray
    edges: IntArray


@dataclass(frozen=True, eq=False)
class _Shuffled:
    """Responses in shuffled order, in units that stay together: ``order[first[u]:first[u + 1]]`` is the u-th prompt, or with
    ``spread`` the u-th response."""

    order: IntArray
    first: IntArray
    spread: bool

    @classmethod
    def of(cls, workload: Workload, seed: int, spread: bool) -> _Shuffled:
        """Return the shuffled prompts of a workload in canonical order, a prompt's responses in their order."""
        order, first = in_prompt_order(workload, np.random.default_rng(seed).permutation(np.unique(workload.prompt_of)))
        return cls(order, np.arange(len(order) + 1) if spread else first, spread)

    @property
    def units(self) -> int:
        """Return the number of units."""
        return len(self.first) - 1

    def equal(self, actors: int, offer: int = 0) -> _Division:
        """Return the division into equal numbers of units: consecutive prompts, or responses round-robin."""
        if self.spread:
            groups = [self.order[k::actors] for k in range(actors)]
            return _Division(offer, np.concatenate(groups), np.cumsum([0, *map(len, groups)]))
        cuts = np.array([0, *(last for _, last in equal_counts(self.units, actors))])
        return _Division(offer, self.order, self.first[cuts])


class _Timings:
    """Times of the groups of splits. Those of the shuffled order, which most splits cut, are computed once per offer."""

    def __init__(self, problem: PlanningProblem, splits: Sequence[Sequence[_Division]], shuffled: _Shuffled) -> None:
        self._problem, self._splits, self._shuffled = problem, splits, shuffled
        self._shared: dict[int, GroupTimes] = {}  # by offer

    def of(self, i: int) -> list[Groups]:
        """Return the groups of the i-th split."""
        return [Groups(self._times(part), part.edges, part.offer) for part in self._splits[i]]

    def _times(self, part: _Division) -> GroupTimes:
        is_shared = part.order is self._shuffled.order
        if is_shared and part.offer in self._shared:
            return self._shared[part.offer]
        problem, latency = self._problem, self._problem.offers[part.offer].latency
        rule = admission_of(latency, None, problem.admission)
        times = GroupTimes.of(problem.workload, latency, rule, part.order, problem.share_prefill)
        if is_shared:
            self._shared[part.offer] = times
        return times


def _over_offers(problem: PlanningProblem, shuffled: _Shuffled, sizes: Iterable[int]) -> Iterable[list[_Division]]:
    """Return the splits over several offers that fit into memories and pools, for these numbers of actors."""
    items = Items.of(replace(problem, workload=problem.workload.points))
    reserved = problem.workload.reserved_tokens[shuffled.order[shuffled.first[:-1]]]
    fits = reserved <= items.kv_tokens[:, None]  # (R, units)
    for n in sizes:
        yield from ([shuffled.equal(n, r)] for r, offer in enumerate(items.offers) if n <= offer.max_actors and fits[r].all())
        chosen, speed = _mixture(items, n, fits)
        if len(set(chosen)) > 1:
            split = _in_proportion(shuffled, chosen, speed, fits[chosen])
            if split:
                yield split


def _mixture(items: Items, actors: int, fits: NDArray[np.bool_]) -> tuple[list[int], FloatArray]:
    """Return offers of ``actors`` actors, those with the cheapest work first, and the speed of each; empty if too few fit."""
    at_once = np.minimum(items.slots, max(1, len(items.order) // actors))
    per_pass = items.load.sum(axis=1) + items.base_s * float(items.steps.sum()) / at_once
    by_price = np.argsort(items.rate * per_pass, kind="stable").tolist()
    chosen: list[int] = []
    if not fits[by_price[0]].all():  # some prompts need more memory than the cheapest offer has
        chosen.append(int(np.argmax(items.kv_tokens)))

    def places(more: list[int]) -> bool:
        sizes = [(int(items.pool[r]), int(items.gpus[r])) for r in (*chosen, *more)]
        return place(items.pools, sizes) is not None

    for r in by_price:  # as many as fit beside those chosen
        fewest, most = 0, min(actors - len(chosen), items.offers[r].max_actors)
        middle = most
        while fewest < most:
            fewest, most = (middle, most) if places([r] * middle) else (fewest, middle - 1)
            middle = (fewest + most + 1) // 2
        chosen += [r] * fewest
    return (chosen, 1.0 / np.maximum(per_pass[chosen], 1e-12)) if len(chosen) == actors else ([], np.zeros(0))


def _in_proportion(shuffled: _Shuffled, chosen: list[int], speed: FloatArray, fits: NDArray[np.bool_]) -> list[_Division]:
    """Return a split over actors of these offers in proportion to their (N,) speeds; empty if a unit fits into no memory.

    Args:
        fits: (N, units) which units an actor's memory holds.
    """
    order, first = shuffled.order, shuffled.first
    if fits.all():
        if shuffled.spread:  # neighbours are of other prompts
            order = shuffled.equal(len(chosen)).order
        shares = np.concatenate([[0.0], np.cumsum(speed)]) / speed.sum() * shuffled.units
        edges = first[shares.round().astype(int)]
    else:
        taken = _fitting(np.diff(first), speed, fits)
        if taken is None:
            return []
        order = np.concatenate([order[first[u] : first[u + 1]] for units in taken for u in units])
        edges = np.cumsum([0, *(sum(int(first[u + 1] - first[u]) for u in units) for units in taken)])
    used = np.flatnonzero(np.diff(edges))
    divisions = []
    for offer, actors in groupby(used.tolist(), key=lambda j: chosen[j]):
        which = list(actors)
        divisions.append(_Division(offer, order, np.append(edges[which], edges[which[-1] + 1])))
    return divisions


def _fitting(sizes: IntArray, speed: FloatArray, fits: NDArray[np.bool_]) -> list[list[int]] | None:
    """Return the units of each actor: each goes to the actor with the least work for its speed whose memory holds it."""
    queue = [(0.0, j) for j in range(len(speed))]
    taken: list[list[int]] = [[] for _ in speed]
    for unit, size in enumerate(sizes.tolist()):
        aside = []
        while queue and not fits[queue[0][1], unit]:
            aside.append(heapq.heappop(queue))
        if not queue:
            return None
        load, j = heapq.heappop(queue)
        taken[j].append(unit)
        for entry in [*aside, (load + size / float(speed[j]), j)]:
            heapq.heappush(queue, entry)
    return taken
