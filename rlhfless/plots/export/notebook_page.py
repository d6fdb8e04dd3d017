"""Collects a notebook's results, section by section, and writes them as one HTML page for readers without a kernel.

A section is a title, a text and an optional plotly figure; notebook cells print it as they add it.
"""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

from rlhfless import __version__
from rlhfless.errors import InputError
from rlhfless.plots.export.html_page import Page, page_path, write_page

WIDTH = 120
PAGE_VARIABLE = "RLHFLESS_PAGE"
"""Environment variable that names the page, whatever the notebook says; ``run_notebook`` sets it."""


class Section(NamedTuple):
    """Text (paragraphs are separated by empty lines) and a plotly figure, or None."""

    text: str
    figure: Any = None


class FiguresPage:
    """A page of sections, in the order in which their titles were first added.

    Titles are unique: adding a title again replaces its section, so a cell that is run again changes the page but not its
    length.
    """

    def __init__(self) -> None:
        self.sections: dict[str, Section] = {}

    def add(self, title: str, text: str, figure: Any = None) -> Any:
        """Add a section to the page; returns its figure, which a cell shows where the call is its last line."""
        paragraphs = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
        self.sections[title] = Section("\n\n".join(paragraph for paragraph in paragraphs if paragraph), figure)
        return figure

    def found(self, title: str, text: str, figure: Any = None) -> Any:
        """Print the text of a section, and ``add`` it; returns its figure."""
        self.add(title, text, figure)
        for paragraph in self.sections[title].text.split("\n\n"):
            print(textwrap.fill(paragraph, WIDTH))
        return figure

    def write(self, title: str, lead: str, out: str | Path) -> Path:
        """Write the sections as one HTML file that needs no network and no kernel; sliders work in it.

        Args:
            title, lead: of the page. out: the file, unless ``RLHFLESS_PAGE`` names another; it is replaced atomically, and its
                folder is made.

        Raises:
            InputError: the file cannot be written.
        """
        path = page_path(os.environ.get(PAGE_VARIABLE) or out, InputError)
        page = Page(title, lead)
        for name, section in self.sections.items():
            page.section(name)
            for paragraph in filter(None, section.text.split("\n\n")):
                page.text(paragraph)
            if section.figure is not None:
                page.figure(section.figure)
        note = f"Written by rlhfless {__version__}. plotly.js is part of this file; nothing is loaded from elsewhere."
        return write_page(path, page.render(note), InputError)
