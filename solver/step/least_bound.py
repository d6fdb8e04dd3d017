"""The bound on a step that may be run in several ways, each with a bound of its own: at every time the least of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from solver.bounds.bound_over_time import BoundOverTime
from solver.step.whole_step_bound import WholeStepBound


class LeastBound(BoundOverTime):
    """Lower bound on the GPU-seconds of a whole step that has one of several actor sizes and layouts.

    Args:
        bounds: one per way, one at least, of the same responses.

    Example:
        >>> import solver
        >>> from solver.step.learner_charges import LearnerCharges
        >>> from solver.step.whole_step_bound import whole_step_bound
        >>> from solver.step.work import PhaseWork
        >>> from solver.step.least_bound import LeastBound
        >>> latency = solver.LatencyModel("mine", 1, base_s=5e-3, per_response_s=1e-3, max_batch=64)
        >>> problem = solver.PlanningProblem(solver.Workload([10], [0, 0], [100, 300]), solver.Cluster(1, 2, 1), latency)
        >>> generation, charges = solver.clairvoyant_bound(problem), LearnerCharges(loss_per_doubling=0.0)
        >>> works = [PhaseWork([1.0, 1.0], [learn_s] * 2, group=[0, 0], unlock="group") for learn_s in (1.5, 2.0)]
        >>> slow, fast = (whole_step_bound(generation, work, charges) for work in reversed(works))
        >>> LeastBound([slow, fast]).gpu_seconds(10.0) == fast.gpu_seconds(10.0)
        True
    """

    cost_name: ClassVar[str] = "gpu_seconds"

    def __init__(self, bounds: Sequence[WholeStepBound]) -> None:
        self.bounds = tuple(bounds)
        self.length, self.ready_s, self.unit = bounds[0].length, min(one.ready_s for one in bounds), bounds[0].unit

    def gpu_seconds(self, time_s: float) -> float:
        """Return a lower bound on the GPU-seconds of any step of at most ``time_s``; infinite if none is that short.

        Raises:
            PlanningError: ``time_s`` is no number.
        """
        return min(one.gpu_seconds(time_s) for one in self.bounds)

    def cost(self, time_s: float) -> float:
        """Return ``gpu_seconds``."""
        return self.gpu_seconds(time_s)
