"""Computes time, cost and objective value of the whole step for groups of responses on actors of one kind.

Inputs: busy seconds of the actors, the objective, the phases outside generation and the prices. How groups are found plays no
part. ``solver.evaluate`` prices plans with several kinds; for one kind both give the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.model.cluster import Cluster
from solver.model.latency import LatencyModel
from solver.model.objective import NonGenerationPhases, Objective
from solver.model.workload import FloatArray


@dataclass(frozen=True)
class Pricing:
    """Prices and start-up times of actors of one kind.

    Attributes:
        actor_rate: cost of one actor for one second, in the unit of the objective; learner_rate: the same for the learner's
            GPUs.
        sync_s, start_s: seconds before an actor decodes; ``start_s`` applies only from the ``prewarmed``-th actor on.
        release: when actors release their GPUs (``done``, ``generation`` or ``step``).
    """

    objective: Objective
    phases: NonGenerationPhases
    actor_rate: float
    learner_rate: float
    sync_s: float
    start_s: float
    prewarmed: int
    release: str = "done"

    @classmethod
    def of(
        cls, cluster: Cluster, latency: LatencyModel, objective: Objective, phases: NonGenerationPhases, release: str = "done"
    ) -> Pricing:
        """Return the pricing of actors of ``latency`` on ``cluster``."""
        per_gpu = 1.0 if objective.cost == "gpu_s" else cluster.usd_per_gpu_s
        return cls(
            objective,
            phases,
            cluster.gpus_per_actor * per_gpu,
            phases.learner_rate(objective.cost, cluster.usd_per_gpu_s),
            latency.sync_s,
            latency.start_s,
            cluster.prewarmed,
            release,
        )

    def step(self, busy_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the (S,) time and cost of the whole step if actors are busy for (S, N) seconds once they can decode."""
        actors = busy_s.shape[1]
        ready = self.sync_s + np.where(np.arange(actors) >= self.prewarmed, self.start_s, 0.0)
        done = busy_s + ready
        makespan = done.max(axis=1)
        if self.release == "done":
            held = done.sum(axis=1)
        else:
            held = actors * (makespan + (self.phases.seconds if self.release == "step" else 0.0))
        time_s = makespan + self.phases.seconds
        return time_s, self.actor_rate * held + self.learner_rate * time_s

    def value(self, busy_s: FloatArray, norms: tuple[float, float]) -> float:
        """Return the objective over the scenarios, for (S, N) busy seconds."""
        return self.objective.value_over(*self.step(busy_s), norms)
