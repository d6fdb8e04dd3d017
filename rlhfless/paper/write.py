"""Writes figures into a folder: a page, a picture and a table of each, an index with the findings of all, and its README.md.

Tables are the same bytes for the same setting; seconds that a machine took go to ``*_measured.csv``. Runs that figures
share, and parts of those that take long, are kept in the folder ``runs``: a command that was stopped continues there. Runs of
another version of the program are removed from it.
Pictures need kaleido and a browser (the extra ``export``), pages need nothing.
"""

from __future__ import annotations

import html
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless import __version__
from rlhfless.errors import InputError
from rlhfless.paper.catalogue import FIGURES, chosen
from rlhfless.paper.figure import Numbers, PaperFigure
from rlhfless.paper.runs import Runs
from rlhfless.paper.workloads import Sources
from rlhfless.plots import paper_style
from rlhfless.plots.export.files import save_all, save_data
from rlhfless.plots.export.html_page import Page, write_page
from rlhfless.plots.export.render import NoPicture
from rlhfless.system.templates import Markup, render
from rlhfless.trace.storage import write_text
from solver.model.plurals import counted

TITLE = "The papers' figures, made again"
LEAD = (
    "Settings and printed numbers come from {papers}. Every value in a plot was computed here. The text under each figure says "
    "which lengths are a log and which come from a model, and why we differ."
)
READING = (
    "The naive system is the paper's own code with all its ideas switched off: 3 actors (replicas of the model that generate "
    "responses) keep their GPUs until the step is over. The bound is a lower bound on time and cost: no schedule that "
    "decodes one token per pass is below it, even with every length known beforehand. A policy's share of the headroom says "
    "how far it goes from the naive system (0 %) to the bound (100 %), in time and cost together. It is above 100 % where the "
    "learner may be larger than the naive system's, as that of elastic naive: the bound is for a learner of the naive system's "
    "size."
)
FAMILIES = (
    "The bound of whole steps assumes that preparation and learning start when generation is over, on as many GPUs as in the "
    "naive system: 8 of the 16 L40S with the 3B model, 4 with the 7B model. A second bound gives them all GPUs; it allows more "
    "speed and the same saving. Both bounds assume perfect scaling of learning: the same GPU-seconds on any number of GPUs. "
    "Neither bound covers a learner that starts before generation is over; that of `rlhfless figures 10_all` does. "
    "Elastic naive is the comparator for the second bound: it generates as the naive system does, releases all GPUs when "
    "generation is over, then prepares and learns on all of them."
)
HOLDS = (
    "A printed number holds where ours reaches it (the best case where the paper says 'up to'), a statement where our "
    "numbers show it: in all cases (yes), in some (in part) or in none (no). The bound says what any schedule could reach in "
    "the same setting."
)
FAST = "These are the fast settings: smaller batches and fewer cells than the paper's."
FOOTER = f"Written by rlhfless {__version__}; nothing is loaded from elsewhere."
HEAD = ("figure", "what", "paper", "ours", "bound", "holds")
PICTURES: dict[str, Callable[[Any], Any]] = {"png": lambda plotted: plotted, "pdf": partial(paper_style, title=False)}
"""Suffixes of pictures, and what becomes of a figure before it is drawn so."""


def findings(numbers_of: Mapping[str, Numbers]) -> pd.DataFrame:
    """Return the table of findings, ``figure`` and the columns of ``Finding``.

    Args:
        numbers_of: numbers by the figure's name.
    """
    rows = [(name, *row) for name, numbers in numbers_of.items() for row in chosen([name])[0].findings(numbers)]
    return pd.DataFrame(rows, columns=list(HEAD))


def lead(figures: Iterable[PaperFigure]) -> str:
    """Return the first sentences of a page with these figures."""
    return LEAD.format(papers=" and ".join(dict.fromkeys(figure.paper for figure in figures)))


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
        names: as in the paper; all of RLHFless without names, and then the findings are written as ``README.md``, too.
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
    figures, folder, say = chosen(names), Path(out), on_line or (lambda line: None)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; name the folder to write figures into")
    if seeds is not None:
        for figure in figures:
            figure.with_seeds(seeds)
    sources = Sources.default() if sources is None else sources
    runs = Runs(sources, folder / "runs", on_line)
    runs.prune()
    numbers_of: dict[str, Numbers] = {}
    drawn: list[tuple[Any, Path]] = []
    index = folder / "index.html"
    for place, figure in enumerate(figures, start=1):
        say(f"figure {place} of {len(figures)}: {figure.title}")
        numbers = numbers_of[figure.name] = figure.compute(runs, fast, seeds)
        for line in figure.printed(numbers):
            say(line)
        plotted = figure.drawings(numbers)
        written = _write_figure(folder, figure, numbers, plotted.values(), sources.differs)
        write_page(index, _index(figures[:place], numbers_of, fast, sources.differs, missing=len(figures) - place), InputError)
        say(f"    wrote {written}")
        drawn += [(PICTURES[kind](one), folder / f"{name}.{kind}") for name, one in plotted.items() for kind in pictures]
    table = findings(numbers_of)
    if len(table):
        save_data(table, folder / "findings_measured.csv")
    if not names:
        logs = ("--logs", str(sources.logs)) if sources.logs not in (None, Sources.default().logs) else ()
        command = ("rlhfless", "figures", *(("--fast",) if fast else ()), *logs, "-o", str(out))
        write_text(folder / "README.md", markdown(table, shlex.join(command)))
    try:
        save_all(drawn)
    except NoPicture as error:
        if on_no_pictures is None:
            raise
        on_no_pictures(str(error))
        return index
    return write_page(index, _index(figures, numbers_of, fast, sources.differs, pictures), InputError)


def _write_figure(folder: Path, figure: PaperFigure, numbers: Numbers, plotted: Iterable[Any], differs: str) -> Path:
    """Write the page and the tables of a figure; returns the path of the page."""
    page = Page(figure.title, lead([figure]))
    if differs:
        page.text(differs)
    for one in plotted:
        page.figure(one)
    page.basis(figure.text.lines())
    table = findings({figure.name: numbers})
    if len(table):
        page.html(Markup(render("paper/findings.html.j2", head=HEAD[1:], rows=table[list(HEAD[1:])].to_numpy().tolist())))
    written = write_page(folder / f"{figure.file_name}.html", page.render(FOOTER), InputError)
    save_data(numbers.table, folder / f"{figure.file_name}.csv")
    if numbers.measured is not None:
        save_data(numbers.measured, folder / f"{figure.file_name}_measured.csv")
    return written


def _index(
    figures: Sequence[PaperFigure], numbers_of: Mapping[str, Numbers], fast: bool, differs: str, pictures: Sequence[str] = (),
    missing: int = 0,
) -> str:  # fmt: skip
    """Return the page with the findings and the list of figures.

    Args:
        differs: a sentence where logs are missing (``Sources.differs``). missing: number of figures not made yet.
    """
    unfinished = f"{counted(missing, 'figure')} still missing: this page is of a command that runs or was stopped."
    table = findings(numbers_of)
    ours = any(figure.name in FIGURES for figure in figures)
    return render(
        "paper/index.html.j2",
        title=TITLE,
        lead=lead(figures),
        paragraphs=[
            *([unfinished] if missing else []),
            *([READING, FAMILIES] if ours else []),
            *([HOLDS] if len(table) else []),
            *([FAST] if fast else []),
            *([differs] if differs else []),
        ],
        head=HEAD,
        rows=table.to_numpy().tolist(),
        figures=[(figure.title, figure.file_name, figure.text.lines(), _pictures(figure, pictures)) for figure in figures],
        footer=FOOTER,
    )


def _pictures(figure: PaperFigure, kinds: Sequence[str]) -> list[tuple[str, str]]:
    """Return words and files of a figure's pictures."""
    parts = {"": ""} if figure.below is None else {" (a)": "", " (b)": "_b"}
    return [(f"{kind.upper()}{part}", f"{figure.file_name}{end}.{kind}") for kind in kinds for part, end in parts.items()]


def markdown(findings: pd.DataFrame, command: str) -> str:
    """Return the findings as Markdown, with the command that measured them."""
    made = (
        f"Every number below was written by `{command}`, with the planning times of the machine that ran it. The same command "
        "makes the figures, with texts and an index; `notebooks/09_papers.ipynb` shows both. Logs are public and "
        "no part of the project (`--logs FOLDER`); without a log, a stated length model takes its place."
    )
    cells = [[_cell(text) for text in row] for row in findings.to_numpy().tolist()]
    lines = [" | ".join(row) for row in (HEAD, ["---"] * len(HEAD), *cells)]
    table = "\n".join(f"| {line} |" for line in lines)
    return "\n\n".join([f"# {TITLE}", lead(FIGURES.values()), READING, FAMILIES, HOLDS, made, table]) + "\n"


def _cell(text: str) -> str:
    """Escape text for a cell of a Markdown table; nothing is a dash."""
    escaped = html.escape(text, quote=False).replace("|", "\\|").replace("~", "\\~").replace("*", "\\*").replace("_", "\\_")
    return escaped or "-"
