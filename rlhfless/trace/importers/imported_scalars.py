"""Reads a folder without responses, as ``rlhfless convert`` writes it: scalars of steps, engine lines, numbers of the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from rlhfless.trace.importers import engine_lines, run_facts, scalars
from rlhfless.trace.importers.formats import Format
from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.importers.names import framework_of

FILES = (scalars.FILE, engine_lines.FILE, run_facts.FILE)


def detect(path: Path) -> bool:
    """Return whether the path is a folder with one of these files and no trace."""
    has = any((path / name).is_file() for name in FILES)
    return has and not any((path / name).is_file() for name in ("meta.json", "rollouts.parquet"))


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Report what the folder has; there are no responses."""
    limits = reading.options.limits
    table = scalars.read_scalars(reading.path, limits)
    reading.scalars += [row.dropna().to_dict() for _, row in table.iterrows()]
    reading.engine += engine_lines.read_engine(reading.path, limits).to_dict("records")
    reading.facts, framework = run_facts.read_facts(reading.path, limits)
    reading.framework = framework or framework_of(table.columns) or ""
    yield from ()


FORMAT = Format("scalars", "scalars of steps, as `rlhfless convert` writes them", detect, read)
