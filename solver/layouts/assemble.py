"""Makes a ``StepPlan`` of one option per call: times of a step in the steady state, bytes, and what was proven elsewhere.

Every plan of a step is judged here, whoever chose its layouts: by the times of ``schedule.py`` and the bytes of ``options.py``.
"""

from __future__ import annotations

from typing import Any

from solver.layouts.options import CallMemory, CallOptions, IntArray
from solver.layouts.plan import PlannedCall, StepPlan
from solver.layouts.schedule import STEPS, Order, periods_s, step_times

FIRST_STEPS = 5  # whose seconds together ReaL reports
SHOWN_STEP = STEPS - 2  # the last one but one, as no step follows the last


def step_plan(
    options: CallOptions,
    plan: IntArray,
    *,
    status: str,
    order: Order = "longest path",
    lower_bound_s: float = 0.0,
    history: tuple[tuple[int, float], ...] = (),
) -> StepPlan:
    """Return the plan as users read it.

    Args:
        plan: (K,) option of every call. status, history: see ``StepPlan``. order: in which ready calls start.
        lower_bound_s: no plan has a shorter period.
    """
    times = step_times(options, plan[None], order)
    period_s = float(periods_s(options, plan[None], order)[0])
    start_s = times.start_s[0, :, SHOWN_STEP]
    zero_s = float(start_s[: len(options.graph.calls)].min())
    planned = [_planned_call(options, plan, call, start_s - zero_s) for call in range(len(options.graph.calls))]
    return StepPlan(
        options.gpus, tuple(sorted(planned, key=lambda one: one.start_s)), period_s,
        min(lower_bound_s, period_s), float(times.step_end_s[0, FIRST_STEPS - 1]), status,
        tuple(options.peak_bytes(plan[None])[0].tolist()), options.graph, options.gpus_per_node, history, order,
    )  # fmt: skip


def _planned_call(options: CallOptions, plan: IntArray, at: int, start_s: Any) -> PlannedCall:
    """Return call number ``at``, with its reallocation, by (T,) starts of the step's tasks."""
    call, train = options.graph.calls[at], options.graph.trained_by[at]
    layout = options.layouts[at][plan[at]]
    kept, working, copy = CallMemory(*options.memory[at][plan[at]])
    moved: dict[str, Any] = {}
    if at in options.reallocated and train is not None:
        source = options.layouts[train][plan[train]]
        seconds, sent = options.costs.reallocate(call.role, source, layout)
        copy = 0.0 if source == layout else copy
        if seconds:
            began_s = float(start_s[len(options.graph.calls) + options.reallocated.index(at)])
            moved = {"reallocate_start_s": began_s, "reallocate_s": seconds, "reallocate_bytes": sent}
    took = float(options.seconds[at][plan[at]])
    return PlannedCall(call.name, call.role, call.kind, layout, float(start_s[at]), took, kept, working + copy, **moved)
