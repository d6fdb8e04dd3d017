"""Where results are kept between two builds: a folder that is that of the project's code and data as they are now."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from staged import ROOT

CODE = ("rlhfless/**/*.py", "solver/**/*.py", "data/**/*")
"""What results depend on, beside the notebook or the file that makes them."""


def kept_in(cache: Path) -> Path:
    """Return the folder, which exists then. Those of earlier code are removed, so no page shows what the code gives no more.

    Args:
        cache: the folder of these folders.
    """
    digest = hashlib.sha256()
    for pattern in CODE:
        for file in sorted(ROOT.glob(pattern)):
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    folder = cache / digest.hexdigest()[:16]
    if cache.exists():
        for old in cache.iterdir():
            if old != folder:
                shutil.rmtree(old)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def name_for(file: Path, suffix: str) -> str:
    """Return the name under which the result of a file is kept; a file with other contents has another."""
    return f"{file.stem}-{hashlib.sha256(file.read_bytes()).hexdigest()[:16]}{suffix}"
