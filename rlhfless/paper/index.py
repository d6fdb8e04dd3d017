"""The index of the reproduced figures: the two tables and all captions, as an HTML page and as Markdown.

Each figure makes its own rows and claims; this file collects them. A reader who knows only the paper's abstract should be able
to read the tables.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from rlhfless import __version__
from rlhfless.paper.catalogue import FIGURES, chosen
from rlhfless.paper.paper_figure import Claim, Numbers, PaperFigure, Row
from rlhfless.system.templates import render
from solver.model.plurals import counted

TITLE = "RLHFless: the paper's figures, made again"
LEAD = (
    "Settings and printed numbers come from {papers}. Every value in a plot was computed here. The text under each "
    "figure says which lengths are a log and which come from a model."
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
FAST = "These are the fast settings: smaller batches and fewer cells than the paper's."
FOOTER = f"Written by rlhfless {__version__}; nothing is loaded from elsewhere."
PRINTED = ("10", "16", "12", "3c", "13", "14", "15")
"""Figures with rows, in the table's order: the numbers of the paper's abstract come first."""
HEAD = ("what", "paper says", "we find", "what is possible")
"""Of the table of printed numbers; what to make of each stands below the table, in plain words."""
CLAIMS_HEAD = ("figure", "the paper states", "holds here", "what we find")
Lines = Sequence[tuple[str, str]]


def lead(figures: Iterable[PaperFigure[Any]]) -> str:
    """Return the first sentences of a page with these figures."""
    return LEAD.format(papers=" and ".join(dict.fromkeys(figure.paper for figure in figures)))


def findings(numbers_of: Mapping[str, Numbers]) -> pd.DataFrame:
    """Return ``figure`` and the columns of ``Row``, one row per printed number.

    Args:
        numbers_of: numbers of at least the figures of ``PRINTED``, by name.

    Raises:
        KeyError: a figure's numbers are missing.
    """
    rows = [(name, *row) for name in PRINTED for row in FIGURES[name].rows(numbers_of[name])]
    return pd.DataFrame(rows, columns=["figure", *Row._fields])


def claims(numbers_of: Mapping[str, Numbers]) -> pd.DataFrame:
    """Return ``figure`` and the columns of ``Claim``, one row per statement of the figures in ``numbers_of``."""
    rows = [(name, *claim) for name, numbers in numbers_of.items() for claim in chosen([name])[0].claims(numbers)]
    return pd.DataFrame(rows, columns=["figure", *Claim._fields])


class Table(NamedTuple):
    """A table of texts. below: what each row comes to, as the row's name and a text; empty where the rows say it all."""

    title: str
    head: Sequence[str]
    rows: list[list[str]]
    below: Sequence[tuple[str, str]] = ()


def tables(findings: pd.DataFrame | None, claims: pd.DataFrame) -> list[Table]:
    """Return the tables; the findings are None where figures are missing."""
    tables: list[Table] = []
    if findings is not None:
        rows = [Row(*row[1:]) for row in findings.to_numpy().tolist()]
        below = [(f"{row.what[0].upper()}{row.what[1:]}", row.plain) for row in rows]
        tables.append(Table("Paper says, we find", HEAD, [list(row[:-1]) for row in rows], below))
    if len(claims):
        tables.append(Table("What the paper states as an order or a trend", CLAIMS_HEAD, claims.to_numpy().tolist()))
    return tables


def page(
    figures: Iterable[PaperFigure[Any]], captions: Mapping[str, Lines], findings: pd.DataFrame | None, claims: pd.DataFrame,
    fast: bool, differs: str, pictures: Sequence[str] = (), still_missing: int = 0,
) -> str:  # fmt: skip
    """Return the list of figures, as a page with links.

    Args:
        differs: a sentence where logs are missing (``Sources.differs``). still_missing: number of figures not made yet.
    """
    figures = list(figures)
    unfinished = f"{counted(still_missing, 'figure')} still missing: this page is of a command that runs or was stopped."
    ours = any(figure.name in FIGURES for figure in figures)
    return render(
        "paper/index.html.j2",
        title=TITLE,
        lead=lead(figures),
        paragraphs=[
            *([unfinished] if still_missing else []),
            *([READING, FAMILIES] if ours else []),
            *([FAST] if fast else []),
            *([differs] if differs else []),
        ],
        tables=tables(findings, claims),
        figures=[(figure.title, figure.file_name, captions[figure.name]) for figure in figures],
        pictures=pictures,
        footer=FOOTER,
    )


def markdown(findings: pd.DataFrame | None, claims: pd.DataFrame, command: str) -> str:
    """Return the two tables as Markdown, with the command that measured them."""
    made = (
        f"Every number below was written by `{command}`, with the planning times of the machine that ran it. The same command "
        "makes the figures, with captions and an index; `notebooks/09_papers.ipynb` shows both. Logs are public and "
        "no part of the project (`--logs FOLDER`); without a log, a stated length model takes its place."
    )
    parts = [f"# {TITLE}", lead(FIGURES.values()), READING, FAMILIES, made]
    for table in tables(findings, claims):
        cells = [[_cell(text) for text in row] for row in table.rows]
        lines = [" | ".join(row) for row in (table.head, ["---"] * len(table.head), *cells)]
        parts.append(f"## {table.title}\n\n" + "\n".join(f"| {line} |" for line in lines))
        if table.below:
            plain = "\n".join(f"- **{_cell(what)}**: {_cell(text)}" for what, text in table.below)
            parts.append(f"In plain words:\n\n{plain}")
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    """Escape text for a cell of a Markdown table."""
    return html.escape(text, quote=False).replace("|", "\\|").replace("~", "\\~").replace("*", "\\*").replace("_", "\\_")
