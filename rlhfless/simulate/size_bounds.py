"""Lower bound on the GPU-seconds of a step whose actors all have the same size, whichever of several it is."""

from __future__ import annotations

from dataclasses import dataclass

from rlhfless.simulate.steps import LoggedStep, SimulationConfig
from solver.bounds.clairvoyant import ClairvoyantBound
from solver.model.plan import Plan


@dataclass(frozen=True, eq=False)
class BoundOfSizes:
    """The smallest of the lower bounds for actors of each size. Schedules that mix sizes may be below it."""

    bounds: tuple[ClairvoyantBound, ...]

    def gpu_seconds(self, time_s: float) -> float:
        """Return the least GPU-seconds of a generation of ``time_s`` with actors of any one size."""
        return self.with_method(time_s)[0]

    def with_method(self, time_s: float) -> tuple[float, str]:
        """Return the same, and which bound it is."""
        return min(bound.with_method(time_s) for bound in self.bounds)


def bound_of_sizes(setting: SimulationConfig, logged: LoggedStep) -> ClairvoyantBound | BoundOfSizes:
    """Return the bound on generating a step with actors of any one of the setting's sizes."""
    own, *others = (logged.bound(one) for one in setting.each_size)
    return BoundOfSizes((own, *others)) if others else own


def bound_of_plan(setting: SimulationConfig, logged: LoggedStep, plan: Plan) -> ClairvoyantBound | BoundOfSizes | None:
    """Return ``bound_of_sizes``; None where the plan mixes sizes."""
    return None if len({len(actor.gpu_ids) for actor in plan.actors}) > 1 else bound_of_sizes(setting, logged)
