"""Computes time, cost and objective value of the whole step for finished plans, and ranks plans, shared prefill included."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from solver.model.cluster import Cluster, MixedCluster
from solver.model.objective import NonGenerationPhases, Objective
from solver.model.offers import Latencies
from solver.model.plan import Plan
from solver.model.workload import FloatArray, Workload
from solver.timing.evaluate import evaluate


@dataclass(frozen=True, eq=False)
class StepValue:
    """Values plans of a workload by time, cost and objective of the whole step, in the unit of the objective.

    Attributes:
        learner_rate: cost of the learner's GPUs per second of the step. norms: T_ref and C_ref.
    """

    workload: Workload
    latency: Latencies
    objective: Objective
    phases: NonGenerationPhases
    admission: str
    learner_rate: float
    norms: tuple[float, float] = (1.0, 1.0)

    @classmethod
    def of(
        cls,
        workload: Workload,
        cluster: Cluster | MixedCluster,
        latency: Latencies,
        objective: Objective,
        phases: NonGenerationPhases,
        admission: str,
    ) -> StepValue:
        """Return the values for a workload on a cluster; the learner's GPUs are of its first pool."""
        learner_rate = phases.learner_rate(objective.cost, cluster.pools[0].usd_per_gpu_s)
        return cls(workload, latency, objective, phases, admission, learner_rate)

    def against(self, given: Plan) -> StepValue:
        """Return the same with the mean time and cost of a plan as reference."""
        time_s, cost = (float(x.mean()) for x in self.step(given))
        return replace(self, norms=(time_s or 1.0, cost or 1.0))

    def step(self, plan: Plan) -> tuple[FloatArray, FloatArray]:
        """Return the (S,) time and cost of the step in every scenario, or for the one set of lengths."""
        if self.workload.scenarios is None:
            makespan_s, gpu_s, usd = (np.array([x]) for x in (plan.makespan_s, plan.gpu_seconds, plan.cost_usd))
        else:
            taken = evaluate(plan, self.workload, self.latency, self.phases, admission=self.admission)
            makespan_s, gpu_s, usd = taken.makespans_s, taken.gpu_seconds_of, taken.cost_usd_of
        time_s = makespan_s + self.phases.seconds
        return time_s, (gpu_s if self.objective.cost == "gpu_s" else usd) + self.learner_rate * time_s

    def rank(self, plan: Plan) -> tuple[float, float]:
        """Return the pair to minimise: by how much a deadline or a budget is missed, then the value (without a limit on it)."""
        objective, (time_s, cost) = self.objective, self.step(plan)
        if objective.deadline_s is not None:
            return max(0.0, objective.risk(time_s) - objective.deadline_s * (1 + 1e-9)), objective.risk(cost)
        if objective.budget is not None:
            return max(0.0, objective.risk(cost) - objective.budget * (1 + 1e-9)), objective.risk(time_s)
        return 0.0, objective.value_over(time_s, cost, self.norms)
