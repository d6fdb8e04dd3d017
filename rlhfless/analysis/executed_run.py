"""Times the assignment of responses of an executed run by a latency profile, to compare the profile with what was measured.

Input is a trace with allocations and spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from rlhfless.scheduling import PlanningOptions
from rlhfless.simulate import SimulationConfig, execute_steps, logged_steps
from rlhfless.trace import Trace
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.timing.build_plan import assemble

CHANGES = ("cut", "move", "lost")  # events after which a response did not stay where it was assigned


@dataclass(frozen=True)
class AsExecuted:
    """A policy that assigns every response, from the start, to the actor that generated it in the executed run.

    Attributes:
        actor_of: (R,) names of actors, in the workload's order.
    """

    actor_of: tuple[str, ...]
    name: str = "as executed"
    clairvoyant: bool = False

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        """See ``SchedulingPolicy``."""
        names, owner = np.unique(np.array(self.actor_of), return_inverse=True)
        groups = [np.flatnonzero(owner == i) for i in range(len(names))]
        return assemble(self.name, groups, problem)


def working_s_by_profile(trace: Trace, setting: SimulationConfig, steps: Sequence[int]) -> pd.Series:
    """Return by step how long an actor works on its responses by the profile, the longest one: ``working_s`` of the trace.

    Args:
        steps: the steps that are used. Steps in which responses moved or an actor was lost are ignored, as the trace does not
            say what each actor decoded of a response. So are steps with more actors than fit, and those without work.
    """
    changed = set(trace.events.loc[trace.events["name"].isin(CHANGES), "step"])
    actors = trace.rollouts.get("actor")
    with_actors = set() if actors is None else set(trace.rollouts["step"]) - set(trace.rollouts.loc[actors.isna(), "step"])
    work_only = replace(setting, latency=replace(setting.latency, start_s=0.0, sync_s=0.0))
    usable = [step for step in steps if step in with_actors and step not in changed]
    simulated = {}
    for logged in logged_steps(trace.rollouts, max_response_tokens=setting.max_response_tokens, steps=usable):
        names = tuple(logged.rows["actor"].astype(str))
        if len(set(names)) <= setting.cluster.max_actors:
            ((record, _),) = next(iter(execute_steps([logged], work_only, [AsExecuted(names)]).values()))
            simulated[logged.step] = record.end_s - record.start_s
    return pd.Series({step: time_s for step, time_s in simulated.items() if time_s > 0}, dtype=float)


def measured_start_and_sync(trace: Trace) -> tuple[float | None, float | None]:
    """Return the medians of the trace's spans of starting and of syncing an actor; None where it has none."""
    return _median_s(trace, "start"), _median_s(trace, "sync")


def _median_s(trace: Trace, phase: str) -> float | None:
    rows = trace.spans[trace.spans["phase"] == phase]
    return float((rows["end_s"] - rows["start_s"]).median()) if len(rows) else None
