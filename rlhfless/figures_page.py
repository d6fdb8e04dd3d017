"""Sections of text and figures as one HTML page: what a notebook leaves for readers without a kernel.

Knows pages and files; nothing of what the figures show.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from rlhfless import __version__
from rlhfless.errors import InputError
from rlhfless.report_page import Page, page_path, write_page


class Section(NamedTuple):
    """One section: its title, its text (paragraphs are separated by empty lines) and a plotly figure, or None."""

    title: str
    text: str
    figure: Any = None


def write_figures_page(title: str, lead: str, sections: Iterable[Section], out: str | Path) -> Path:
    """Write ``sections`` as one HTML file that needs no network and no kernel; sliders work in it.

    Args:
        title, lead: of the page. out: the file; it is replaced in one go, and its folder is made.

    Raises:
        InputError: the file cannot be written.
    """
    path = page_path(out, InputError)
    page = Page(title, lead)
    for section in sections:
        page.section(section.title)
        for paragraph in section.text.split("\n\n"):
            page.text(paragraph)
        if section.figure is not None:
            page.figure(section.figure)
    text = page.render(f"Written by rlhfless {__version__}. plotly.js is part of this file; nothing is loaded from elsewhere.")
    return write_page(path, text, InputError)
