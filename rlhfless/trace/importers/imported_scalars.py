"""Reads a folder with scalars of steps and no responses, as ``rlhfless import`` writes it of logs of scalars alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from rlhfless.trace.importers.formats import Format
from rlhfless.trace.importers.import_session import ImportSession
from rlhfless.trace.importers.names import framework_of
from rlhfless.trace.importers.scalars import FILE, read_scalars


def detect(path: Path) -> bool:
    """Return whether the path is a folder with a table of scalars and no trace."""
    return (path / FILE).is_file() and not any((path / name).is_file() for name in ("meta.json", "rollouts.parquet"))


def read(reading: ImportSession) -> Iterator[pd.DataFrame]:
    """Report the scalars of every step; there are no responses."""
    table = read_scalars(reading.path, reading.options.limits)
    reading.framework = framework_of(table.columns) or ""
    reading.scalars += [row.dropna().to_dict() for _, row in table.iterrows()]
    yield from ()


FORMAT = Format("scalars", "scalars of steps, as `rlhfless import` writes them", detect, read)
