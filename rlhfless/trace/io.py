"""The trace in memory (``Trace``), and functions that read one from a folder or from a rollout log.

``store.py`` knows the folder, and ``writer.py`` appends to it while a run works. A reader never sees a step that was still
being written. Of a recording (``recording/recorder.py``) it sees every flushed row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.gone_options import in_sections
from rlhfless.trace import storage, store
from rlhfless.trace.errors import TraceError
from rlhfless.trace.limits import Guard, Limits
from rlhfless.trace.schema.prices import AS_STATED, price_in_words
from rlhfless.trace.schema.tables import TABLES, text_columns
from rlhfless.trace.schema.validation import refuse_several_runs, validate
from solver.model.html_tables import facts_table
from solver.model.plurals import counted


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """The record of a run in four tables; tables are checked when it is made.

    Attributes:
        rollouts: one row per response; a trace with rollouts only is a *logged* trace.
        allocations: billed GPU time of each holder.
        spans: what each holder did, and when.
        events: single points in time, such as a migration.
        plans: one dict per step, with the key ``step``.
        meta: seeds, cluster, profile, policy, clock, charging and device of the run.
        source: the path that it was read from, for messages.

    Raises:
        TraceError: a table violates the schema.
    """

    rollouts: pd.DataFrame
    allocations: pd.DataFrame = field(default_factory=pd.DataFrame)
    spans: pd.DataFrame = field(default_factory=pd.DataFrame)
    events: pd.DataFrame = field(default_factory=pd.DataFrame)
    plans: list[dict[str, Any]] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        for table in TABLES:
            name = str(Path(self.source) / f"{table}.parquet") if self.source else table
            object.__setattr__(self, table, validate(table, getattr(self, table), name))

    def with_rows(self, **tables: pd.DataFrame) -> Trace:
        """Return the trace with only some rows of its tables, which are not checked again.

        Args:
            tables: rows to keep, by the table's name. Other tables keep all rows.
        """
        part = object.__new__(Trace)
        rows = {table: frame.reset_index(drop=True) for table, frame in tables.items()}
        part.__dict__.update({**vars(self), **rows})
        return part

    def at_price(self, usd_per_gpu_hour: float) -> Trace:
        """Return the trace of an executed run with one price for all of its GPU-seconds; a log has none.

        Args:
            usd_per_gpu_hour: 0 is no price, and the cost is unknown. ``meta["price_as_stated"]`` names it and the recorded one.
        """
        if self.allocations.empty:
            return self
        priced = self.with_rows(allocations=self.allocations.assign(usd_per_gpu_s=usd_per_gpu_hour / 3600.0))
        priced.__dict__["meta"] = {**self.meta, AS_STATED: price_in_words(usd_per_gpu_hour, self.allocations)}
        return priced

    @property
    def steps(self) -> list[int]:
        """The steps, in order."""
        return sorted({int(step) for table in TABLES for step in getattr(self, table)["step"].unique()})

    @property
    def runs(self) -> list[str]:
        """Names of the runs, in order of appearance."""
        return list(dict.fromkeys(run for table in TABLES for run in getattr(self, table)["run"].unique()))

    @property
    def run(self) -> str:
        """Name of the only run.

        Raises:
            TraceError: there are several.
        """
        refuse_several_runs(self.runs, self.source or "the trace")
        return self.runs[0]

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write the trace into a folder: tables first, ``meta.json`` last, so that a partly written folder is not a trace.

        Raises:
            TraceError: the folder has a trace already and ``overwrite`` is false, or cannot be written.
        """
        # first: what it refuses leaves no folder
        tables = {table: store.to_arrow(table, getattr(self, table)) for table in TABLES}
        folder = store.new_folder(path, overwrite)
        store.write_folder(folder, tables, self.plans, store.complete_meta(self.meta, self.steps))
        return folder

    def _facts(self) -> list[tuple[str, str]]:
        rollouts = self.rollouts
        facts = [
            ("runs", ", ".join(self.runs)),
            ("steps", f"{len(self.steps)} ({self.steps[0]} to {self.steps[-1]})"),
            ("responses", f"{len(rollouts):,} for {counted(rollouts['prompt_id'].nunique(), 'prompt')}"),
            ("response tokens", f"{rollouts['response_tokens'].sum():,}, longest {rollouts['response_tokens'].max():,}"),
            ("recorded", ", ".join(f"{len(getattr(self, t)):,} {t}" for t in ("allocations", "spans", "events"))),
        ]
        return facts + [(key, str(self.meta[key])) for key in ("policy", "clock") if self.meta.get(key)]

    def __repr__(self) -> str:
        return "Trace\n" + "\n".join(f"  {name:16s}{value}" for name, value in self._facts())

    def _repr_html_(self) -> str:
        return facts_table("Trace", self._facts())


def read_trace(folder: str | Path, limits: Limits | None = None) -> Trace:
    """Read the completed steps of a trace folder.

    Args:
        limits: limits on what is read of each file; None: the defaults.

    Raises:
        TraceError: it is not a trace folder, has another schema version or no completed step, or a table is wrong or larger
            than the limits.
    """
    folder = Path(folder)
    meta, frames, plans = store.load(folder, limits)
    if not meta["steps"]:
        raise TraceError(f"{folder / 'meta.json'}: lists no completed step; at least one is needed")
    return Trace(**frames, plans=plans, meta=meta, source=str(folder))


def read_rollouts(path: str | Path, limits: Limits | None = None) -> pd.DataFrame:
    """Read the rollouts of a trace folder, or of a parquet, csv or jsonl file (also ``.gz``) with the rollout columns.

    A plain file may lack ``run`` (then ``log``), ``epoch`` and nullable columns (then null). A lacking ``epoch`` is the number
    of earlier steps of the run with the prompt. ``step``, ``prompt_id``, ``sample`` and ``response_tokens`` are required.

    Args:
        limits: as in ``read_trace``.

    Raises:
        TraceError: one sentence: file, row, column, value, and what would be right.
    """
    path = Path(path)
    if path.is_dir():
        return read_trace(path, limits).rollouts
    return validate("rollouts", storage.read_frame(path, text_columns("rollouts"), Guard(limits)), path)


def response_limit(meta: Mapping[str, Any]) -> Any:
    """Return the limit on response length that a trace's ``meta.json`` records, unchecked; None without one."""
    config = meta.get("config")
    rollout = in_sections(config).get("rollout") if isinstance(config, Mapping) else None
    return rollout.get("max_response_tokens") if isinstance(rollout, Mapping) else None
