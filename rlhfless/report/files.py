"""The file of a report: what the end of its name says."""

from __future__ import annotations

from pathlib import Path

from rlhfless.errors import InputError

WRITTEN = {".html": "a page", ".htm": "a page", ".json": "its numbers", ".ipynb": "a notebook"}
"""What is written, by the end of the name."""


def kind_of(out: Path) -> str:
    """Return what is written into a file: a value of ``WRITTEN``.

    Raises:
        InputError: the end of its name says none.
    """
    kind = WRITTEN.get(out.suffix.lower())
    if kind is None:
        raise InputError(f"{out}: is no page and no notebook; a name that ends in {', '.join(WRITTEN)} is needed")
    return kind
