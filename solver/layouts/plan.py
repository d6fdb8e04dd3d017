"""Defines ``StepPlan``: a layout for every model call of a step, when calls run in the steady state, and the lower bound.

Every plan of a step is judged here, whoever chose its layouts: ``step_plan`` makes it of one option per call, by the times of
``times.py`` and the bytes of ``costs.py``. ``plan_times`` times it again in the steps that an executor runs, also with other
seconds of generation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from solver.layouts.costs import CallMemory, CallOptions, FloatArray, IntArray, ReleasedEarly
from solver.layouts.graph import GENERATE, TRAIN, Call, Graph
from solver.layouts.layout import Layout
from solver.layouts.times import MORE_STEPS, STEPS, Order, UnrolledTimes, periods_s, step_times
from solver.model.errors import shown
from solver.model.html_tables import rows_table
from solver.model.objective import NonGenerationPhases, Objective
from solver.model.plan import Plan
from solver.model.plurals import counted

if TYPE_CHECKING:
    import pandas as pd

FIRST_STEPS = 5  # whose seconds together ReaL reports
TIME_ONLY = Objective(time_weight=1.0)
SHOWN_STEP = STEPS - 2  # the last one but one, as no step follows the last
HEAD = ("call", "role", "kind", "GPUs", "dp x tp x pp", "start (s)", "seconds", "reallocation (s)")
TEXTS = 5  # columns of text, before those of numbers


@dataclass(frozen=True)
class PlannedCall:
    """A model call of a step plan.

    Attributes:
        name, role, kind: see ``Call``. layout: where it runs.
        start_s: start in the steady state, in seconds from the first call of the step.
        seconds: its duration.
        kept_bytes, working_bytes: bytes per GPU between calls, and while it runs (its own copy of the weights included).
        reallocate_start_s, reallocate_s, reallocate_bytes: when weights start to be sent to it from the layout in which its
            role is trained, the seconds of that, and the bytes; 0 where nothing is sent. The start may be before the step's.
        generation: the generation plan of a generate call, with GPU ids counted from the first GPU of the mesh; None for other
            calls.
        release_s: seconds from its start until each GPU of the mesh is released; empty: all are held to its end.
    """

    name: str
    role: str
    kind: str
    layout: Layout
    start_s: float
    seconds: float
    kept_bytes: float
    working_bytes: float
    reallocate_start_s: float = 0.0
    reallocate_s: float = 0.0
    reallocate_bytes: float = 0.0
    generation: Plan | None = field(default=None, repr=False)
    release_s: tuple[float, ...] = ()

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds that it holds its GPUs for."""
        return sum(self.release_s) if self.release_s else self.seconds * self.layout.mesh.gpus

    @property
    def end_s(self) -> float:
        """When it ends."""
        return self.start_s + self.seconds


@dataclass(frozen=True)
class StepPlan:
    """A plan of whole training steps.

    Attributes:
        gpus, gpus_per_node: of the cluster. calls: in order of their start.
        dataflow: the calls in the order of the algorithm, and what each waits for.
        period_s: seconds per step when steps follow each other. lower_bound_s: no plan has a shorter period.
        first_steps_s: seconds of the first five steps together, the number that ReaL reports.
        status: ``optimal`` (the gap that was asked for is proven), ``gap`` (all plans were searched, and their bounds leave
            more) or ``stopped`` (by the counted work). Plans of others are ``given``, or ``infeasible`` where a GPU has too few
            bytes.
        peak_bytes: of every GPU.
        history: (evaluated plans, period) of every improvement; empty where cost counts, too.
        order: of ready calls: ``longest path``, or ``fifo`` (as they became ready).
        objective: what was minimised. usd_per_gpu_hour: of the cluster.
        shortest: the plan of the shortest period that was found, to which values are relative; None where only time counts.
        least_value: no plan has a lower value; read where cost counts, too.
    """

    gpus: int
    calls: tuple[PlannedCall, ...]
    period_s: float
    lower_bound_s: float
    first_steps_s: float
    status: str
    peak_bytes: tuple[float, ...]
    dataflow: Graph
    gpus_per_node: int
    history: tuple[tuple[int, float], ...] = ()
    order: str = "longest path"
    objective: Objective = TIME_ONLY
    usd_per_gpu_hour: float = 0.0
    shortest: StepPlan | None = field(default=None, repr=False)
    least_value: float = 0.0

    @property
    def algorithm(self) -> str:
        """Name of the algorithm."""
        return self.dataflow.name

    @property
    def value(self) -> float:
        """What was minimised: seconds per step; ``T^w C^(1-w)`` relative to ``shortest``; cost under a deadline."""
        if self.shortest is None or not self.period_s:
            return self.period_s
        return self.objective.value(self.period_s, self.cost, (self.shortest.period_s, self.shortest.cost))

    @property
    def lower_bound(self) -> float:
        """No plan has a lower value."""
        return self.lower_bound_s if self.shortest is None else min(self.least_value, self.value)

    @property
    def gap(self) -> float:
        """Largest share of the value that a better plan could save: of the time per step where only time counts."""
        return 1 - self.lower_bound / self.value if self.value else 0.0

    @property
    def cost_usd(self) -> float:
        """Dollars per step for the GPU-seconds of calls and reallocations."""
        return self.gpu_seconds * self.usd_per_gpu_hour / 3600.0

    @property
    def cost(self) -> float:
        """Cost of a step in the objective's unit."""
        return self.cost_usd if self.objective.cost == "usd" else self.gpu_seconds

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds of calls and reallocations per step; those of waiting GPUs are not in it."""
        trained = {call.role: call.layout for call in self.calls if call.kind == "train"}
        moved = sum(call.reallocate_s * _together(call.layout, trained[call.role]) for call in self.calls if call.reallocate_s)
        return sum(call.gpu_seconds for call in self.calls) + moved

    @property
    def generation(self) -> Plan | None:
        """The generation plan of the first generate call; None where its seconds come from the costs."""
        return next((call.generation for call in self.calls if call.kind == GENERATE), None)

    def phases(self) -> NonGenerationPhases:
        """Return the step outside generation, as planning generation takes it.

        Its seconds are those from the end of generation to the next generation's start: preparation until the training of the
        model that generates starts, then learning. The learner's GPUs are those that no generate call has. Without a generate
        call it is the whole period, and all GPUs that a call has.
        """
        generate = [call for call in self.calls if call.kind == GENERATE]
        starts = [call.start_s for call in generate] or [min(call.start_s for call in self.calls)]
        end_s = max((call.end_s for call in generate), default=starts[0])
        rest_s = max(0.0, min(starts) + self.period_s - end_s)
        role = generate[0].role if generate else None
        trained = [call.start_s for call in self.calls if call.kind == TRAIN and role in (None, call.role)]
        learned_s = min((start_s - end_s for start_s in trained if start_s >= end_s), default=rest_s)
        prepare_s = min(rest_s, learned_s)
        own = _gpus(call.layout for call in self.calls) - _gpus(call.layout for call in generate)
        return NonGenerationPhases(prepare_s, rest_s - prepare_s, len(own))

    def objective_numbers(self) -> dict[str, float | str | None]:
        """Return the objective, what a step takes, and what is proven, as numbers; for plans whose cost counts, too."""
        assert self.shortest is not None, "only time counts"
        names = ("deadline_s", "budget_gpu_s", "budget_usd")
        asked = {"time_weight": None if self.objective.limited else self.objective.time_weight}
        asked |= {name: getattr(self.objective, name) for name in names}
        took = {name: getattr(self, name) for name in ("period_s", "gpu_seconds", "cost_usd")}
        proven = {name: getattr(self, name) for name in ("value", "lower_bound", "gap", "status")}
        least = {"shortest_period_s": self.shortest.period_s, "shortest_gpu_seconds": self.shortest.gpu_seconds}
        return {**asked, "cost": self.objective.cost, **took, **proven, **least}

    def to_frame(self) -> pd.DataFrame:
        """Return one row per call, in order of start.

        Returns:
            Columns ``call, role, kind, first_gpu, gpus, dp, tp, pp, start_s, seconds, kept_bytes, working_bytes,
            reallocate_start_s, reallocate_s, reallocate_bytes``.
        """
        import pandas as pd

        return pd.DataFrame([self._row(call) for call in self.calls])

    def to_json(self) -> str:
        """Return the plan as JSON: its numbers, and ``calls`` with the rows of ``to_frame``."""
        numbers = {
            name: getattr(self, name)
            for name in (
                "algorithm",
                "gpus",
                "period_s",
                "lower_bound_s",
                "gap",
                "first_steps_s",
                "status",
                "order",
                "gpu_seconds",
            )
        }
        calls = {"calls": [self._row(call) for call in self.calls]}
        return json.dumps({**numbers, "peak_bytes": self.peak_bytes, **calls}, allow_nan=False)

    def _row(self, call: PlannedCall) -> dict[str, object]:
        mesh, strategy = call.layout.mesh, call.layout.strategy
        where = {"first_gpu": mesh.first, "gpus": mesh.gpus, "dp": strategy.dp, "tp": strategy.tp, "pp": strategy.pp}
        took = {"start_s": call.start_s, "seconds": call.seconds}
        needs = {"kept_bytes": call.kept_bytes, "working_bytes": call.working_bytes}
        moved = {name: getattr(call, name) for name in ("reallocate_start_s", "reallocate_s", "reallocate_bytes")}
        return {"call": call.name, "role": call.role, "kind": call.kind, **where, **took, **needs, **moved}

    def __repr__(self) -> str:
        rows = [HEAD, *self._table()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
        lines = ["  ".join(map(str.ljust, row[:TEXTS], widths)) for row in rows]
        numbers = ["  ".join(map(str.rjust, row[TEXTS:], widths[TEXTS:])) for row in rows]
        table = (f"{text}  {number}" for text, number in zip(lines, numbers, strict=True))
        return "\n".join([*self._value_line(), self._period_line(), *table])

    def _repr_html_(self) -> str:
        above = "".join(f"<p>{line}</p>" for line in self._value_line())
        return above + rows_table(self._period_line(), HEAD, self._table())

    def _value_line(self) -> list[str]:
        """Return the line on what was minimised, if that is more than time."""
        if self.shortest is None:
            return []
        objective, unit = self.objective, self.objective.cost_unit
        if objective.deadline_s is not None:
            aim = f"least {unit} within {shown(objective.deadline_s)} s"
        elif objective.budget is not None:
            aim = f"least time within {shown(objective.budget)} {unit}"
        else:
            aim = f"least T^{objective.time_weight:g} C^{1 - objective.time_weight:.3g} of period and {unit}"
        price = f" ({shown(self.cost_usd)} USD)" if self.usd_per_gpu_hour else ""
        took = f"{shown(self.period_s)} s and {shown(self.gpu_seconds)} GPU-seconds{price} per step"
        beside = f"the shortest plan takes {shown(self.shortest.period_s)} s and {shown(self.shortest.gpu_seconds)} GPU-seconds"
        proof = f"at most {self.gap:.1%} of it to save ({self.status}, bound {shown(self.lower_bound)})"
        return [f"Plan for {aim}: {took}; {beside}; value {shown(self.value)}, {proof}"]

    def _period_line(self) -> str:
        head = f"Step plan of {self.algorithm} on {counted(self.gpus, 'GPU')}: {shown(self.period_s)} s per step"
        status = f"{self.status}, " if self.shortest is None else ""
        if not self.lower_bound_s:
            return f"{head} ({status}no bound)"
        above = 1 - self.lower_bound_s / self.period_s
        proof = f"at most {above:.1%} above the shortest" if above > 1e-9 else "proven shortest"
        return f"{head}, {proof} ({status}bound {shown(self.lower_bound_s)} s)"

    def _table(self) -> list[tuple[str, ...]]:
        return [
            (
                call.name, call.role, call.kind, f"{call.layout.mesh.first} to {call.layout.mesh.last - 1}",
                str(call.layout.strategy), shown(call.start_s), shown(call.seconds), shown(call.reallocate_s),
            )
            for call in self.calls
        ]  # fmt: skip


def _gpus(layouts: Iterable[Layout]) -> set[int]:
    return {gpu for layout in layouts for gpu in range(layout.mesh.first, layout.mesh.last)}


def _together(one: Layout, other: Layout) -> int:
    """Return the number of GPUs that at least one of two layouts has."""
    common = max(0, min(one.mesh.last, other.mesh.last) - max(one.mesh.first, other.mesh.first))
    return one.mesh.gpus + other.mesh.gpus - common


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
    start_s = start_s - start_s[: len(options.graph.calls)].min()
    calls = [_planned_call(options, plan, call, start_s) for call in range(len(options.graph.calls))]
    return StepPlan(
        gpus=options.gpus,
        gpus_per_node=options.gpus_per_node,
        dataflow=options.graph,
        calls=tuple(sorted(calls, key=lambda call: call.start_s)),
        period_s=period_s,
        lower_bound_s=min(lower_bound_s, period_s),
        first_steps_s=float(times.step_end_s[0, FIRST_STEPS - 1]),
        status=status,
        peak_bytes=tuple(options.peak_bytes(plan[None])[0].tolist()),
        history=history,
        order=order,
    )


def _planned_call(options: CallOptions, plan: IntArray, at: int, start_s: FloatArray) -> PlannedCall:
    """Return call number ``at``, with its reallocation, by (T,) starts of the step's tasks."""
    call, layout = options.graph.calls[at], options.layouts[at][plan[at]]
    kept, working, copy = CallMemory(*options.memory[at][plan[at]])
    moved: dict[str, Any] = {}
    if at in options.reallocated:
        train = options.graph.training_of(at)
        source = options.layouts[train][plan[train]]
        seconds, sent = options.costs.reallocate(call.role, source, layout)
        copy = 0.0 if source == layout else copy
        if seconds:
            began_s = float(start_s[len(options.graph.calls) + options.reallocated.index(at)])
            moved = {"reallocate_start_s": began_s, "reallocate_s": seconds, "reallocate_bytes": sent}
    took = float(options.seconds[at][plan[at]])
    return PlannedCall(call.name, call.role, call.kind, layout, float(start_s[at]), took, kept, working + copy, **moved)


class GeneratedTimes(NamedTuple):
    """What a generate call took: its seconds, and (n,) seconds from its start until each GPU of its mesh was released."""

    seconds: float
    release_s: tuple[float, ...]


@dataclass(frozen=True)
class _PlannedCosts:
    """What the calls of a plan take, in their own layouts; see ``CallCosts``."""

    calls: Mapping[str, PlannedCall]

    def seconds(self, call: Call, layout: Layout) -> float:
        return self.calls[call.name].seconds

    def memory(self, call: Call, layout: Layout) -> CallMemory:
        return CallMemory(self.calls[call.name].kept_bytes, self.calls[call.name].working_bytes)

    def reallocate(self, role: str, source: Layout, destination: Layout) -> tuple[float, float]:
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
    layouts, seconds, memory, released = [], [], [], {}
    for at, call in enumerate(plan.dataflow.calls):
        planned = calls[call.name]
        took = (generated or {}).get(call.name, GeneratedTimes(planned.seconds, planned.release_s))
        layouts.append((planned.layout,))
        seconds.append(np.array([took.seconds]))
        memory.append(np.array([costs.memory(call, planned.layout)]))
        if took.release_s:
            release_s = np.zeros((1, plan.gpus))
            release_s[0, planned.layout.mesh.first : planned.layout.mesh.last] = took.release_s
            released[at] = ReleasedEarly(release_s, seconds[-1], release_s.sum(axis=1))
    return CallOptions(
        plan.dataflow, plan.gpus, plan.gpus_per_node, tuple(layouts), tuple(seconds), tuple(memory), costs, released
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
