"""Planning time of a step, and the part of it that delays generation.

A step can be planned as soon as the generation of the step before has ended: predictions are made from lengths known by
then. So planning overlaps preparation and learning of that step, and only what is left of it delays generation.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlanningTime:
    """Seconds of one step's planning, measured on this machine.

    Attributes:
        planning_s: of predicting and planning.
        planning_delay_s: of these, by how many generation starts later.
    """

    planning_s: float
    planning_delay_s: float

    @classmethod
    def overlapping(cls, planning_s: float, step_before_s: float) -> PlanningTime:
        """Return the time of planning that overlaps the step before.

        Args:
            step_before_s: seconds that the step before prepares and learns after its generation; 0 for the first step.
        """
        return cls(planning_s, max(0.0, planning_s - step_before_s))
