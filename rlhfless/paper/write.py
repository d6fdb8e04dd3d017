"""Writes figures into a folder: a page, a table and pictures of each, and an index that lists them with their captions.

Knows names of files; nothing of what figures show. Tables are the same bytes for the same setting; seconds that this machine
took go to ``*_measured.csv``. Pictures need kaleido and a browser (the extra ``export``), pages need nothing.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless import __version__
from rlhfless.errors import InputError
from rlhfless.figure_files import save_all, save_data
from rlhfless.paper.catalogue import chosen
from rlhfless.paper.findings import NEEDED, findings
from rlhfless.paper.parts import Caption, Numbers, PaperFigure
from rlhfless.paper.workloads import Sources
from rlhfless.plots import paper_style
from rlhfless.report_page import CSS, Page, write_page

TITLE = "RLHFless: the paper's figures, made again"
LEAD = (
    "Settings and printed numbers are those of arXiv 2602.22718; every value in a plot is ours. What is a log and what is a "
    "model is said under each figure."
)
FOOTER = f"Written by rlhfless {__version__}; nothing is loaded from elsewhere."
HEAD = {"what": "what", "paper": "paper says", "we_find": "we find", "possible": "what is possible", "why": "why they differ"}
PICTURES: dict[str, Callable[[Any], Any]] = {"png": lambda plotted: plotted, "pdf": paper_style}
"""Suffixes of pictures, and what becomes of a figure before it is drawn so."""


def write_figures(
    out: str | Path,
    names: Sequence[str] = (),
    *,
    fast: bool = False,
    sources: Sources | None = None,
    on_figure: Callable[[PaperFigure[Any]], object] | None = None,
    pictures: Sequence[str] = (),
) -> Path:
    """Make figures and write them; returns the index.

    Args:
        out: the folder; it is made where it is not there.
        names: as in the paper; all without names, and then the table "paper says / we find" too.
        fast: smaller settings, for a first look. sources: where lengths come from; the folder beside the checkout when None.
        on_figure: called before each figure.
        pictures: ``png`` as on the page, ``pdf`` in the style of a paper (170 mm wide, no title, no background), or both; all
            are drawn at the end, in one browser.

    Raises:
        InputError: a name is unknown, or the folder or a picture cannot be written.
        MissingExtra: pictures need kaleido.
    """
    figures, folder = chosen(names), Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; name the folder to write figures into")
    sources = Sources.beside() if sources is None else sources
    found: dict[str, Numbers] = {}
    captions: dict[str, Caption] = {}
    drawn: list[tuple[Any, Path]] = []
    for figure in figures:
        if on_figure is not None:
            on_figure(figure)
        setting = figure.of(fast)
        numbers = found[figure.name] = figure.numbers(setting, sources)
        captions[figure.name] = caption = figure.caption(setting, numbers)
        plotted = figure.plot(setting, numbers)
        _write_figure(folder, figure, numbers, caption, plotted)
        drawn += [(PICTURES[kind](plotted), folder / f"{figure.file_name}.{kind}") for kind in pictures]
    table = findings(found) if all(name in found for name in NEEDED) else None
    if table is not None:
        save_data(table, folder / "findings_measured.csv")
    save_all(drawn)
    return write_page(folder / "index.html", _index(figures, captions, table, fast, pictures), InputError)


def _write_figure(folder: Path, figure: PaperFigure[Any], numbers: Numbers, caption: Caption, plotted: Any) -> None:
    page = Page(figure.title, LEAD)
    page.figure(plotted)
    page.basis(caption.lines())
    write_page(folder / f"{figure.file_name}.html", page.render(FOOTER), InputError)
    save_data(numbers.table, folder / f"{figure.file_name}.csv")
    if numbers.measured is not None:
        save_data(numbers.measured, folder / f"{figure.file_name}_measured.csv")


def _index(
    figures: Sequence[PaperFigure[Any]],
    captions: dict[str, Caption],
    table: pd.DataFrame | None,
    fast: bool,
    pictures: Sequence[str],
) -> str:
    """The list of figures, as a page with links."""
    parts = [f"<h1>{html.escape(TITLE)}</h1>", f'<p class="lead">{html.escape(LEAD)}</p>']
    if fast:
        parts.append("<p>These are the fast settings: smaller batches and fewer cells than the paper's.</p>")
    if table is not None:
        head = "".join(f'<th class="text">{html.escape(name)}</th>' for name in HEAD.values())
        cell = '<td class="text" style="white-space:normal;min-width:9em">{}</td>'
        body = "".join(
            "<tr>" + "".join(cell.format(html.escape(text)) for text in row) + "</tr>" for row in table[list(HEAD)].values
        )
        parts.append(
            f'<h2>Paper says, we find</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )
    for figure in figures:
        name = figure.file_name
        rows = "".join(f"<p><b>{html.escape(k)}:</b> {html.escape(v)}</p>" for k, v in captions[figure.name].lines())
        links = f'<a href="{name}.html">interactive page</a>, <a href="{name}.csv">numbers</a>'
        links += "".join(f', <a href="{name}.{kind}">{kind.upper()}</a>' for kind in pictures)
        parts.append(f'<h2>{html.escape(figure.title)}</h2><p>{links}</p><div class="basis">{rows}</div>')
    body = "\n".join([*parts, f"<footer>{html.escape(FOOTER)}</footer>"])
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(TITLE)}</title>\n'
        f"<style>{CSS}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
