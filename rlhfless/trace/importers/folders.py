"""A folder that is no framework's, and has one log in it: that log is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlhfless.trace.errors import TraceError
from rlhfless.trace.importers.import_session import ImportOptions, ImportSession
from rlhfless.trace.schema.casts import listed, shown

MOST_LOOKED_AT = 50  # files of a folder
NO_LOGS = (".py", ".sh", ".ipynb", ".md", ".rst", ".yaml", ".yml", ".toml", ".html")  # may quote the lines of one


def logs_in(folder: Path, is_log: Callable[[Path], bool]) -> list[Path]:
    """Return the files of a folder that are logs, by name; hidden files, programs and documents are left out.

    Raises:
        TraceError: the folder has too many files to look at each.
    """
    files = sorted(path for path in folder.iterdir() if _may_be_a_log(path))
    if len(files) > MOST_LOOKED_AT:
        raise TraceError(
            f"{folder}: is not a log of a known format, and has {len(files):,} files; name the one that is the log"
        )
    return [path for path in files if is_log(path)]


def _may_be_a_log(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and path.suffix.lower() not in NO_LOGS


def only_log(folder: Path, is_log: Callable[[Path], bool]) -> Path | None:
    """Return the one log in a folder; None if it has none.

    Raises:
        TraceError: it has several, or the first of several files of JSON lines is damaged.
    """
    logs = logs_in(folder, is_log)
    if len(logs) < 2:
        return logs[0] if logs else None
    fields = ""
    if all(".jsonl" in path.name.lower() for path in logs):
        first = next(ImportSession(logs[0], ImportOptions()).records(logs[0]), None)
        if first is None:
            raise TraceError(f"{logs[0]}: is empty; one JSON object per line is needed")
        fields = f" (the first record of {logs[0].name} has the fields {shown(listed(first.values), 80)})"
    names = shown(listed(path.name for path in logs), 100)
    raise TraceError(
        f"{folder}: has {len(logs)} logs, {names}, and is no framework's folder{fields}; name one of them, such as {logs[0]}"
    )
