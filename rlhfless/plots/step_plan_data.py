"""What the plots of step plans draw: bars of calls and reallocations over two periods, bytes per GPU, sums and bounds.

Knows step plans; nothing of figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from rlhfless.analysis.step_plans import compare_step_plans

if TYPE_CHECKING:
    from solver.layouts import Mesh, PlannedCall, StepPlan

    Plans = StepPlan | Mapping[str, StepPlan]

PERIODS = 2  # that are drawn
MOVES = "reallocation"
NONE = "There is no step plan to show."
BAR_COLUMNS = [
    "plan", "call", "role", "kind", "first_gpu", "gpus", "dp", "tp", "pp", "start_s", "end_s", "seconds", "bytes", "largest",
]  # fmt: skip


class StepPlanData(NamedTuple):
    """Data of ``plot_step_plan``.

    Attributes:
        bars: one row per rectangle: ``plan, call, role, kind, first_gpu, gpus, dp, tp, pp, start_s, end_s, seconds, bytes,
            largest``. ``kind`` is ``generate``, ``inference``, ``train`` or ``reallocation``. ``start_s`` and ``end_s`` are cut
            off at the two periods that are drawn, ``seconds`` are those of the whole call. ``bytes`` are per GPU while a call
            runs, and in all for a reallocation. A call whose GPUs are free at different times has several rectangles side by
            side; one of them is the ``largest``.
        memory: one row per GPU of every plan: ``plan, gpu, peak_bytes``.
        plans: one row per plan: ``plan, algorithm, gpus, gpus_per_node, period_s, bound_s, status``. ``bound_s`` is the
            largest proven one of all plans with this graph and number of GPUs, NaN where none is proven.
        missing: why there is nothing to show, or the empty text.
    """

    bars: pd.DataFrame
    memory: pd.DataFrame
    plans: pd.DataFrame
    missing: str = ""


def data_of_plans(plans: Plans) -> StepPlanData:
    """Return the data of ``plot_step_plan``."""
    labelled = by_label(plans)
    bars = [(label, *bar) for label, plan in labelled.items() for bar in _bars(plan)]
    memory = [(label, gpu, peak) for label, plan in labelled.items() for gpu, peak in enumerate(plan.peak_bytes)]
    bounds = compare_step_plans(labelled)["bound_s"]
    rows = [
        (label, plan.algorithm, plan.gpus, plan.gpus_per_node, plan.period_s, bound_s, plan.status)
        for (label, plan), bound_s in zip(labelled.items(), bounds, strict=True)
    ]
    return StepPlanData(
        pd.DataFrame(bars, columns=BAR_COLUMNS),
        pd.DataFrame(memory, columns=["plan", "gpu", "peak_bytes"]),
        pd.DataFrame(rows, columns=["plan", "algorithm", "gpus", "gpus_per_node", "period_s", "bound_s", "status"]),
        "" if rows else NONE,
    )


def by_label(plans: Plans) -> Mapping[str, StepPlan]:
    """Return plans by label; a plan alone is ``this plan``."""
    return {str(label): plan for label, plan in plans.items()} if isinstance(plans, Mapping) else {"this plan": plans}


def _bars(plan: StepPlan) -> Iterator[tuple[object, ...]]:
    """Yield the rectangles of a plan, as ``BAR_COLUMNS`` says, without the plan's name."""
    trained = {call.role: call.layout.mesh for call in plan.calls if call.kind == "train"}
    for call in plan.calls:
        mesh, strategy = call.layout.mesh, call.layout.strategy
        cut = (strategy.dp, strategy.tp, strategy.pp)
        needed = call.kept_bytes + call.working_bytes
        held = _held(call)
        largest = max(held, key=lambda one: one[1] * one[2], default=None)
        for part in held:
            first, gpus, held_s = part
            for start_s, end_s in _repeated(call.start_s, held_s, plan.period_s):
                where = (call.name, call.role, call.kind, first, gpus, *cut)
                yield *where, start_s, end_s, call.seconds, needed, part == largest
        for start_s, end_s in _repeated(call.reallocate_start_s, call.reallocate_s, plan.period_s):
            for first, gpus in _spans(mesh, trained.get(call.role, mesh)):
                sent = (call.reallocate_s, call.reallocate_bytes)
                yield call.name, call.role, MOVES, first, gpus, *cut, start_s, end_s, *sent, True


def _held(call: PlannedCall) -> list[tuple[int, int, float]]:
    """Return (first GPU, number of GPUs, seconds) of neighbouring GPUs that a call holds for the same time."""
    mesh = call.layout.mesh
    seconds = call.release_s or (call.seconds,) * mesh.gpus
    held, first = [], mesh.first
    for held_s, same in groupby(seconds):
        gpus = len(list(same))
        held.append((first, gpus, held_s))
        first += gpus
    return held


def _repeated(start_s: float, seconds: float, period_s: float) -> Iterator[tuple[float, float]]:
    """Yield (start, end) of everything that one task of every step does within the periods that are drawn."""
    drawn_s = PERIODS * period_s
    if not (seconds > 0 and drawn_s > 0):
        return
    first = math.floor(-(start_s + seconds) / period_s)
    for step in range(first, first + math.ceil(PERIODS + seconds / period_s) + 2):
        begins, ends = max(0.0, start_s + step * period_s), min(drawn_s, start_s + step * period_s + seconds)
        if ends - begins > 1e-9 * drawn_s:
            yield begins, ends


def _spans(one: Mesh, other: Mesh) -> list[tuple[int, int]]:
    """Return (first GPU, number of GPUs) of two meshes together: one row of GPUs where they touch or overlap, else two."""
    if one.first <= other.last and other.first <= one.last:
        first = min(one.first, other.first)
        return [(first, max(one.last, other.last) - first)]
    return [(one.first, one.gpus), (other.first, other.gpus)]
