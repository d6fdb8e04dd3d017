"""A pipeline plan as it was executed: measured times beside the planned ones, in the plan's unit of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from solver.model.errors import PlanningError, as_given, is_number
from solver.pipeline.plan import PipelinePlan
from solver.pipeline.problem import PipelineProblem

if TYPE_CHECKING:
    import pandas as pd

OPERATION = ["operation", "chain", "stage", "micro_batch", "device"]


@dataclass(frozen=True, eq=False)
class ExecutedPlan:
    """The measured times of a plan's operations; has what ``rlhfless.plots.plot_pipeline`` draws of a plan.

    Args:
        plan: what was executed.
        passes: one row per operation: ``operation, chain, stage, micro_batch, device`` as in ``PipelinePlan.table``, and
            ``start``, ``end`` in seconds.
        unit_s: seconds of one unit of the plan's time.

    Raises:
        PlanningError: the operations are others than the plan's, or ``unit_s`` is not above 0.
    """

    plan: PipelinePlan
    passes: pd.DataFrame
    unit_s: float

    def __post_init__(self) -> None:
        if not is_number(self.unit_s, 0) or self.unit_s == 0:
            raise PlanningError(f"unit_s is {as_given(self.unit_s)}; a number above 0 is needed")
        ours, theirs = (set(rows[OPERATION].itertuples(index=False, name=None)) for rows in (self.passes, self.plan.table()))
        if ours != theirs or len(self.passes) != len(theirs):
            raise PlanningError(
                f"passes has {len(self.passes)} rows, but the plan has {len(theirs)} operations; each is needed once"
            )

    @property
    def problem(self) -> PipelineProblem:
        """What the plan schedules."""
        return self.plan.problem

    @property
    def latency(self) -> float:
        """When the last operation ended, in the plan's time."""
        return float(self.passes["end"].max()) / self.unit_s

    @property
    def latency_bound(self) -> float:
        """The plan's."""
        return self.plan.latency_bound

    @property
    def peak_memory(self) -> float:
        """The plan's, as devices kept its order."""
        return self.plan.peak_memory

    @property
    def memory_bound(self) -> float:
        """The plan's."""
        return self.plan.memory_bound

    def table(self) -> pd.DataFrame:
        """Return ``PipelinePlan.table`` with the measured ``start`` and ``end``, in the plan's time."""
        measured = self.passes[[*OPERATION, "start", "end"]].assign(
            start=self.passes["start"] / self.unit_s, end=self.passes["end"] / self.unit_s
        )
        merged = measured.merge(self.plan.table()[[*OPERATION, "memory"]], on=OPERATION)
        return merged.sort_values(["start", "device"], kind="stable", ignore_index=True)
