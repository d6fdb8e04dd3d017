"""Records a run step by step, so that a process killed at any moment leaves a valid trace of its completed steps.

Knows when a step counts: after all its rows are on the disk, ``meta.json`` names it. Nothing of executors or clocks.
Every append replaces every file, which keeps the writer simple and costs a fraction of a second per 100,000 rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from rlhfless.errors import reason
from rlhfless.trace import storage
from rlhfless.trace.checks import as_frame, derive_epoch, refuse_overlaps, validate
from rlhfless.trace.errors import TraceError
from rlhfless.trace.io import Trace, complete_meta, load, new_folder, write_folder
from rlhfless.trace.schema import TABLES

Rows: TypeAlias = pd.DataFrame | Sequence[Mapping[str, Any]] | None


class TraceWriter:
    """Appends whole steps to a trace folder.

    Args:
        folder: where the trace goes; it must not hold a trace yet (``resume`` continues one).
        meta: seeds, cluster, profile, policy, clock, charging, device and whatever else the run should remember.
        overwrite: replace a trace that the folder holds.

    Raises:
        TraceError: the folder holds a trace already, or cannot be written.
    """

    def __init__(self, folder: str | Path, meta: Mapping[str, Any] | None = None, overwrite: bool = False) -> None:
        self.folder = new_folder(folder, overwrite)
        self.meta = complete_meta(dict(meta or {}), [])
        self._tables: dict[str, pa.Table] = {}
        self._plans: list[dict[str, Any]] = []
        write_folder(self.folder, {}, [], self.meta)

    @classmethod
    def resume(cls, folder: str | Path) -> TraceWriter:
        """A writer that continues after the last completed step of the folder's trace.

        Rows of a step that was being written when the process died are gone, and so are its temporary files.

        Raises:
            TraceError: the folder holds no trace, one of another schema version, or one with a wrong table.
        """
        writer = cls.__new__(cls)
        writer.folder = Path(folder)
        writer.meta, frames, writer._plans = load(writer.folder)
        storage.remove_leftovers(writer.folder)
        writer._tables = {}
        if writer.meta["steps"]:
            for table, frame in frames.items():
                rows = validate(table, frame, writer.folder / f"{table}.parquet")
                writer._tables[table] = storage.to_arrow(table, rows)
        return writer

    @property
    def steps(self) -> list[int]:
        """The completed steps, in order."""
        return list(self.meta["steps"])

    @property
    def next_step(self) -> int:
        """The step after the last completed one; 0 for a new trace."""
        return max(self.steps, default=-1) + 1

    @property
    def end_s(self) -> float:
        """When the last allocation ended: where the times of a resumed run continue."""
        ends = self._tables["allocations"]["end_s"].to_numpy() if self._tables else np.zeros(0)
        return float(ends.max(initial=0.0))

    @property
    def trace(self) -> Trace:
        """The completed steps so far.

        Raises:
            TraceError: there is none yet.
        """
        frames = {table: rows.to_pandas(ignore_metadata=True) for table, rows in self._tables.items()}
        if not frames:
            raise TraceError(f"{self.folder}: has no completed step yet; append one first")
        return Trace(**frames, plans=list(self._plans), meta=dict(self.meta), source=str(self.folder))

    def append_step(
        self,
        rollouts: Rows = None,
        allocations: Rows = None,
        spans: Rows = None,
        events: Rows = None,
        plan: Mapping[str, Any] | None = None,
    ) -> int:
        """Append one step: all its rows and its plan, of all runs of the trace. Either all of it counts or nothing.

        Args:
            rollouts: at least one response; without ``epoch`` it is derived from the steps appended before.
            allocations, spans, events: rows, or None for none.
            plan: the step's plan; ``step`` is added to it.

        Returns:
            The step.

        Raises:
            TraceError: a table is wrong, its rows are of several steps, or the step is complete already. The trace and
                the writer are as before.
        """
        given = {"rollouts": rollouts, "allocations": allocations, "spans": spans, "events": events}
        names = {table: f"{self.folder}: new {table}" for table in TABLES}
        frames = {table: validate(table, rows, names[table]) for table, rows in given.items()}
        step = self._one_step(frames)
        if plan is not None and plan.get("step", step) != step:
            raise TraceError(f"{self.folder}: the plan is of step {plan['step']}, the rows are of step {step}; one is needed")
        if rollouts is not None and "epoch" not in as_frame(rollouts).columns:
            frames["rollouts"]["epoch"] = self._epochs(frames["rollouts"])
        tables = {table: self._extended(table, frame, names[table]) for table, frame in frames.items()}
        refuse_overlaps(tables["allocations"].to_pandas(), str(self.folder / "allocations.parquet"))
        plans = self._plans if plan is None else [*self._plans, {**plan, "step": step}]
        meta = complete_meta(self.meta, sorted([*self.steps, step]))
        write_folder(self.folder, tables, plans, meta)
        self._tables, self._plans, self.meta = tables, plans, meta
        return step

    def _one_step(self, frames: dict[str, pd.DataFrame]) -> int:
        steps = sorted({int(step) for frame in frames.values() for step in frame["step"].unique()})
        if len(steps) != 1:
            raise TraceError(f"{self.folder}: the new rows are of the steps {steps}; append one step at a time")
        if steps[0] in self.steps:
            raise TraceError(f"{self.folder}: step {steps[0]} is complete already; the next step is {self.next_step}")
        return steps[0]

    def _epochs(self, rollouts: pd.DataFrame) -> np.ndarray:
        keys = ["run", "prompt_id", "step"]
        earlier = self._tables["rollouts"].select(keys).to_pandas() if self._tables else pd.DataFrame(columns=keys)
        both = pd.concat([earlier.astype({"step": np.int64}), rollouts[keys]], ignore_index=True)
        return np.asarray(derive_epoch(both))[len(earlier) :]

    def _extended(self, table: str, frame: pd.DataFrame, name: str) -> pa.Table:
        rows = storage.to_arrow(table, frame)
        if not self._tables:
            return rows
        try:
            return pa.concat_tables([self._tables[table], rows], promote_options="permissive")
        except pa.ArrowException as error:
            raise TraceError(
                f"{name}: a column has another type than in earlier steps ({reason(error)}); the same is needed"
            ) from error
