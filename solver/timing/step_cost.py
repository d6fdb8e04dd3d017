"""Computes time, cost and objective value of the whole step from makespan and cost of generation, or from busy seconds.

How plans are found plays no part. ``Pricing`` gives the numbers of ``solver.evaluate`` from the seconds that actors are busy.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.model.objective import NonGenerationPhases, Objective
from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray, IntArray


@dataclass(frozen=True)
class StepObjective:
    """Values plans by makespan and cost of generation, including the phases outside generation.

    Attributes:
        learner_rate: cost of the learner's GPUs per second of the step, in the unit of the objective. norms: T_ref and C_ref.
        release: when actors release their GPUs (``done``, ``generation`` or ``step``).
    """

    objective: Objective
    phases: NonGenerationPhases
    learner_rate: float
    norms: tuple[float, float] = (1.0, 1.0)
    release: str = "done"

    @classmethod
    def of_problem(cls, problem: PlanningProblem, norms: tuple[float, float] = (1.0, 1.0)) -> StepObjective:
        """Return the values of a problem's plans."""
        objective = problem.objective
        return cls(objective, problem.phases, problem.learner_rate(objective.cost), norms, problem.release)

    def step(self, makespan_s: FloatArray | float, cost: FloatArray | float) -> tuple[Any, Any]:
        """Return time and cost of the whole step, as numbers or as (S,) arrays."""
        time_s = makespan_s + self.phases.seconds
        return time_s, cost + self.learner_rate * time_s

    def value(self, makespan_s: float, cost: float) -> float:
        """Return the number to minimise; infinite if a limit is broken."""
        return self.objective.value(*self.step(makespan_s, cost), self.norms)

    def most_cost(self, value: float, makespan_s: float) -> float:
        """Return the cost of generation from which on a plan of this makespan has ``value`` or more."""
        time_s = self.phases.step_time_s(makespan_s)
        return self.objective.most_cost(value, time_s, self.norms) - self.learner_rate * time_s

    @property
    def held_after_s(self) -> float | None:
        """Return the seconds that actors hold their GPUs beyond the makespan, or None if they release them once done."""
        if self.release == "done":
            return None
        return self.phases.seconds if self.release == "step" else 0.0


@dataclass(frozen=True, eq=False)
class Pricing(StepObjective):
    """Prices and start-up times of actors of R offers.

    Attributes:
        gpu_rate, usd_rate: (R,) GPU-seconds and dollars of one actor for one second.
        sync_s, start_s: (R,) seconds before an actor decodes; ``start_s`` unless it is prewarmed.
        pool: (R,) of the cluster. prewarmed: containers of each pool that are.
    """

    _: KW_ONLY
    gpu_rate: FloatArray
    usd_rate: FloatArray
    sync_s: FloatArray
    start_s: FloatArray
    pool: IntArray
    prewarmed: tuple[int, ...]

    @classmethod
    def of(cls, problem: PlanningProblem) -> Pricing:
        """Return the pricing of the actors of a problem."""
        objective, offers = problem.objective, problem.offers
        gpus = np.array([offer.gpus for offer in offers], dtype=float)
        return cls(
            objective, problem.phases, problem.learner_rate(objective.cost), release=problem.release,
            gpu_rate=gpus, usd_rate=gpus * np.array([offer.usd_per_gpu_s for offer in offers]),
            sync_s=np.array([offer.latency.sync_s for offer in offers]),
            start_s=np.array([offer.latency.start_s for offer in offers]),
            pool=np.array([offer.pool for offer in offers]), prewarmed=tuple(pool.prewarmed for pool in problem.cluster.pools),
        )  # fmt: skip

    @property
    def rate(self) -> FloatArray:
        """Return the (R,) cost of one actor for one second, in the unit of the objective."""
        return self.usd_rate if self.objective.cost == "usd" else self.gpu_rate

    def prewarmed_of(self, offers: IntArray) -> NDArray[np.bool_]:
        """Return which of the actors of these (N,) offers use the prewarmed containers: in every pool those whose start would
        cost most, of equal ones the first."""
        warm = np.zeros(len(offers), dtype=bool)
        by_start_cost = np.argsort(-(self.start_s * self.rate)[offers], kind="stable")
        for i, count in enumerate(self.prewarmed):
            warm[by_start_cost[self.pool[offers[by_start_cost]] == i][:count]] = True
        return warm

    def generation(self, busy_s: FloatArray, offers: IntArray | None = None) -> tuple[FloatArray, FloatArray]:
        """Return the (S,) makespan, and the (S, N) seconds for which each actor holds its GPUs, for (S, N) busy seconds.

        Args:
            offers: (N,) of the actors; may be left out where there is one.
        """
        of = np.zeros(busy_s.shape[1], dtype=np.int64) if offers is None else offers
        done = busy_s + (self.sync_s[of] + np.where(self.prewarmed_of(of), 0.0, self.start_s[of]))
        makespan, after_s = done.max(axis=1), self.held_after_s
        return makespan, done if after_s is None else np.maximum(done, makespan[:, None]) + after_s

    def step_of(self, busy_s: FloatArray, offers: IntArray | None = None) -> tuple[FloatArray, FloatArray]:
        """Return the (S,) time and cost of the whole step if actors are busy for (S, N) seconds once they can decode."""
        makespan_s, held_s = self.generation(busy_s, offers)
        rate = self.rate[np.zeros(busy_s.shape[1], dtype=np.int64) if offers is None else offers]
        return self.step(makespan_s, (held_s * rate).sum(axis=1))
