"""Right-sizing: finds the number of actors that is best for the objective on predictions, for any way of splitting prompts.

The caller provides the split. It does for any split what ``solver.generation.random_split`` does for the random one: N has the
least ``T^w * C^(1-w)`` of the whole step over the scenarios. A deadline or a budget that no N keeps is approached as closely as
possible. A prompt's samples stay together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import ArrayLike

from solver.generation.actor_count import Groups, best_split
from solver.generation.prompt_dealing import candidate_counts
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.workload import IntArray, Workload
from solver.timing.build_plan import assemble
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes
from solver.timing.step_cost import Pricing

Split = Callable[[Workload, IntArray, int], Iterable[ArrayLike]]
"""Splits prompts, given in their order, into that many groups (never more than there are prompts; none empty)."""


def right_sized(name: str, split: Split, problem: PlanningProblem) -> Plan:
    """Return the plan of ``split`` with the best number of actors."""
    prompts = np.unique(problem.workload.prompt_of)

    def assign(actors: int) -> list[IntArray]:
        return responses_of(problem.workload, split(problem.workload, prompts, actors))

    return right_sized_assignment(name, assign, len(prompts), problem)


def right_sized_assignment(
    name: str, assign: Callable[[int], list[IntArray]], max_actors: int, problem: PlanningProblem
) -> Plan:
    """``right_sized`` for single responses: ``assign(N)`` returns N groups, none of them empty, for N up to ``max_actors``."""
    cluster, latency = problem.one_kind
    admission = admission_of(latency, None, problem.admission)
    counts = candidate_counts(min(cluster.max_actors, max_actors))

    def split(i: int) -> list[Groups]:
        groups = assign(counts[i])
        times = GroupTimes.of(problem.workload, latency, admission, np.concatenate(groups), problem.share_prefill)
        return [Groups(times, np.cumsum([0, *map(len, groups)]))]

    return assemble(name, best_split(len(counts), split, Pricing.of(problem)).groups, problem)


def responses_of(workload: Workload, groups: Iterable[ArrayLike]) -> list[IntArray]:
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
