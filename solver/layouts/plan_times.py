"""Times the calls of a ``StepPlan`` again: in the steps that an executor runs, also with other seconds of generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np

from solver.layouts.graph import Call
from solver.layouts.layout import Layout
from solver.layouts.options import CallMemory, CallOptions, FreedEarly
from solver.layouts.plan import PlannedCall, StepPlan
from solver.layouts.schedule import MORE_STEPS, STEPS, Order, UnrolledTimes, step_times


class GeneratedTimes(NamedTuple):
    """What a generate call took: its seconds, and (n,) seconds from its start until each GPU of its mesh was free."""

    seconds: float
    release_s: tuple[float, ...]


@dataclass(frozen=True)
class _PlannedCosts:
    """What the calls of a plan take, in their own layouts; see ``CallCosts``."""

    calls: Mapping[str, PlannedCall]

    def seconds(self, call: Call, layout: Layout) -> float:
        """Return the planned seconds."""
        return self.calls[call.name].seconds

    def memory(self, call: Call, layout: Layout) -> CallMemory:
        """Return the planned bytes."""
        return CallMemory(self.calls[call.name].kept_bytes, self.calls[call.name].working_bytes)

    def reallocate(self, role: str, source: Layout, destination: Layout) -> tuple[float, float]:
        """Return what the role's calls in this layout are planned to wait for."""
        own = (
            call for call in self.calls.values() if call.role == role and call.layout == destination and call.kind != "train"
        )
        return max(((call.reallocate_s, call.reallocate_bytes) for call in own), default=(0.0, 0.0))


def options_of(
    plan: StepPlan, generated: Mapping[str, GeneratedTimes] | None = None, *, reallocates: bool = True
) -> CallOptions:
    """Return options that are the plan's layouts alone.

    Args:
        generated: what generate calls took, by name; None takes the planned times.
        reallocates: False: weights are where they are needed, and nothing is sent.
    """
    calls = {call.name: call for call in plan.calls}
    costs = _PlannedCosts(calls if reallocates else {n: replace(one, reallocate_s=0.0) for n, one in calls.items()})
    layouts, seconds, memory, freed = [], [], [], {}
    for at, call in enumerate(plan.dataflow.calls):
        planned = calls[call.name]
        took = GeneratedTimes(planned.seconds, planned.release_s)
        took = took if generated is None else generated.get(call.name, took)
        layouts.append((planned.layout,))
        seconds.append(np.array([took.seconds]))
        memory.append(np.array([costs.memory(call, planned.layout)]))
        if took.release_s:
            release_s = np.zeros((1, plan.gpus))
            release_s[0, planned.layout.mesh.first : planned.layout.mesh.last] = took.release_s
            freed[at] = FreedEarly(release_s, seconds[-1], release_s.sum(axis=1))
    return CallOptions(
        plan.dataflow, plan.gpus, plan.gpus_per_node, tuple(layouts), tuple(seconds), tuple(memory), costs, freed
    )


def plan_times(options: CallOptions, plan: StepPlan, steps: int) -> UnrolledTimes:
    """Return when every task of the only plan of ``options`` runs, in so many steps and at least two that follow them.

    As in planning, more steps are unrolled where the schedule does not repeat.
    """
    times = _unrolled(options, plan, max(steps + 2, STEPS))
    return times if times.periodic.all() else _unrolled(options, plan, max(steps + 2, MORE_STEPS))


def one_step_times(options: CallOptions, plan: StepPlan) -> UnrolledTimes:
    """Return when every task runs in one step that no step follows."""
    return _unrolled(options, plan, 1)


def _unrolled(options: CallOptions, plan: StepPlan, steps: int) -> UnrolledTimes:
    return step_times(options, np.zeros((1, len(plan.dataflow.calls)), np.int64), cast(Order, plan.order), steps)
