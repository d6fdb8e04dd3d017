"""Where this package lies: in a clone of its repository, or installed from a wheel."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def clone() -> Path | None:
    """Return the clone of the repository that this package is a part of; None where a wheel was installed.

    Other packages put a folder ``data`` or a ``pyproject.toml`` beside this one, so both of ours are looked for.
    """
    root = PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() and (root / "data" / "profiles").is_dir() else None


def data_folders() -> tuple[Path, ...]:
    """Return the folders with shipped data: the clone's ``data`` (first), the installed package's ``_data``."""
    root = clone()
    return *(() if root is None else (root / "data",)), PACKAGE / "_data"
