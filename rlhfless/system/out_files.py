"""Whether a file or folder can be written, told before the work whose result it holds."""

from __future__ import annotations

import tempfile
from pathlib import Path


def why_not_written(path: Path) -> str:
    """Return why a file or folder cannot be made at a path, as a clause; empty where it can.

    A file without a name is made in the folder, or in the nearest one that exists, and is gone at once: permissions alone say
    nothing of a disk that is read-only, nor to an administrator.
    """
    there = next((parent for parent in path.absolute().parents if parent.exists()), path)
    if not there.is_dir():
        return f"{there} is not a folder"
    try:
        with tempfile.TemporaryFile(dir=there):
            return ""
    except OSError as error:
        return f"{there} cannot be written ({error.strerror or error})"
