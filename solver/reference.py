"""The right-sized random split: the baseline of every objective and the plan of the policy ``random``.

Knows workload, cluster and latency; nothing of exact planning. Whole prompts are shuffled and dealt to N actors in equal
counts; N is the one with the least ``T^w * C^(1-w)``. The product needs no normalisation of its own, and around the chosen
N it ranks plans as the weighted objective with this split as reference does: both have the same gradient there.
"""

from __future__ import annotations

import math

import numpy as np

from solver.assemble import assemble
from solver.cluster import Cluster
from solver.latency import LatencyModel
from solver.objective import Objective, StepRest
from solver.plan import Plan, Reference
from solver.rounding import equal_counts
from solver.workload import IntArray, Workload


def deal_prompts(workload: Workload, prompts: IntArray, actors: int) -> list[IntArray]:
    """Deal whole prompts, in the given order, to ``actors`` actors in equal counts; a prompt's responses in their order."""
    by_prompt = np.argsort(workload.prompt_of, kind="stable")
    counts = np.bincount(workload.prompt_of, minlength=len(workload.prompt_tokens))
    first = np.concatenate([[0], np.cumsum(counts)])
    groups = []
    for start, end in equal_counts(len(prompts), actors):
        groups.append(np.concatenate([by_prompt[first[p] : first[p + 1]] for p in prompts[start:end]]))
    return groups


def candidate_counts(most: int) -> list[int]:
    """Actor counts to try: all up to 16, then steps of about 7 %."""
    counts = list(range(1, min(most, 16) + 1))
    while counts[-1] < most:
        counts.append(min(most, math.ceil(counts[-1] * 1.07)))
    return counts


def random_split(
    workload: Workload,
    cluster: Cluster,
    latency: LatencyModel,
    objective: Objective = Objective(),  # noqa: B008 (frozen)
    rest: StepRest = StepRest(),  # noqa: B008 (frozen)
    *,
    seed: int = 0,
    actors: int | None = None,
    release: str = "done",
    admission: str = "reserve",
) -> Plan:
    """The random split with the best number of actors for the objective, or with ``actors`` when given.

    A deadline or budget that no split keeps is approached as closely as possible.
    """
    used = np.unique(workload.prompt_of)
    order = np.random.default_rng(seed).permutation(used)
    counts = [actors] if actors is not None else [n for n in candidate_counts(cluster.max_actors) if n <= len(used)]
    best: tuple[tuple[float, float], Plan] | None = None
    for n in counts:
        groups = deal_prompts(workload, order, n)
        plan = assemble("random", groups, workload, cluster, latency, rest, release=release, admission=admission)
        key = _key(plan, objective, rest)
        if best is None or key < best[0]:
            best = (key, plan)
    assert best is not None
    return best[1]


def step_of(plan: Plan, rest: StepRest) -> tuple[float, float]:
    """Time and GPU-seconds of the whole step under ``plan``."""
    return rest.step_time_s(plan.makespan_s), rest.step_gpu_s(plan.makespan_s, plan.gpu_seconds)


def _key(plan: Plan, objective: Objective, rest: StepRest) -> tuple[float, float]:
    time_s, gpu_s = step_of(plan, rest)
    if objective.deadline_s is not None:
        return (max(0.0, time_s - objective.deadline_s), gpu_s)
    if objective.budget_gpu_s is not None:
        return (max(0.0, gpu_s - objective.budget_gpu_s), time_s)
    w = objective.time_weight
    return (0.0, w * math.log(max(time_s, 1e-12)) + (1 - w) * math.log(max(gpu_s, 1e-12)))


def reference_of(plan: Plan, rest: StepRest) -> Reference:
    """Time and GPU-seconds of the whole step under ``plan``, for use as T_ref and C_ref."""
    time_s, gpu_s = step_of(plan, rest)
    return Reference(len(plan.actors), max(time_s, 1e-12), max(gpu_s, 1e-12))
