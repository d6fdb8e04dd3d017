"""Writes an executed notebook as one HTML page for readers without a kernel: its texts, tables, figures and errors.

Of code it has the cell of parameters. Reads the notebook's file only. A dashboard's widgets need a kernel, so a sentence stands
in their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhfless import __version__
from rlhfless.errors import InputError, missing_extra
from rlhfless.plots.export.html_page import Page, page_path, write_page
from rlhfless.plots.renderer import THEME_STYLE
from rlhfless.system.templates import Markup

FIGURE, HTML, PLAIN = "application/vnd.plotly.v1+json", "text/html", "text/plain"
MARKDOWN, WIDGET = "text/markdown", "application/vnd.jupyter.widget-view+json"
SENTENCE = "Here the notebook has a live view with buttons or sliders, which needs a kernel: run the notebook in JupyterLab."
PURPOSE, LINKS_TITLE = "**What it is for:** ", "The functions used here"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
PROGRESS = re.compile(r"\d%\|")  # of a progress bar, which says nothing when it is over


def write_notebook_page(notebook: str | Path, out: str | Path) -> Path:
    """Write the page of an executed notebook, and return the page's path.

    The title and the purpose of the first cell come first. Sections are the headings of the second level. Picture files and
    their captions are left out: they show what a cell draws to readers who do not run it, and the page has the figure itself.

    Args:
        notebook: the executed ``.ipynb`` file. out: the HTML file; replaced atomically.

    Raises:
        MissingExtra: nbformat is not installed.
        InputError: the file cannot be read as a notebook, or the page cannot be written.
    """
    try:
        import nbformat
    except ImportError as error:
        raise missing_extra("the page of a notebook", error.name, "notebook") from None
    try:
        cells = nbformat.read(notebook, as_version=4).cells
    except (OSError, ValueError, nbformat.reader.NotJSONError):
        raise InputError(f"{notebook}: is not a notebook; a file written by Jupyter is needed") from None
    title, lead = Path(notebook).stem, ""
    head = next((cell.source for cell in cells if cell.cell_type == "markdown"), "")
    for block in _blocks(head):
        title = _inline(block[2:]) if block.startswith("# ") else title
        if block.startswith(PURPOSE):
            purpose = _inline(block.removeprefix(PURPOSE))
            lead = purpose[0].upper() + purpose[1:]
    page = Page(title, lead)
    for cell in cells:
        if cell.cell_type == "markdown":
            if cell.source.startswith(f"## {LINKS_TITLE}"):
                break
            _add_text(page, cell.source)
        elif cell.cell_type == "code":
            if "parameters" in cell.metadata.get("tags", ()):
                page.printed(cell.source)
            for output in cell.outputs:
                _add_output(page, output)
    note = f"Written by rlhfless {__version__}. plotly.js is part of this file; nothing is loaded from elsewhere."
    return write_page(page_path(out, InputError), page.render(note), InputError)


def _add_text(page: Page, source: str) -> None:
    for block in _blocks(source):
        if block.startswith(("# ", PURPOSE, "![")):
            continue
        if block.startswith("## "):
            page.section(_inline(block[3:]))
        elif block.startswith("#"):
            page.heading(_inline(block.lstrip("# ")))
        elif block.startswith("```"):
            page.printed("\n".join(block.splitlines()[1:-1]))
        elif block.startswith("|"):
            head, _, *rows = [[_inline(cell.strip()) for cell in line.strip("|").split("|")] for line in block.splitlines()]
            page.table("", head, rows, text_columns=len(head))
        else:
            for part in _items(block):
                page.text(_inline(part.removeprefix("> ")))


def _blocks(source: str) -> list[str]:
    """Return the paragraphs, headings, tables and lists of Markdown."""
    return [block.strip() for block in re.split(r"\n\s*\n", source) if block.strip()]


def _items(block: str) -> Iterator[str]:
    """Return a paragraph, or the items of a list with their marks."""
    if not re.match(r"(-|\d+\.) ", block):
        yield block
        return
    for item in re.split(r"\n(?=(?:-|\d+\.) )", block):
        yield re.sub(r"^- ", "• ", item)


def _inline(text: str) -> str:
    """Return Markdown without its marks: links become their texts."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(text.split()))
    return re.sub(r"\*\*(.+?)\*\*|`(.+?)`|(?<!\w)\*(.+?)\*(?!\w)", lambda found: next(filter(None, found.groups())), text)


def _add_output(page: Page, output: Mapping[str, Any]) -> None:
    if output["output_type"] == "stream":
        lines = [line.rsplit("\r", 1)[-1] for line in COLOURS.sub("", output["text"]).rstrip().split("\n")]
        text = "\n".join(line for line in lines if not PROGRESS.search(line))
        if text.strip():
            page.printed(text)
        return
    if output["output_type"] == "error":
        page.printed(COLOURS.sub("", f"{output['ename']}: {output['evalue']}"))
        return
    shown = output.get("data", {})
    if FIGURE in shown:
        import plotly.graph_objects as go

        spec = shown[FIGURE]
        parts = {name: spec[name] for name in ("data", "layout", "frames") if name in spec}
        page.figure(go.Figure(parts, skip_invalid=True))
    elif WIDGET in shown:
        if "dashboard" in shown.get(PLAIN, ""):  # progress bars and other widgets are left out
            page.text(SENTENCE)
    elif MARKDOWN in shown:
        _add_text(page, shown[MARKDOWN])
    elif "<script" in shown.get(HTML, "") or shown.get(HTML, "").startswith(THEME_STYLE):
        return  # of renderers: plotly's library, and the colours of JupyterLab's theme
    elif HTML in shown:
        page.html(Markup(shown[HTML]))  # texts of logs are escaped where it is made
    elif PLAIN in shown:
        page.printed(shown[PLAIN])
