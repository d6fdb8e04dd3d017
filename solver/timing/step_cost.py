"""Computes time, cost and objective value of the whole step from makespan and cost of generation, or from busy seconds.

How plans are found plays no part. ``solver.evaluate`` times plans on several kinds of actors; for one kind ``Pricing`` gives
the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from solver.model.objective import NonGenerationPhases, Objective
from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray


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
        learner = self.learner_rate * time_s
        if self.objective.deadline_s is not None:
            return value - learner
        if self.objective.budget is not None:
            return self.objective.budget * (1 + 1e-8) - learner if time_s < value else 0.0
        w = self.objective.time_weight
        if w == 1.0 or math.isinf(value):
            return math.inf
        return (value - w * time_s / self.norms[0]) / (1.0 - w) * self.norms[1] - learner

    @property
    def held_after_s(self) -> float | None:
        """Return the seconds that actors hold their GPUs beyond the makespan, or None if they release them once done."""
        if self.release == "done":
            return None
        return self.phases.seconds if self.release == "step" else 0.0


@dataclass(frozen=True)
class Pricing(StepObjective):
    """Prices and start-up times of actors of one kind.

    Attributes:
        actor_rate: cost of one actor for one second, in the unit of the objective.
        sync_s, start_s: seconds before an actor decodes; ``start_s`` applies only from the ``prewarmed``-th actor on.
    """

    _: KW_ONLY
    actor_rate: float
    sync_s: float
    start_s: float
    prewarmed: int

    @classmethod
    def of(cls, problem: PlanningProblem) -> Pricing:
        """Return the pricing of the actors of a problem with one kind of them."""
        (cluster, latency), objective = problem.one_kind, problem.objective
        per_gpu = 1.0 if objective.cost == "gpu_s" else cluster.usd_per_gpu_s
        return cls(
            objective, problem.phases, problem.learner_rate(objective.cost), release=problem.release,
            actor_rate=cluster.gpus_per_actor * per_gpu, sync_s=latency.sync_s, start_s=latency.start_s,
            prewarmed=cluster.prewarmed,
        )  # fmt: skip

    def held_s(self, actor_s: FloatArray | float, actors: int, makespan_s: FloatArray | float) -> Any:
        """Return the seconds for which actors hold their GPUs, all together.

        Args:
            actor_s: the sum of what they take until each is done, a number or (S,).
        """
        after_s = self.held_after_s
        return actor_s if after_s is None else np.maximum(actor_s, actors * makespan_s) + actors * after_s

    def generation(self, busy_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the (S,) makespan, and the seconds of all actors together, for (S, N) busy seconds."""
        actors = busy_s.shape[1]
        done = busy_s + (self.sync_s + np.where(np.arange(actors) >= self.prewarmed, self.start_s, 0.0))
        makespan = done.max(axis=1)
        return makespan, self.held_s(done.sum(axis=1), actors, makespan)

    def step_of(self, busy_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the (S,) time and cost of the whole step if actors are busy for (S, N) seconds once they can decode."""
        makespan_s, held_s = self.generation(busy_s)
        return self.step(makespan_s, self.actor_rate * held_s)

    def value_of(self, busy_s: FloatArray) -> float:
        """Return the objective over the scenarios, for (S, N) busy seconds."""
        return self.objective.value_over(*self.step_of(busy_s), self.norms)
