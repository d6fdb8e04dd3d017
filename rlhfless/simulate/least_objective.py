"""Lower bound on what a time weight minimises: the least ``T^w C^(1-w)`` of any schedule of a step.

The bound on GPU-seconds C falls with the time T, so the least product on its curve bounds every schedule, whatever time
it takes. Over several steps the products add up to a bound on that of the sums (Hölder).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlhfless.simulate.size_bounds import BoundOfSizes
from solver.bounds.clairvoyant import ClairvoyantBound
from solver.bounds.clairvoyant_drafted import DraftedClairvoyantBound
from solver.bounds.headroom import curve
from solver.model.objective import NonGenerationPhases, Objective
from solver.step.bound import WholeStepBound


@dataclass(frozen=True)
class RowBound:
    """Lower bound on the schedules of one step that are like a simulated one: with its drafts, and its sizes of actors.

    Attributes:
        bound: on GPU-seconds within a time, of generation or, as ``WholeStepBound``, of the whole step.
        phases: that generation does not include; none for a ``WholeStepBound``.
    """

    bound: ClairvoyantBound | BoundOfSizes | DraftedClairvoyantBound | WholeStepBound
    phases: NonGenerationPhases

    def least(self, time_weight: float) -> float:
        """Return a lower bound on ``T^w C^(1-w)`` of the step, in seconds and GPU-seconds."""
        if isinstance(self.bound, BoundOfSizes):
            return min(RowBound(bound, self.phases).least(time_weight) for bound in self.bound.bounds)
        found = curve(self.bound.shortest_s(), self.bound.gpu_seconds)
        # Between two times of the curve no schedule is below the earlier time with the later cost.
        least_gpu_s = np.append(found.gpu_s[1:], found.min_gpu_s)
        held_gpu_s = self.phases.learner_gpus * (found.time_s + self.phases.seconds)
        return float(Objective(time_weight).product(found.time_s + self.phases.seconds, least_gpu_s + held_gpu_s).min())
