"""Docstrings of the project as reStructuredText: plain text with code in backticks, lists, and Google's sections."""

from __future__ import annotations

import re
from typing import Any

CODE = re.compile(r"``.+?``|`[^`]+`|(?<![\w*])\*\w(?:[^*\n]*\w)?\*(?![\w*])")
"""Code, and ``*emphasis*``, which stay as they are."""
MARKS = re.compile(r"\\|\*|\||(?<=\w)_(?!\w)")
"""Characters that reStructuredText would take for marks."""
ATTRIBUTES = re.compile(r"((?:\w+, )*\w+): ?")
ITEM = re.compile(r"\s*(-|\d+\.) ")


def as_rst(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Change the lines of a docstring in place: what is no mark is escaped; lists and attributes stand by themselves."""
    made: list[str] = []
    inside = ""  # of a section of attributes: how far its entries are indented
    for line in lines:
        if line.strip() == "Attributes:" and not inside:
            made += ["**Attributes**", ""]
            inside = " " * (len(line) - len(line.lstrip()) + 4)
            continue
        if inside:
            if line.strip() and not line.startswith(inside):
                inside = ""
                made.append("")
            else:
                entry = line.removeprefix(inside)
                found = ATTRIBUTES.match(entry)
                made.append(_escaped(f"- ``{found[1]}``: {entry[found.end() :]}" if found else f"  {entry.strip()}").rstrip())
                continue
        if line.lstrip().startswith(">>>") or line.startswith("        "):
            made.append(line)
            continue
        if ITEM.match(line) and made and made[-1].strip() and not ITEM.match(made[-1]) and not made[-1].startswith(" "):
            made.append("")
        made.append(_escaped(line))
    lines[:] = ["", *made] if what in ("attribute", "property") else made  # napoleon takes words before a colon for a type


def _escaped(line: str) -> str:
    parts, last = [], 0
    for code in CODE.finditer(line):
        parts += [MARKS.sub(r"\\\g<0>", line[last : code.start()]), code[0]]
        last = code.end()
    return "".join([*parts, MARKS.sub(r"\\\g<0>", line[last:])])


def skips(app: Any, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what says nothing of a class: settings of models, and fields of named tuples, which the class describes.

    None leaves the choice to Sphinx.
    """
    is_field = (getattr(thing, "__doc__", None) or "").startswith("Alias for field number")
    return True if is_field or name in ("section", "model_config") else None
