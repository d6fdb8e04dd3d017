"""The bound of planning for one kind of actors, from the late-opening relaxation (``relaxation``), and a coarser one.

**Coarse bound**, for scenarios that no time is left for. Decoding response i brings the load ``w_i = b n + c (p n + n (n - 1) /
2)``. Some actor decodes the longest response, which alone takes the base time of n_1 iterations and its load. And K actors that
end by T have K (T - sync) seconds for all loads. So ``T >= sync + max(a n_1 + w_1, sum w / K)``. All actors together run at
least n_1 iterations, and at least (sum n) / s because none decodes more than s responses in one. So they are held for at least
``sync + a max(n_1, sum n / s) + sum w`` seconds. Prefill and starts only add.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray
from solver.planning.bound import CostBound
from solver.planning.single_kind.items import SortedWork
from solver.planning.single_kind.relaxation import relaxed
from solver.planning.work_budget import WorkBudget
from solver.timing.step_cost import Pricing


@dataclass(eq=False)
class LateOpening:
    """Lower bound on the cost of generation of plans of at least ``min_actors`` actors; implements ``Bound``."""

    work: SortedWork
    pricing: Pricing
    min_actors: int = 1
    work_budget: WorkBudget = field(default_factory=WorkBudget)

    @classmethod
    def of_problem(cls, problem: PlanningProblem, work_budget: WorkBudget | None = None) -> LateOpening:
        """Return the bound of a problem with one kind of actors."""
        return cls(SortedWork.of_problem(problem), Pricing.of(problem), work_budget=work_budget or WorkBudget())

    @property
    def shortest_makespan_s(self) -> float:
        """Return a lower bound on the makespan."""
        return self.work.shortest_makespan_s

    @property
    def longest_makespan_s(self) -> float:
        """Return the time of one actor that generates everything, and a little more."""
        return max(self.work.shortest_makespan_s, self.work.longest_makespan_s * (1 + 1e-9))

    def at(self, makespan_s: float, stop_above: float = math.inf, low_s: float = 0.0) -> CostBound:
        """Return the bound for plans with makespans between ``low_s`` and ``makespan_s``."""
        least = relaxed(self.work, makespan_s, self.min_actors)
        if least is None:
            return CostBound(math.inf)
        return CostBound(self.pricing.actor_rate * float(self.pricing.held_s(least.actor_s, least.actors, low_s)))


def coarse_bounds(problem: PlanningProblem) -> tuple[FloatArray, FloatArray]:
    """Return (S,) lower bounds on the makespan, and on the seconds of all actors together, of any plan in every scenario."""
    workload, (cluster, latency) = problem.workload, problem.one_kind
    max_actors = min(cluster.max_actors, problem.max_actors or cluster.max_actors)
    assert workload.scenarios is not None
    n = np.maximum(workload.scenarios - workload.generated_tokens, 0).astype(float)
    row, first = np.arange(len(n)), n.argmax(axis=1)
    a, b, c = latency.base_s, latency.per_response_s, latency.per_kv_token_s
    p, most = workload.context_tokens.astype(float), n[row, first]
    load = (b - c / 2) * n.sum(axis=1) + c * (n @ p + np.einsum("sr,sr->s", n, n) / 2)
    alone = b * most + c * (p[first] * most + most * (most - 1) / 2)
    makespan = latency.sync_s + np.maximum(a * most + alone, load / max_actors)
    held = latency.sync_s + a * np.maximum(most, n.sum(axis=1) / latency.max_batch) + load
    return makespan, held
