"""Imports what trackers export as rows: wandb's history, summary and panels, trackio's tables, TensorBoard's single scalars.

- A row of wandb (``run.scan_history()``, ``run.history()``) or of trackio has the metrics of one call, so a step may have
  several rows, and a row few of the metrics. ``wandb-summary.json`` has the last value of each.
- A csv that wandb's page gives of a panel has a column ``{run} - {metric}`` per run, beside columns that end in ``__MIN`` and
  ``__MAX``.
- A csv that TensorBoard gives has ``Wall time,Step,Value``. Of which metric is in the name alone:
  ``run-{run}-tag-{metric}.csv``, where other characters than letters and digits are ``_``. A folder of several is one run.

Files are recognised by content. They are csv, jsonl, json (an object, or an array of rows) or parquet. There are no responses.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.formats import Format
from rlhfless.trace.importers.import_session import ImportSession, csv_header, parquet_columns, suffix_of
from rlhfless.trace.importers.names import NAMES, NO_TIMES
from rlhfless.trace.importers.record import finite, is_number
from rlhfless.trace.importers.tracked_steps import LARGEST_STEP, add_rows
from rlhfless.trace.schema.casts import clean, listed

Row = dict[str, float]

OF_WANDB = frozenset({"_step", "_runtime", "_timestamp", "_wandb"})
OF_TRACKIO = ("step", "timestamp")
RUN_COLUMNS = ("run_name", "run", "Name")  # texts: of trackio, and of wandb's table of runs, which has a row per run
SCALAR = ["Wall time", "Step", "Value"]
OF_FILE = re.compile(r"(?:run-(?P<run>.+?)-)?tag-(?P<tag>.+?)(?: \(\d+\))?\.csv(?:\.gz)?", re.IGNORECASE)
PANEL, ENDS = " - ", ("__MIN", "__MAX")
PREFIXES = tuple(sorted({one.tracked_prefix for one in NAMES.values()} - {""}))
PEEK_BYTES, PEEK_ROWS = 2**20, 50  # of a file, to recognise it
KEY = re.compile(r'"((?:[^"\\]|\\.){1,200})"\s*:')


def files(path: Path) -> list[Path]:
    """Return the file, or the files of single scalars in a folder."""
    if path.is_file():
        return [path]
    return sorted(file for file in path.glob("*.csv*") if OF_FILE.fullmatch(file.name) and csv_header(file) == SCALAR)


def detect(path: Path) -> bool:
    """Return whether the path is such a file, or a folder of TensorBoard's single scalars."""
    if not path.is_file():
        return bool(files(path))
    names = _names(path)
    if names == SCALAR:
        return True
    metrics = {_metric(name) for name in names}
    tracked = bool(OF_WANDB & set(names)) or all(name in names for name in OF_TRACKIO) or _is_panel(names)
    prefixed = any(name in _tracked() for name in metrics)
    return (tracked or prefixed) and any(name in _known() for name in metrics)


def _known() -> frozenset[str]:
    """Every framework's names with a folder, as they stand in its own log and in trackers."""
    return frozenset(name for one in NAMES.values() for name in (*one.own(), *one.tracked().own()) if "/" in name)


def _tracked() -> frozenset[str]:
    """Names that have a prefix in trackers alone."""
    return frozenset(name for one in NAMES.values() if one.tracked_prefix for name in one.tracked().own())


def _names(path: Path) -> list[str]:
    """Return the columns of a file, of its first rows; empty where it is none of these files."""
    suffix = suffix_of(path)
    if suffix == ".csv":
        return csv_header(path)
    if suffix == ".parquet":
        return sorted(parquet_columns(path))
    if suffix not in (".json", ".jsonl"):
        return []
    try:
        with gzip.open(path, "rb") if path.name.lower().endswith(".gz") else open(path, "rb") as stream:
            text = stream.read(PEEK_BYTES).decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error):
        return []  # the reader reports what is wrong with it
    if not text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        return []
    return list(dict.fromkeys(KEY.findall("\n".join(text.splitlines()[:PEEK_ROWS]) if suffix == ".jsonl" else text)))


def _is_panel(names: Iterable[str]) -> bool:
    return any(PANEL in name and name.endswith(ENDS) for name in names)


def _metric(name: str) -> str:
    """The metric of a panel's column."""
    return name.rpartition(PANEL)[2].removesuffix("__MIN").removesuffix("__MAX")


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Collect the steps' scalars, of each run; yields no responses.

    Raises:
        TraceError: no row has metrics of a known framework, or a single scalar's name does not say which it is.
    """
    paths = files(reading.path)
    reading.expect(paths)
    single = not paths or csv_header(paths[0]) == SCALAR
    runs = {"": _scalars(reading, paths)} if single else _runs(reading, paths[0])
    for run, rows in runs.items():
        add_rows(reading, reading.path, rows, run if len(runs) > 1 else None)
    if not reading.scalars and not reading.facts:
        raise TraceError(f"{reading.path}: {NO_TIMES}")
    yield from ()


def _runs(reading: ImportSession, path: Path) -> dict[str, list[Row]]:
    """Return the rows of every run, by its name; of a panel, those of each column's run."""
    runs: dict[str, list[Row]] = {}
    for cells in _cells(reading, path):
        named = [(str(name), cell) for name, cell in cells.items() if not str(name).endswith(ENDS)]
        shared = {name: number for name, cell in named if PANEL not in name and (number := _number(cell)) is not None}
        if any(PANEL in name for name, _ in named):
            for run in dict.fromkeys(name.rpartition(PANEL)[0] for name, _ in named if PANEL in name):
                of_run = {_metric(name): _number(cell) for name, cell in named if name.rpartition(PANEL)[0] == run}
                values = {name: number for name, number in of_run.items() if number is not None}
                if values:
                    runs.setdefault(clean(run), []).append({**shared, **values})
            continue
        run = next((str(cell) for name in RUN_COLUMNS for other, cell in named if other == name and isinstance(cell, str)), "")
        runs.setdefault(clean(run), []).append(shared)
    return runs


def _cells(reading: ImportSession, path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a file, as they are."""
    suffix, count = suffix_of(path), 0
    if suffix == ".jsonl":
        for record in reading.records(path):
            count += 1
            reading.guard.check_rows(path, count)
            yield record.values
    elif suffix == ".json":
        content = reading.document(path)
        for row in content if isinstance(content, list) else [content]:
            count += 1
            reading.guard.check_rows(path, count)
            if isinstance(row, dict):
                yield row
    else:
        frames = reading.csv(path, None) if suffix == ".csv" else reading.parquet(path, lambda name, nested: not nested)
        for frame in frames:
            count += len(frame)
            reading.guard.check_rows(path, count)
            for row in frame.to_dict("records"):
                yield {str(name): cell for name, cell in row.items()}


def _number(cell: Any) -> float | None:
    """Return a cell's finite number, also of a text as csv files and newer loggers have it; None where it has none."""
    if is_number(cell):
        return finite(cell)
    if isinstance(cell, str) and len(cell) <= 40:
        try:
            return finite(float(cell))
        except ValueError:
            return None
    return None


def _scalars(reading: ImportSession, paths: list[Path]) -> list[Row]:
    """Return one row per step, of all single scalars whose metric is known.

    Raises:
        TraceError: no file's name says its metric.
    """
    written = {re.sub(r"\W", "_", name): name for name in sorted(_known())}
    found: dict[int, Row] = {}
    left_out = []
    for path in paths:
        match = OF_FILE.fullmatch(path.name)
        metric = written.get(re.sub(r"\W", "_", match["tag"])) if match else None
        if metric is None:
            left_out.append(path.name)
            continue
        for cells in _cells(reading, path):
            step, value = _number(cells.get("Step")), _number(cells.get("Value"))
            if step is not None and value is not None and 0 <= step < LARGEST_STEP:
                found.setdefault(int(step), {"step": step})[metric] = value
    if not found:
        raise TraceError(
            f"{reading.path}: is one scalar of TensorBoard, and its name does not say a metric that is known; the name that "
            "TensorBoard gives, such as run-.-tag-timing_s_step.csv, or the event files (events.out.tfevents.*) are needed"
        )
    if left_out:
        reading.note(f"left out: {listed(left_out)}, as the names say no metric that is known")
    return [found[step] for step in sorted(found)]


FORMAT = Format("tracker", "rows of a tracker (wandb, trackio or TensorBoard; csv, jsonl, json or parquet)", detect, read)
