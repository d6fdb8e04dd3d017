"""RLHFless (arXiv 2602.22718): equal-count groups of sorted predictions, min-max scaled actor count, local cut at tau.

Section "cost-aware actor scaling": over N in [N_min, N_max], T~ and C~ are min-max normalised time and cost, and
N' = argmin lambda * T~(N) + (1 - lambda) * C~(N), lambda = 0.7. The paper notes that this scaling distorts the balance; it
is kept here as published. Prompts are sorted by predicted length and cut into N groups of equal count. While the step runs
``LocalCut`` cuts an actor when tau of its assigned responses are complete, if other running actors have enough free slots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rlhfless.scheduling.policy import PlanningOptions, check_inputs
from rlhfless.scheduling.rules import LocalCut
from solver.generation.prompt_order import candidate_counts
from solver.generation.random_split import assign_prompts
from solver.model.objective import NonGenerationPhases, Objective
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.timing.build_plan import assemble
from solver.timing.evaluate import admission_of
from solver.timing.group_times import GroupTimes
from solver.timing.step_cost import Pricing


@dataclass(frozen=True)
class RLHFless:
    """RLHFless as published: its planner with its local cut.

    Args:
        tau: share of an actor's responses after which it is cut (0.7 in the paper; 1 switches the cut off).
        scale_weight: lambda of the actor scaling.
        min_actors: N_min.
    """

    tau: float = 0.7
    scale_weight: float = 0.7
    min_actors: int = 1
    name: str = "rlhfless"
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        check_inputs(problem, options)
        workload, (cluster, latency) = problem.workload, problem.one_kind
        used = np.unique(workload.prompt_of)
        total = np.bincount(workload.prompt_of, weights=workload.response_tokens)
        count = np.bincount(workload.prompt_of)
        mean = total[used] / count[used]
        order = used[np.lexsort((used, -mean))]  # longest first, so that the longest group is actor 0
        most = min(cluster.max_actors, len(used))
        counts = [n for n in candidate_counts(most) if n >= min(self.min_actors, most)]
        groups = [assign_prompts(workload, order, n) for n in counts]
        admission = admission_of(latency, None, problem.admission)
        times = GroupTimes.of(workload, latency, admission, np.concatenate(groups[0]))  # one order, cut n times
        alone = replace(problem, objective=Objective(), phases=NonGenerationPhases())  # generation alone, in GPU-seconds
        pricing = Pricing.of(alone)
        taken = [pricing.step_of(times.busy_s(np.cumsum([0, *map(len, split)]))) for split in groups]
        time, cost = (_min_max([float(values.mean()) for values in column]) for column in zip(*taken, strict=True))
        best = min(range(len(counts)), key=lambda i: self.scale_weight * time[i] + (1 - self.scale_weight) * cost[i])
        plan = assemble(self.name, groups[best], problem)
        return replace(plan, rule=LocalCut(self.tau) if self.tau < 1 else None)


def _min_max(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    return [(v - low) / (high - low) if high > low else 0.0 for v in values]
