"""Defines ``StepPlan``: a layout for every model call of a step, when calls run in the steady state, and the lower bound."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from solver.layouts.graph import GENERATE, TRAIN, Graph
from solver.layouts.layout import Layout
from solver.model.errors import shown
from solver.model.html_tables import rows_table
from solver.model.objective import NonGenerationPhases
from solver.model.plan import Plan
from solver.model.plurals import counted

if TYPE_CHECKING:
    import pandas as pd

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
        history: (evaluated plans, period) of every improvement.
        order: of ready calls: ``longest path``, or ``fifo`` (as they became ready).
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

    @property
    def algorithm(self) -> str:
        """Name of the algorithm."""
        return self.dataflow.name

    @property
    def gap(self) -> float:
        """Largest share of the time per step that a better plan could save."""
        return 1 - self.lower_bound_s / self.period_s if self.period_s else 0.0

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
        return "\n".join([self._summary(), *table])

    def _repr_html_(self) -> str:
        return rows_table(self._summary(), HEAD, self._table())

    def _summary(self) -> str:
        head = f"Step plan of {self.algorithm} on {counted(self.gpus, 'GPU')}: {shown(self.period_s)} s per step"
        if not self.lower_bound_s:
            return f"{head} ({self.status}, no bound)"
        proof = f"at most {self.gap:.1%} above the shortest" if self.gap > 1e-9 else "proven shortest"
        return f"{head}, {proof} ({self.status}, bound {shown(self.lower_bound_s)} s)"

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
