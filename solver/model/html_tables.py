"""Builds small HTML tables for notebooks: one row per fact of a result. All text is escaped.

The tables set no colours, so they are legible on light and dark pages.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def facts_table(caption: str, facts: Iterable[tuple[str, str]]) -> str:
    """Return a table with one row per fact: its name and its value."""
    rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in facts)
    return f"<table><caption>{html.escape(caption)}</caption>{rows}</table>"


def rows_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with a head and rows of as many cells."""
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{html.escape(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
