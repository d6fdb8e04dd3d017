"""HTML fragments of the dashboards: cards, tables and texts. All text arguments are escaped here.

The styles are in ``panes.css``, for light and dark pages.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

LONGEST = 4_000  # characters of a text of a log that are shown


class Choice(NamedTuple):
    """A button, for mouse and keyboard, that sends its number to the dashboard.

    Attributes:
        label: the button's text. number: what it sends. chosen: whether it is the current selection.
    """

    label: str
    number: int
    chosen: bool = False


def cards(facts: Iterable[tuple[str, Any]]) -> str:
    """Return large numbers with their labels."""
    parts = "".join(
        f"<div class='rlhfless-card'><b>{html.escape(str(value))}</b><span>{html.escape(name)}</span></div>"
        for name, value in facts
    )
    return f"<div class='rlhfless-cards'>{parts}</div>"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "", marks: Sequence[Sequence[str]] = ()) -> str:
    """Return a table; the first column is text, the others are numbers as text. A cell may be a ``Choice``.

    Args:
        marks: of every row and cell ``better``, ``worse`` or nothing.
    """

    def cell(tag: str, value: Any, column: int, mark: str = "") -> str:
        classes = " ".join([*(["text"] if column == 0 else []), *([mark] if mark else [])])
        named = f" class='{classes}'" if classes else ""
        inner = choice(value) if isinstance(value, Choice) else html.escape(str(value))
        return f"<{tag}{named}>{inner}</{tag}>"

    top = "".join(cell("th", name, i) for i, name in enumerate(head))
    body = "".join(
        "<tr>" + "".join(cell("td", v, i, marks[r][i] if marks else "") for i, v in enumerate(row)) + "</tr>"
        for r, row in enumerate(rows)
    )
    said = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<div class='rlhfless-scroll'><table>{said}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"


def choice(one: Choice) -> str:
    """Return a button that sends its number to the dashboard."""
    pressed = "true" if one.chosen else "false"
    return f"<button type='button' data-tell='{one.number:d}' aria-pressed='{pressed}'>{html.escape(one.label)}</button>"


def paragraph(text: str) -> str:
    """Return a line of text."""
    return f"<div class='text'>{html.escape(text)}</div>"


def quoted(title: str, text: str) -> str:
    """Return a text of a log, unchanged, in its own box; a very long text is truncated with a note."""
    rest = f"\n… and {len(text) - LONGEST:,} more characters" if len(text) > LONGEST else ""
    return f"<b>{html.escape(title)}</b><pre dir='auto'>{html.escape(text[:LONGEST] + rest)}</pre>"


def problem(text: str) -> str:
    """Return an error message as a sentence."""
    return f"<div class='rlhfless-problem' role='alert'>{html.escape(text)}</div>"


def copies(texts: Sequence[tuple[str, str, str]]) -> str:
    """Return buttons that copy texts, and the texts to read.

    Args:
        texts: (label of the button, name of the element, text).
    """
    buttons = "".join(
        f"<button type='button' data-copy='.{html.escape(name)}'>{html.escape(label)}</button>" for label, name, _ in texts
    )
    shown = "".join(
        f"<details><summary>{html.escape(label)}: the text</summary>"
        f"<pre class='{html.escape(name)}'>{html.escape(text)}</pre></details>"
        for label, name, text in texts
    )
    return buttons + shown
