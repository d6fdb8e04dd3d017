"""Policies that assign responses without planning: in the given order, at random, round-robin, by load, by predicted sums.

Functions split prompts or responses into groups; the small policies around them choose the number of actors. Lengths are used
for right-sizing, and by the two that balance **predicted sums** (``karmarkar-karp``, ``lpt``). Both treat a step as number
partitioning: the sums of predicted tokens of the actors should be equal. Neither takes into account that an actor lasts as long
as its longest response, or what an iteration costs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from rlhfless.scheduling.policy import PlanningOptions, check_inputs
from solver.generation.actor_count import Groups, best_split
from solver.generation.prompt_order import candidate_counts
from solver.generation.random_split import assign_prompts, random_split
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.workload import IntArray, Workload
from solver.timing.build_plan import assemble
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes
from solver.timing.step_cost import Pricing

Part = tuple[int, int, tuple[int, ...]]  # sum, count (parts of equal sums are distinguished by it), positions


# --- groups of prompts and responses ----------------------------------------------------------------------------------------


def responses_of(workload: Workload, groups: Sequence[ArrayLike]) -> list[IntArray]:
    """Return groups of prompts as groups of their responses, prompts and samples in their order."""
    by_prompt = np.argsort(workload.prompt_of, kind="stable")
    ends = np.cumsum(np.bincount(workload.prompt_of, minlength=len(workload.prompt_tokens)))
    responses = np.split(by_prompt, ends[:-1])
    return [np.concatenate([responses[p] for p in np.asarray(group, dtype=np.int64)]) for group in groups]


def predicted_sums(workload: Workload, prompts: IntArray) -> IntArray:
    """Return (prompts,) predicted iterations, summed over all responses of each prompt."""
    sums = np.zeros(len(workload.prompt_tokens), dtype=np.int64)
    np.add.at(sums, workload.prompt_of, workload.iterations)
    return np.asarray(sums[prompts])


def assign_round_robin(workload: Workload, actors: int, seed: int) -> list[IntArray]:
    """Assign responses round-robin to ``actors`` actors, prompts in random order and the responses of each, too.

    In a fixed order, every actor would get the same responses of each prompt where their number divides the actors: all in one
    language, for example. With more actors than responses, the last actors get none.
    """
    rng = np.random.default_rng(seed)
    rank = rng.permutation(len(workload.prompt_tokens))
    order = np.lexsort((rng.permutation(len(workload)), rank[workload.prompt_of]))
    return [order[first::actors] for first in range(actors)]


def largest_differencing(sums: Sequence[int], parts: int, equal_counts: bool = False) -> list[list[int]]:
    """Partition ``sums`` (not negative) into ``parts`` groups by Karmarkar-Karp; returns positions in ascending order.

    Karmarkar, Karp: The differencing method of set partitioning, 1982. The two partial partitions with the largest differences
    are merged, until one is left. The largest part of one joins the smallest of the other. The data-parallel ranks of verl are
    balanced in this way (``verl/utils/seqlen_balancing.py``), with equal counts. Its partial partitions then begin as blocks of
    N numbers next to each other in sorted order, so that every merge keeps the counts equal. It refuses counts that N does not
    divide; here zeros fill the first block up, and counts differ by one at most.

    Args:
        parts: at most as many as there are sums; then no group is empty.
        equal_counts: groups differ by one in count at most.
    """
    ranked = sorted((int(value), i) for i, value in enumerate(sums))
    singles: list[Part] = [(value, 1, (i,)) for value, i in ranked]
    nothing: Part = (0, 0, ())
    if equal_counts:
        filled = [nothing] * (-len(singles) % parts) + singles
        partial = [filled[start : start + parts] for start in range(0, len(filled), parts)]
    else:
        partial = [[single] + [nothing] * (parts - 1) for single in singles]
    heap: list[tuple[int, int, int, list[Part]]] = []

    def push(place: int, state: list[Part]) -> None:
        state.sort(reverse=True)
        heapq.heappush(heap, (state[-1][0] - state[0][0], -state[0][0], place, state))

    for place, state in enumerate(partial):
        push(place, state)
    while len(heap) > 1:
        (_, _, place, first), (_, _, _, second) = heapq.heappop(heap), heapq.heappop(heap)
        push(place, [(a + b, m + n, p + q) for (a, m, p), (b, n, q) in zip(first, reversed(second), strict=True)])
    return [sorted(positions) for _, _, positions in heap[0][3]]


def longest_first(sums: Sequence[int], parts: int) -> list[list[int]]:
    """Partition ``sums`` into ``parts`` groups by longest processing time first; returns positions in order of assignment.

    Graham: Bounds on multiprocessing timing anomalies, 1969. The next largest sum goes to the group with the least so far. The
    largest sum of a group is at most 4/3 - 1/(3N) times the least possible.
    """
    groups: list[list[int]] = [[] for _ in range(parts)]
    load = [(0, 0, g) for g in range(parts)]  # sum, count, group: a heap
    for i in sorted(range(len(sums)), key=lambda i: (-sums[i], i)):
        total, count, group = load[0]
        groups[group].append(i)
        heapq.heapreplace(load, (total + int(sums[i]), count + 1, group))
    return groups


# --- right-sizing -----------------------------------------------------------------------------------------------------------


def right_sized(name: str, assign: Callable[[int], Sequence[IntArray]], most: int, problem: PlanningProblem) -> Plan:
    """Return the plan with the number of actors that is best for the objective on predictions, for any way to assign responses.

    It does for any assignment what ``solver.random_split`` does for the random one: N has the least ``T^w * C^(1-w)`` of the
    whole step over the scenarios. A deadline or a budget that no N keeps is approached as closely as possible.

    Args:
        assign: returns groups of responses, none of them empty, for a number of actors up to ``most``.
    """
    cluster, latency = problem.one_kind
    admission = admission_of(latency, None, problem.admission)
    counts = candidate_counts(min(cluster.max_actors, most))

    def split(i: int) -> list[Groups]:
        groups = assign(counts[i])
        times = GroupTimes.of(problem.workload, latency, admission, np.concatenate(groups), problem.share_prefill)
        return [Groups(times, np.cumsum([0, *map(len, groups)]))]

    return assemble(name, best_split(len(counts), split, Pricing.of(problem)).groups, problem)


# --- policies ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Static:
    """Start a fixed number of actors with equal chunks of prompts in the given order; hold GPUs until the last response.

    Args:
        actors: how many (all that fit when None; 3 in the RLHFless paper's figures).
        hold: GPUs are held until the end of ``generation`` or of the ``step``.
        shuffled: index of the random order of the prompts; None keeps the given order.
    """

    actors: int | None = None
    hold: str = "generation"
    name: str = "static"
    shuffled: int | None = None
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        check_inputs(problem, options)
        prompts = _order(problem, options, self.shuffled)
        count = problem.one_kind[0].max_actors if self.actors is None else self.actors
        groups = assign_prompts(problem.workload, prompts, count)
        return assemble(self.name, groups, replace(problem, release=self.hold))


@dataclass(frozen=True)
class Random:
    """Split prompts at random over the number of actors that is best for the objective on predictions (right-sized).

    Args:
        release: GPUs are released when an actor is ``done``, or held until the end of ``generation`` or of the ``step``.
    """

    release: str = "done"
    name: str = "random"
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        check_inputs(problem, options)
        return replace(random_split(replace(problem, release=self.release), seed=options.seed), policy=self.name)


@dataclass(frozen=True)
class LeastLoaded:
    """Assign whole prompts in order, each to the actor with the fewest responses so far; start all actors.

    It stands for frameworks that balance requests in flight, such as verl. They route every request alone, while the samples
    of a prompt stay together here. All are assigned at once, so none has ended: those so far are those in flight.

    Args:
        release: as of ``Random``. shuffled: as of ``Static``.
    """

    release: str = "done"
    name: str = "least-loaded"
    shuffled: int | None = None
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        check_inputs(problem, options)
        workload = problem.workload
        samples = np.bincount(workload.prompt_of, minlength=len(workload.prompt_tokens)).tolist()
        in_flight = [0] * problem.one_kind[0].max_actors
        groups: list[list[int]] = [[] for _ in in_flight]
        for prompt in _order(problem, options, self.shuffled).tolist():
            actor = min(range(len(groups)), key=in_flight.__getitem__)
            groups[actor].append(prompt)
            in_flight[actor] += samples[prompt]
        used = responses_of(workload, [group for group in groups if group])
        return assemble(self.name, used, replace(problem, release=self.release))


def _order(problem: PlanningProblem, options: PlanningOptions, shuffled: int | None) -> IntArray:
    """Return the prompts that have responses, in the given order or in a random one drawn from the step's seed and
    ``shuffled``."""
    prompts = np.unique(problem.workload.prompt_of)
    return prompts if shuffled is None else np.random.default_rng((options.seed, shuffled)).permutation(prompts)


@dataclass(frozen=True)
class Spread:
    """Prompts in random order, their responses assigned round-robin; actors are released when done.

    A split of whole prompts makes actors unequal where samples of a prompt have similar lengths. Spreading them costs nothing
    as long as every response computes its own prefill.

    Args:
        actors: how many; the best number for the objective on predictions when None.
    """

    name: str = "spread"
    clairvoyant: bool = False
    actors: int | None = None

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        check_inputs(problem, options)
        workload = problem.workload
        if self.actors is not None:
            return assemble(self.name, assign_round_robin(workload, self.actors, options.seed), problem)
        return right_sized(self.name, lambda n: assign_round_robin(workload, n, options.seed), len(workload), problem)


def equal_chunks(sums: Sequence[int], parts: int) -> Sequence[ArrayLike]:
    """Partition positions into ``parts`` chunks of equal count in the given order; the sums are not used."""
    return np.array_split(np.arange(len(sums)), parts)


def balanced_ranks(sums: Sequence[int], parts: int) -> Sequence[ArrayLike]:
    """Partition positions as verl balances its ranks: largest differencing with equal counts."""
    return largest_differencing(sums, parts, equal_counts=True)


@dataclass(frozen=True)
class SplitPrompts:
    """Split whole prompts by a function of their predicted sums, over the best number of actors for the objective.

    Args:
        split: (sums of predicted tokens by prompt, number of actors) to groups of positions, none of them empty.
    """

    name: str
    split: Callable[[Sequence[int], int], Sequence[ArrayLike]]
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        check_inputs(problem, options)
        workload, prompts = problem.workload, np.unique(problem.workload.prompt_of)
        sums = predicted_sums(workload, prompts).tolist()

        def assign(actors: int) -> list[IntArray]:
            return responses_of(workload, [prompts[np.asarray(group)] for group in self.split(sums, actors)])

        return right_sized(self.name, assign, len(prompts), problem)
