"""Writes a run's trace step by step; a process killed at any moment leaves a valid trace of its completed steps.

A step is committed as soon as the folder with its rows exists (``store.py``). Writing a step takes the same time however
long the run is. In memory are only the allocations of earlier steps, which new ones must not overlap, and how often each prompt
was visited; no responses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from rlhfless.errors import reason
from rlhfless.trace import storage, store
from rlhfless.trace.errors import TraceError
from rlhfless.trace.io import Trace, read_trace
from rlhfless.trace.schema.tables import TABLES
from rlhfless.trace.schema.validation import as_frame, derive_epoch, refuse_overlaps, validate

Rows: TypeAlias = pd.DataFrame | Sequence[Mapping[str, Any]] | None
HELD = ["run", "holder", "gpu_ids", "start_s", "end_s"]  # what overlaps are found by
VISIT = ["run", "prompt_id"]


class TraceWriter:
    """Appends whole steps to a trace folder. Readers see every appended step; ``close`` merges the steps into the tables.

    Args:
        folder: trace folder; it must not contain a trace yet (``resume`` continues one).
        meta: seeds, cluster, profile, policy, clock, charging, device and further entries of ``meta.json``.
        overwrite: replace an existing trace in the folder.

    Raises:
        TraceError: the folder has a trace already, or cannot be written.
    """

    def __init__(self, folder: str | Path, meta: Mapping[str, Any] | None = None, overwrite: bool = False) -> None:
        self.folder = store.new_folder(folder, overwrite)
        self.meta = store.complete_meta(dict(meta or {}), [])
        self._begin()
        store.write_folder(self.folder, {}, [], self.meta)

    @classmethod
    def resume(cls, folder: str | Path, next_step: int | None = None) -> TraceWriter:
        """Return a writer that continues after the last completed step of the folder's trace.

        Rows of a step that was being written when the process died are removed, and so are its temporary files.

        Args:
            next_step: steps from this one on are removed, the last one first.

        Raises:
            TraceError: the folder has no trace, one of another schema version, or one with a wrong table.
        """
        writer = cls.__new__(cls)
        writer.folder = Path(folder)
        if next_step is not None:
            store.remove_from(writer.folder, next_step)
        writer.meta, frames, plans = store.load(writer.folder)
        store.remove_leftovers(writer.folder)
        writer._begin()
        if writer.meta["steps"]:
            writer._trace = Trace(**frames, plans=plans, meta=dict(writer.meta), source=str(writer.folder))
            for table in TABLES:
                frame = getattr(writer._trace, table)
                writer._note(table, frame, store.to_arrow(table, frame).schema)
        return writer

    def _begin(self) -> None:
        self._schemas: dict[str, pa.Schema] = {}
        self._held = pd.DataFrame(columns=HELD)
        self._visits: Counter[tuple[str, str]] = Counter()
        self._trace: Trace | None = None  # of all steps, until another one is appended

    @property
    def steps(self) -> list[int]:
        """The completed steps, in order."""
        return list(self.meta["steps"])

    @property
    def next_step(self) -> int:
        """The number of the step after the last completed one; 0 for a new trace."""
        return max(self.steps, default=-1) + 1

    @property
    def end_s(self) -> float:
        """End of the last allocation, from which the times of a resumed run continue."""
        return float(self._held["end_s"].max()) if len(self._held) else 0.0

    @property
    def trace(self) -> Trace:
        """Read the completed steps from the disk.

        Raises:
            TraceError: there is none yet, or the folder can no longer be read.
        """
        if not self.steps:
            raise TraceError(f"{self.folder}: has no completed step yet; append one first")
        if self._trace is None:
            self._trace = read_trace(self.folder)
        return self._trace

    def remember(self, **entries: Any) -> None:
        """Change entries of ``meta.json`` other than the steps.

        Raises:
            TraceError: the folder cannot be read or written.
        """
        meta = {**self.meta, **entries}
        store.write_meta(self.folder, store.complete_meta(meta, storage.read_json(self.folder / "meta.json")["steps"]))
        self.meta, self._trace = store.complete_meta(meta, self.steps), None

    def append_step(
        self,
        rollouts: Rows = None,
        allocations: Rows = None,
        spans: Rows = None,
        events: Rows = None,
        plan: Mapping[str, Any] | None = None,
    ) -> int:
        """Append one step, all its rows and its plan, of all runs of the trace; completely or not at all.

        Args:
            rollouts: at least one response; without ``epoch`` it is derived from the steps appended before.
            allocations, spans, events: rows, or None for none.
            plan: the step's plan; ``step`` is added to it.

        Returns:
            The step.

        Raises:
            TraceError: a table is wrong, its rows are of several steps, the step is complete already, or the folder is gone.
                The trace and the writer are unchanged.
        """
        given_rows = {"rollouts": rollouts, "allocations": allocations, "spans": spans, "events": events}
        names = {table: f"{self.folder}: new {table}" for table in TABLES}
        frames = {table: validate(table, rows, names[table]) for table, rows in given_rows.items()}
        step = self._one_step(frames)
        if plan is not None and plan.get("step", step) != step:
            raise TraceError(
                f"{self.folder}: the plan is of step {plan['step']}, but the rows are of step {step}; both must be of one step"
            )
        if rollouts is not None and "epoch" not in as_frame(rollouts).columns:
            frames["rollouts"]["epoch"] = self._epochs(frames["rollouts"], step)
        tables = {table: store.to_arrow(table, frame) for table, frame in frames.items()}
        schemas = {table: self._fitting(table, rows.schema, names[table]) for table, rows in tables.items()}
        self._refuse_overlaps(frames["allocations"])
        if not (self.folder / "meta.json").is_file():
            raise TraceError(f"{self.folder}: was removed after the trace was started; start a new trace")
        store.write_step(self.folder, step, tables, None if plan is None else {**plan, "step": step})
        for table, frame in frames.items():
            self._note(table, frame, schemas[table])
        self.meta = store.complete_meta(self.meta, sorted([*self.steps, step]))
        self._trace = None
        return step

    def close(self) -> None:
        """Merge the step folders into the trace's tables. Idempotent; further steps may be appended afterwards.

        Raises:
            TraceError: a file cannot be read or written. The trace is unchanged and readable.
        """
        store.merge_steps(self.folder, store.complete_meta(self.meta, self.steps))

    def _one_step(self, frames: dict[str, pd.DataFrame]) -> int:
        steps = sorted({int(step) for frame in frames.values() for step in frame["step"].unique()})
        if len(steps) != 1:
            raise TraceError(f"{self.folder}: the new rows are of the steps {steps}; append one step at a time")
        if steps[0] in self.steps:
            raise TraceError(f"{self.folder}: step {steps[0]} is complete already; the next step is {self.next_step}")
        return steps[0]

    def _epochs(self, rollouts: pd.DataFrame, step: int) -> np.ndarray:
        if step >= self.next_step:
            return np.array([self._visits[visit] for visit in zip(rollouts["run"], rollouts["prompt_id"], strict=True)])
        keys = [*VISIT, "step"]  # between earlier steps
        earlier = self.trace.rollouts[keys]
        return np.asarray(derive_epoch(pd.concat([earlier, rollouts[keys]], ignore_index=True)))[len(earlier) :]

    def _fitting(self, table: str, schema: pa.Schema, name: str) -> pa.Schema:
        """Return the columns of all steps."""
        try:
            earlier = self._schemas.get(table)
            return schema if earlier is None else pa.unify_schemas([earlier, schema], promote_options="permissive")
        except pa.ArrowException as error:
            raise TraceError(
                f"{name}: a column has another type than in earlier steps ({reason(error)}); the same type is needed"
            ) from error

    def _refuse_overlaps(self, allocations: pd.DataFrame) -> None:
        earlier, new = self._held, allocations[HELD]
        rows = pd.concat([earlier, new], ignore_index=True) if len(earlier) else new
        since_s = new["start_s"].min() if len(new) else np.inf
        refuse_overlaps(rows[rows["end_s"] > since_s], str(self.folder / "allocations.parquet"))

    def _note(self, table: str, frame: pd.DataFrame, schema: pa.Schema) -> None:
        """Remember the values against which later steps are checked."""
        self._schemas[table] = schema
        if table == "allocations" and len(frame):
            rows = [held for held in (self._held, frame[HELD]) if len(held)]
            self._held = pd.concat(rows, ignore_index=True)
        if table == "rollouts":
            self._visits.update(frame[[*VISIT, "step"]].drop_duplicates()[VISIT].itertuples(index=False, name=None))
