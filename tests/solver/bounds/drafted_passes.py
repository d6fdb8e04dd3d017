"""A plain simulation of policies that draft: every pass of every actor, with the drafts that a policy chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

import solver
from solver.timing.evaluate import ready_s

Choose = Callable[[int, int], int]
"""(response, its tokens so far) -> drafted tokens of its next pass."""


def step_of_passes(
    problem: solver.PlanningProblem, actors: Sequence[Sequence[int]], runs: Sequence[np.ndarray], choose: Choose
) -> tuple[float, float]:
    """Time and GPU-seconds of a step in which each actor decodes its responses, in this order, and refills its slots.

    ``runs[i][j]`` drafted tokens are accepted at token j of response i, at most.
    """
    cluster, latency = problem.one_kind
    done = []
    for responses in actors:
        clock, queue, batch = ready_s(latency), [i for i in responses if len(runs[i])], []
        tokens = dict.fromkeys(queue, 0)
        while queue or batch:
            joins = queue[: latency.max_batch - len(batch)]
            queue, batch = queue[len(joins) :], batch + joins
            prefill = sum(int(problem.workload.context_tokens[i]) for i in joins)
            clock += float(latency.prefill_s(prefill)) if prefill else 0.0
            drafts = {i: choose(i, tokens[i]) for i in batch}
            fed = sum(1 + n for n in drafts.values())
            kv_tokens = sum(int(problem.workload.context_tokens[i]) + tokens[i] for i in batch)
            clock += float(latency.iteration_s(fed, kv_tokens)) + latency.join_s * len(joins)
            for i in batch:
                tokens[i] += 1 + min(drafts[i], int(runs[i][tokens[i]]))
            batch = [i for i in batch if tokens[i] < len(runs[i])]
        done.append(clock)
    return max(done), cluster.gpus_per_actor * sum(done)
