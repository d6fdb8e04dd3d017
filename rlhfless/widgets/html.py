"""HTML fragments of the dashboards: cards, tables and texts, from the macros of ``parts.html.j2``. All text is escaped there.

The styles are in ``panes.css``, for light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rlhfless.system.templates import Markup, macros

LONGEST = 4_000  # characters of a text of a log that are shown


class Choice(NamedTuple):
    """A button, for mouse and keyboard, that sends its number to the dashboard.

    Attributes:
        label: the button's text. number: what it sends. chosen: whether it is the current selection.
    """

    label: str
    number: int
    chosen: bool = False


class Card(NamedTuple):
    """A large number with its label, and how it changed.

    Attributes:
        name: the label. value: the number as text. changes: (text, ``better``, ``worse`` or nothing) of each comparison.
    """

    name: str
    value: Any
    changes: Sequence[tuple[str, str]] = ()


def cards(facts: Iterable[Card]) -> Markup:
    """Return large numbers with their labels and changes."""
    return _made("cards", list(facts))


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "", marks: Sequence[Sequence[str]] = ()) -> Markup:
    """Return a table; the first column is text, the others are numbers as text. A cell may be a ``Choice``.

    Args:
        marks: of every row and cell ``better``, ``worse`` or nothing.
    """

    def cells(row: Sequence[Any], marks: Sequence[str] = ()) -> list[tuple[Any, str]]:
        classes = [" ".join(filter(None, ("" if i else "text", marks[i] if marks else ""))) for i in range(len(row))]
        return list(zip([choice(button) if isinstance(button, Choice) else button for button in row], classes, strict=True))

    rows = list(rows)
    body = [cells(row, marks[i] if marks else ()) for i, row in enumerate(rows)]
    scrolls = not any(isinstance(one, Choice) for row in rows for one in row)  # buttons scroll into view by themselves
    return _made("table", cells(head), body, caption, scrolls)


def choice(button: Choice) -> Markup:
    """Return a button that sends its number to the dashboard."""
    return _made("choice", button)


def paragraph(text: str) -> Markup:
    """Return a line of text."""
    return _made("paragraph", text)


def response_name(prompt_id: str, sample: int) -> Markup:
    """Return the name of a response: its prompt and sample."""
    return _made("prompt", prompt_id[:80], sample)


def quoted(title: str, text: str) -> Markup:
    """Return a text of a log, unchanged, in its own box; a very long text is truncated with a note."""
    rest = f"\n… and {len(text) - LONGEST:,} more characters" if len(text) > LONGEST else ""
    return _made("quoted", title, text[:LONGEST] + rest)


def problem(text: str) -> Markup:
    """Return an error message as a sentence."""
    return _made("problem", text)


def copies(texts: Sequence[tuple[str, str, str]]) -> Markup:
    """Return buttons that copy texts, and the texts to read.

    Args:
        texts: (label of the button, name of the element, text).
    """
    return _made("copies", texts)


def reload(sentence: str) -> Markup:
    """Return a sentence with a link that reloads the page."""
    return _made("reload", sentence)


def _made(macro: str, *values: Any) -> Markup:
    made: Markup = getattr(macros("widgets/parts.html.j2"), macro)(*values)
    return made
