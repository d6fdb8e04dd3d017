"""The trace in memory (``Trace``), and functions that read one from a folder or from a rollout log.

``writer.py`` appends to a trace while a run works. A reader sees the steps that ``meta.json`` names and those with a step
folder of their own (``step_folders.py``). It never sees a step that was still being written. Of a recording
(``recording/recorder.py``) it sees every flushed row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless import __version__
from rlhfless.errors import other_version
from rlhfless.gone_options import in_sections, without_gone
from rlhfless.trace import step_folders, storage
from rlhfless.trace.errors import TraceError
from rlhfless.trace.journal import joined
from rlhfless.trace.limits import Guard, Limits
from rlhfless.trace.schema.casts import jsonable
from rlhfless.trace.schema.prices import AS_STATED, price_in_words
from rlhfless.trace.schema.tables import META_KEYS, SCHEMA_VERSION, TABLES, text_columns
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
        tables = {
            table: storage.to_arrow(table, getattr(self, table)) for table in TABLES
        }  # first: what it refuses leaves no folder
        folder = new_folder(path, overwrite)
        write_folder(folder, tables, self.plans, complete_meta(self.meta, self.steps))
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
    meta, frames, plans = load(folder, limits)
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


def load(folder: Path, limits: Limits | None = None) -> tuple[dict[str, Any], dict[str, pd.DataFrame], list[dict[str, Any]]]:
    """Return meta.json, the tables and the plans of a trace folder: completed steps only, not yet validated."""
    while True:
        meta = _meta(folder, limits)
        named = list(meta["steps"])
        try:
            frames_and_plans = _frames_and_plans(folder, meta, limits)
        except TraceError:
            if _meta(folder, limits)["steps"] == named:
                raise
        else:
            if _meta(folder, limits)["steps"] == named:
                frames, meta["steps"] = joined(folder, frames_and_plans[0], meta["steps"], limits)
                return meta, frames, frames_and_plans[1]
        # a writer has put steps into the tables meanwhile


def _meta(folder: Path, limits: Limits | None) -> dict[str, Any]:
    """Read meta.json of a trace folder; a writer writes it last."""
    meta_path = folder / "meta.json"
    if not folder.exists():
        raise TraceError(f"{folder}: there is no such folder; a trace folder is needed")
    if not meta_path.is_file():
        hint = f"to read its {'rollouts.parquet'!r} alone, name that file" if (folder / "rollouts.parquet").exists() else ""
        raise TraceError(f"{folder}: is not a complete trace, meta.json is missing; {hint or 'a trace folder is needed'}")
    meta = storage.read_json(meta_path, Guard(limits))
    version, steps = meta.get("schema_version"), meta.get("steps")
    if version != SCHEMA_VERSION:
        raise TraceError(f"{meta_path}: {other_version('a trace', version, SCHEMA_VERSION)} (field schema_version)")
    if not isinstance(steps, list) or not all(isinstance(step, int) for step in steps):
        raise TraceError(f"{meta_path}: steps is {steps!r}; the list of completed steps is needed")
    if isinstance(meta.get("config"), dict):
        meta["config"] = in_sections(without_gone(meta["config"], meta_path, TraceError))
    return meta


def response_limit(meta: Mapping[str, Any]) -> Any:
    """Return the limit on response length that a trace's ``meta.json`` records, unchecked; None without one."""
    config = meta.get("config")
    rollout = in_sections(config).get("rollout") if isinstance(config, Mapping) else None
    return rollout.get("max_response_tokens") if isinstance(rollout, Mapping) else None


def _frames_and_plans(
    folder: Path, meta: dict[str, Any], limits: Limits | None
) -> tuple[dict[str, pd.DataFrame], list[dict[str, Any]]]:
    """Return the rows and plans of the steps of ``meta``; steps with folders of their own are added to it."""
    steps = meta["steps"]
    executed = meta.get("clock") is not None and bool(steps)
    for table in TABLES:
        if executed and not (folder / f"{table}.parquet").exists():
            raise TraceError(
                f"{folder}: {table}.parquet is missing, but meta.json describes an executed run; restore that file"
            )
    plans = _plans(folder / "plans.jsonl", steps, limits)
    if unmerged := step_folders.unmerged_steps(folder, steps):
        meta["steps"] = sorted([*steps, *unmerged])
        rows = {table: step_folders.read_rows(folder, table, steps, unmerged, limits) for table in TABLES}
        frames = {table: storage.to_frame(table_rows) for table, table_rows in rows.items()}
        return frames, plans + step_folders.read_plans(folder, unmerged)
    return {table: _completed(folder / f"{table}.parquet", steps, limits) for table in TABLES}, plans


def _completed(path: Path, steps: list[int], limits: Limits | None) -> pd.DataFrame:
    """Return the rows of completed steps; the index keeps their place in the file. Only the file of the rollouts must exist."""
    if not steps or (not path.exists() and path.name != "rollouts.parquet"):
        return pd.DataFrame()
    frame = storage.read_frame(path, guard=Guard(limits))
    return frame[frame["step"].isin(steps)] if "step" in frame.columns else frame


def _plans(path: Path, steps: list[int], limits: Limits | None) -> list[dict[str, Any]]:
    plans: list[dict[str, Any]] = []
    if not path.exists():
        return plans
    guard = Guard(limits)
    try:
        with open(path, "rb") as stream:
            for number, line in guard.lines(path, stream):
                try:
                    plan = json.loads(line)
                    if plan["step"] in steps:
                        plans.append(plan)
                except (ValueError, TypeError, KeyError, RecursionError) as error:
                    raise TraceError(
                        f"{path}: line {number} is not a plan; a JSON object with the key 'step' is needed"
                    ) from error
                guard.add_rows(path, 1)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error}); a readable file is needed") from error
    return plans


def new_folder(path: str | Path, overwrite: bool = False) -> Path:
    """Make a folder for a new trace; with ``overwrite`` an existing trace in it is invalidated.

    Raises:
        TraceError: it has a trace already, or cannot be made.
    """
    folder = Path(path)
    meta_path = folder / "meta.json"
    if meta_path.exists() and not overwrite:
        raise TraceError(f"{folder}: holds a trace already; name another folder, or resume it if it is a training run")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        meta_path.unlink(missing_ok=True)
        step_folders.remove(folder)
        storage.remove_leftovers(folder)
    except OSError as error:
        raise TraceError(f"{folder}: cannot be made ({error.strerror}); a writable folder is needed") from error
    return folder


def complete_meta(meta: dict[str, Any], steps: list[int]) -> dict[str, Any]:
    """Return ``meta`` with the versions, the completed steps, and null for entries that the run did not give."""
    fixed = {"schema_version": SCHEMA_VERSION, "project_version": __version__}
    kept = {key: value for key, value in meta.items() if key not in fixed}
    meta = {**fixed, **dict.fromkeys(META_KEYS), **kept, "steps": list(steps)}
    return {key: jsonable(value) for key, value in meta.items()}


def write_folder(folder: Path, tables: dict[str, Any], plans: list[dict[str, Any]], meta: dict[str, Any]) -> None:
    """Write every file of a trace: the tables, the plans, and last the ``meta.json`` that commits their steps."""
    for table, rows in tables.items():
        storage.write_parquet(folder / f"{table}.parquet", rows)
    lines = "".join(json.dumps(jsonable(plan), sort_keys=True) + "\n" for plan in plans)
    storage.write_text(folder / "plans.jsonl", lines)
    storage.write_text(folder / "meta.json", json.dumps(meta, indent=2) + "\n")
