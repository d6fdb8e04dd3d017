"""Renders the Jinja2 templates (``*.html.j2``) that lie beside the modules of the package; every text in them is escaped.

Macros return ``Markup``: HTML whose texts are escaped. A template inserts ``Markup`` as it is and escapes every other string,
and so does ``+`` between the two. So text of a log cannot become markup by an oversight.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup as Markup

PACKAGE = Path(__file__).parents[1]
LONGEST_LINE = 300


def render(template: str, **values: Any) -> str:
    """Return the text of a rendered template.

    Args:
        template: path of the file in the package, ``report/frame.html.j2`` for example. values: by the names that it uses.
    """
    return _environment().get_template(template).render(values)


def macros(template: str) -> Any:
    """Return the macros of a template as the attributes of an object; each is a function that returns ``Markup``."""
    return _environment().get_template(template).module


@cache
def _environment() -> Environment:
    """Return the environment of all templates: a name without a value is an error, ``verbatim`` and ``line`` are known."""
    made = Environment(
        loader=FileSystemLoader(PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
    made.globals["verbatim"] = _verbatim
    made.filters["line"] = _line
    return made


def _verbatim(name: str) -> Markup:
    """Return a style sheet or a script of the package as it is."""
    return Markup((PACKAGE / name).read_text("utf-8"))


def _line(text: Any) -> str:
    """Return text as one line that is not longer than a table cell should be."""
    line = " ".join(str(text).split())
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"
