"""Makes a ``StepPlan`` with divided calls, and times its calls again in the steps that an executor runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from solver.layouts.assemble import FIRST_STEPS, step_plan
from solver.layouts.lever_space import LeverSpace
from solver.layouts.options import CallOptions, FloatArray, IntArray
from solver.layouts.parts_schedule import PartsSchedule
from solver.layouts.plan import StepPlan


def divided_plan(space: LeverSpace, plan: IntArray, divided: frozenset[int]) -> StepPlan:
    """Return the plan as users read it, with status ``stopped`` and no bound.

    Args:
        plan: (K,) option of every call. divided: calls that run in parts.
    """
    options = space.options
    times = space.schedule(plan, divided).steady()
    shown = times.start_s.shape[2] - 2  # as no step follows the last
    starts, ends = np.transpose([[of[shown] for of in times.of_task(task)] for task in range(options.tasks)])
    zero_s = float(starts[: len(plan)].min())
    whole = step_plan(options, plan, status="stopped")
    number = {call.name: at for at, call in enumerate(options.graph.calls)}
    calls = []
    for call in whole.calls:
        at = number[call.name]
        began = {"start_s": float(starts[at]) - zero_s}
        if call.reallocate_s:
            began["reallocate_start_s"] = float(starts[len(plan) + options.reallocated.index(at)]) - zero_s
        made = replace(call, **began)  # type: ignore[arg-type]
        if at in space.slacks:
            planned = space.planned(at, int(plan[at]))
            made = replace(made, generation=planned.plan, release_s=planned.release_s)
        if at in divided:
            made = replace(made, seconds=float(ends[at] - starts[at]), parts=space.parts(at, int(plan[at])))
        calls.append(made)
    return replace(
        whole,
        calls=tuple(sorted(calls, key=lambda one: one.start_s)),
        period_s=float(times.period_s[0]),
        lower_bound_s=0.0,
        first_steps_s=float(times.step_end_s[0, FIRST_STEPS - 1]),
        peak_bytes=tuple(space.peak_bytes(plan, divided).tolist()),
        order="longest path",
    )


def parts_of_plan(options: CallOptions, plan: StepPlan, complete_s: Mapping[str, FloatArray]) -> PartsSchedule:
    """Return the schedule of the only plan of ``options``, whose calls are divided as the plan says.

    Args:
        options: of ``plan_times.options_of``. complete_s: by generate call's name, (G,) when the responses of each prompt are
            complete, from the start of the call.
    """
    number = {call.name: at for at, call in enumerate(plan.dataflow.calls)}
    divided = {number[call.name]: call.parts for call in plan.calls if call.parts is not None}
    complete = {number[name]: of for name, of in complete_s.items()}
    return PartsSchedule(options, np.zeros(len(number), np.int64), divided, complete)
