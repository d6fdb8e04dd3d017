"""Computes a long figure part by part and keeps what is finished, so that a stop loses one part at most.

Every part is written as a csv file beside the figure when it is computed. The same command continues after a stop. When the
figure is written, its parts are removed. Parts of another setting, or of other logs, are not read, as their names differ.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from rlhfless.trace.storage import write_text


class FigurePart(NamedTuple):
    """A part of a figure's rows.

    Attributes:
        name: for progress and for its file. inputs: all that its rows are computed from, which ``repr`` shows in full.
        table: computes the rows.
    """

    name: str
    inputs: object
    table: Callable[[], pd.DataFrame]

    @property
    def file_name(self) -> str:
        """Return the name of the file of its rows."""
        return f"{self.name.replace(' ', '-')}-{sha256(repr(self.inputs).encode()).hexdigest()[:12]}.csv"


def kept_parts(
    parts: Iterable[FigurePart], folder: Path, on_line: Callable[[str], object] | None = None
) -> Iterator[pd.DataFrame]:
    """Return the rows of every part: from the folder where they are there, else computed and written there.

    Args:
        on_line: called with one line after each part that was computed.
    """
    for part in parts:
        path = folder / part.file_name
        if not path.is_file():
            start_s = time.perf_counter()
            folder.mkdir(parents=True, exist_ok=True)
            write_text(path, part.table().to_csv(index=False))
            if on_line is not None:
                on_line(f"    {part.name}: {time.perf_counter() - start_s:.0f} s")
        yield pd.read_csv(path, keep_default_na=False, na_values=[""])


def remove_parts(folder: Path) -> None:
    """Remove the parts of a figure that is finished."""
    shutil.rmtree(folder, ignore_errors=True)
