"""Small HTML tables for notebooks: facts of a result below each other. Everything that is given is escaped.

Knows HTML; nothing of results. There are no colours in it, so it is legible on light and dark pages.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def facts_table(caption: str, facts: Iterable[tuple[str, str]]) -> str:
    """One row per fact: its name and its value."""
    rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in facts)
    return f"<table><caption>{html.escape(caption)}</caption>{rows}</table>"


def rows_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A head and rows of as many cells."""
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{html.escape(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
