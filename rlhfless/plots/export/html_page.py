"""Builds a page of text, tables and figures as one HTML file that needs no network; plotly.js is included once.

``page.html.j2`` is the page; it escapes all texts. ``page.css`` is its style, ``wrapped.js`` and ``page.js`` are its script.
plotly.js and the data of figures are packed (``packed.py``). Of alternative figures (per step, per policy) only the chosen one
is drawn, and a figure of a folded section when it is opened. Light and dark style follow the reader's system.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhfless.plots.export.packed import packed, packed_once
from rlhfless.plots.export.plotly_bundle import plotly_js
from rlhfless.plots.style import plain
from rlhfless.system.out_files import why_not_written
from rlhfless.system.templates import Markup, render
from rlhfless.trace.storage import write_text


class Page:
    """The parts of a page in the order in which they are added."""

    def __init__(self, title: str, lead: str) -> None:
        self.title, self.lead = title, lead
        self._parts: list[dict[str, Any]] = []
        self._sections: list[str] = []
        self._figures: dict[str, list[str]] = {}
        self._types: set[str] = set()
        self._folded = False

    def section(self, title: str, *, folded: bool = False) -> None:
        """Start a section; of a folded one only the title is seen until the reader opens it."""
        self._sections.append(title)
        self._end_fold()
        self._folded = folded
        self._add("section", title=title, number=len(self._sections), folded=folded)

    def heading(self, title: str) -> None:
        """Add a heading within a section."""
        self._add("heading", title=title)

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._add("text", text=" ".join(text.split()))

    def headline(self, text: str) -> None:
        """Add the sentence that a reader takes away, in large letters."""
        self._add("headline", text=" ".join(text.split()))

    def basis(self, lines: Iterable[tuple[str, str]]) -> None:
        """Add where the section's values come from: pairs of a source (``measured``, ``modelled``, ...) and its values."""
        self._add("basis", lines=[(name, " ".join(text.split())) for name, text in lines])

    def cards(self, cards: Iterable[tuple[str, str]]) -> None:
        """Add large numbers: (name, value with unit)."""
        self._add("cards", cards=list(cards))

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Add names and their meanings or values, in as many columns as fit."""
        self._add("facts", facts=list(facts))

    def options(self, options: Iterable[tuple[str, str]]) -> None:
        """Add options of a command line, which may be several with spaces between them, each with what it says."""
        self._add("options", options=[(names.split(), text) for names, text in options])

    def table(self, caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> None:
        """Add a table.

        Args:
            text_columns: the first so many columns are text, on the left. Of the others, those with words are, too; the rest
                are numbers, on the right.
        """
        cells = [tuple(row) for row in rows]
        texts = [i < text_columns or any(_has_words(row[i]) for row in cells) for i in range(len(head))]
        self._add("table", caption=caption, head=head, rows=cells, text_columns=texts)

    def code(self, caption: str, lines: Iterable[str]) -> None:
        """Add lines to copy, unchanged."""
        self._add("code", caption=caption, text="\n".join(lines))

    def printed(self, text: str) -> None:
        """Add text as a program printed it: lines and columns stay."""
        self._add("printed", text=text)

    def html(self, html: Markup) -> None:
        """Add HTML whose texts are escaped, a table of a notebook's output for example."""
        self._add("html", html=html)

    def figure(self, figure: Any) -> None:
        """Add a plotly figure."""
        self.choice("", {"": figure})

    def choice(self, label: str, figures: Mapping[str, Any], selected: str | None = None) -> None:
        """Add figures of which the reader chooses one; ``selected`` (the first when None) is drawn first."""
        name, titles = f"figure-{len(self._figures) + 1}", list(figures)
        self._add("figure", name=name, label=label, titles=titles, selected=titles[0] if selected is None else selected)
        self._types |= {kind for figure in figures.values() for kind in _types(figure)}
        self._figures[name] = [figure.to_json() for figure in figures.values()]

    def render(self, footer: str) -> str:
        """Return the whole page as HTML."""
        self._end_fold()
        page = render(
            "plots/export/page.html.j2",
            title=self.title,
            lead=self.lead,
            sections=self._sections,
            parts=self._parts,
            footer=footer,
            **_drawn(self._figures, self._types),
        )
        return page.encode("utf-8", "replace").decode("utf-8")

    def _end_fold(self) -> None:
        if self._folded:
            self._add("end of fold")
        self._folded = False

    def _add(self, kind: str, **values: Any) -> None:
        self._parts.append({"kind": kind, **values})


def _has_words(cell: str) -> bool:
    """Whether a cell of a table is words, and not a number with its unit, a range of numbers or nothing."""
    return cell[:1].isalpha() and not cell.startswith(("at least", "at most", "less than", "none", "unknown"))


def figure_page(figure: Any) -> str:
    """Return a page that holds only a plotly figure, drawn as a page of several parts draws it."""
    title = plain(figure.layout.title.text or "figure")
    page = render("plots/export/figure.html.j2", title=title, **_drawn({"figure": [figure.to_json()]}, _types(figure)))
    return page.encode("utf-8", "replace").decode("utf-8")


def _types(figure: Any) -> set[str]:
    """Return the types of the traces of a figure and of its frames."""
    return {trace.type for part in (figure, *figure.frames) for trace in part.data}


def _drawn(figures: Mapping[str, Sequence[str]], types: set[str]) -> dict[str, str]:
    """Return what a page unpacks: the JSON of the figures to choose from, by the ids of their elements, and plotly.js."""
    joined = ",".join(f'"{name}":[{",".join(alternatives)}]' for name, alternatives in figures.items())
    return {"figures": packed(f"{{{joined}}}"), "plotly_js": packed_once(plotly_js(types))}


def page_path(out: str | Path, refusal: type[Exception]) -> Path:
    """Return the path of a page; raise ``refusal`` where it is a folder, or cannot be written."""
    path = Path(out)
    if path.is_dir() or not path.name:
        raise refusal(f"{path}: is a folder; name the HTML file to write")
    if why := why_not_written(path):
        raise refusal(f"{path}: {why}; a writable folder is needed")
    return path


def write_page(path: Path, text: str, refusal: type[Exception]) -> Path:
    """Write a page atomically and make its folder; raise ``refusal`` where that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refusal(f"{path.parent}: cannot be made ({error.strerror}); a writable folder is needed") from None
    write_text(path, text)
    return path
