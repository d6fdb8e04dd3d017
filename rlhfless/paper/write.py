"""Writes the figures into a folder: a page, a picture and a table of each, and an index with captions and the two tables.

Tables are the same bytes for the same setting; seconds that this machine took go to ``*_measured.csv``. Pictures need kaleido
and a browser (the extra ``export``), pages need nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from rlhfless.errors import InputError
from rlhfless.paper.catalogue import chosen
from rlhfless.paper.index import FOOTER, PRINTED, claims, findings, lead, markdown, page
from rlhfless.paper.paper_figure import Numbers, PaperFigure
from rlhfless.paper.parts import kept_parts, remove_parts
from rlhfless.paper.workloads import Sources
from rlhfless.plots import paper_style
from rlhfless.plots.export.files import save_all, save_data
from rlhfless.plots.export.html_page import Page, write_page
from rlhfless.plots.export.render import NoPicture
from rlhfless.trace.storage import write_text

S = TypeVar("S")
PICTURES: dict[str, Callable[[Any], Any]] = {"png": lambda plotted: plotted, "pdf": partial(paper_style, title=False)}
"""Suffixes of pictures, and what becomes of a figure before it is drawn so."""


def write_figures(
    out: str | Path,
    names: Sequence[str] = (),
    *,
    fast: bool = False,
    sources: Sources | None = None,
    on_line: Callable[[str], object] | None = None,
    seeds: int | None = None,
    pictures: Sequence[str] = (),
    on_no_pictures: Callable[[str], object] | None = None,
) -> Path:
    """Compute figures and write them; returns the path of the index.

    The index is written after each figure, so that a reader who stops has a page.

    Args:
        out: the folder; it is made where it does not exist.
        names: as in the paper; all of RLHFless without names, and then the table "paper says / we find" too, in the index and
            as ``README.md``.
        fast: smaller settings, for a quick preview. sources: of lengths; the folder next to the checkout when None.
        on_line: called before each figure ("figure 2 of 14: " and the title), after it with the page that was written, after
            each part of a figure that takes long, and with the lines that a figure prints, where it has some.
        seeds: in place of the number of seeds of figures that have some.
        pictures: ``png`` as on the page, ``pdf`` in the style of a paper (170 mm wide, no title, no background), or both. All
            are drawn at the end, in one browser, when everything else is written.
        on_no_pictures: called with the reason where pictures cannot be drawn; without it that is an error.

    Raises:
        InputError: a name is unknown, a figure has no seeds, or a file cannot be written.
        NoPicture: pictures cannot be drawn. MissingExtra: they need kaleido. Pages, tables and the index are written.
    """
    figures, folder = chosen(names), Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; name the folder to write figures into")
    sources = Sources.default() if sources is None else sources
    numbers_of: dict[str, Numbers] = {}
    lines: dict[str, list[tuple[str, str]]] = {}
    drawn: list[tuple[Any, Path]] = []
    for place, figure in enumerate(figures, start=1):
        if on_line is not None:
            on_line(f"figure {place} of {len(figures)}: {figure.title}")
        setting = figure.of(fast, seeds)
        parts = folder / f"{figure.file_name}_parts"
        if figure.parts is None:
            numbers = figure.numbers(setting, sources)
        else:
            numbers = Numbers(pd.concat(kept_parts(figure.parts(setting, sources), parts, on_line), ignore_index=True))
        numbers_of[figure.name] = numbers
        lines[figure.name] = described(figure, setting, numbers)
        if on_line is not None:
            for line in figure.printed(setting, numbers):
                on_line(line)
        plotted = figure.plot(setting, numbers)
        written = _write_figure(folder, figure, numbers, lines[figure.name], plotted, sources.differs)
        remove_parts(parts)
        made = page(figures[:place], lines, None, claims(numbers_of), fast, sources.differs, still_missing=len(figures) - place)
        write_page(folder / "index.html", made, InputError)
        if on_line is not None:
            on_line(f"    wrote {written}")
        drawn += [(PICTURES[kind](plotted), folder / f"{figure.file_name}.{kind}") for kind in pictures]
    table = findings(numbers_of) if all(name in numbers_of for name in PRINTED) else None
    stated = claims(numbers_of)
    for name, rows in (("findings", table), ("claims", stated)):
        if rows is not None and len(rows):
            save_data(rows, folder / f"{name}_measured.csv")
    if table is not None:
        command = "rlhfless figures" + (" --fast" if fast else "") + " -o out/figures"
        write_text(folder / "README.md", markdown(table, stated, command))
    index = write_page(folder / "index.html", page(figures, lines, table, stated, fast, sources.differs), InputError)
    try:
        save_all(drawn)
    except NoPicture as error:
        if on_no_pictures is None:
            raise
        on_no_pictures(str(error))
        return index
    return write_page(index, page(figures, lines, table, stated, fast, sources.differs, pictures), InputError)


def described(figure: PaperFigure[S], setting: S, numbers: Numbers) -> list[tuple[str, str]]:
    """Return the caption as (heading, text), and for each order or trend that the paper states whether it holds."""
    claims_text = [
        ("Does it hold", f"{claim.paper}: {claim.holds}. {claim.we_find[0].upper()}{claim.we_find[1:]}.")
        for claim in figure.claims(numbers)
    ]
    return figure.caption(setting, numbers).lines() + claims_text


def _write_figure(
    folder: Path, figure: PaperFigure[Any], numbers: Numbers, lines: list[tuple[str, str]], plotted: Any, differs: str
) -> Path:
    """Write the page and the tables of a figure; returns the path of the page."""
    figure_page = Page(figure.title, lead([figure]))
    if differs:
        figure_page.text(differs)
    figure_page.figure(plotted)
    figure_page.basis(lines)
    written = write_page(folder / f"{figure.file_name}.html", figure_page.render(FOOTER), InputError)
    save_data(numbers.table, folder / f"{figure.file_name}.csv")
    if numbers.measured is not None:
        save_data(numbers.measured, folder / f"{figure.file_name}_measured.csv")
    return written
