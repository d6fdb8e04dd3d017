"""Writes figures as files: an HTML page, an image, or the data as csv.

    from rlhfless.plots import paper_style, save, save_data

    save(figure, "out/plane.html")                           # works everywhere, also without a network
    save(figure, "out/plane.png", dpi=300)                   # PNG, SVG and PDF: the extra ``export`` and Chromium or Chrome
    save(paper_style(figure, width_mm=85), "out/plane.pdf")  # 85 mm wide, texts of 8 pt, no background
    save_data(figure, "out/plane.csv")                       # the numbers that it draws: figure.table

The same figure gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pandas as pd
import plotly.graph_objects as go
from plotly.basedatatypes import BaseFigure

from rlhfless.errors import InputError
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.export.html_page import figure_page
from rlhfless.plots.export.render import PX_PER_INCH, ImageRequest, draw
from rlhfless.trace.storage import replace_file

PICTURES = (".png", ".svg", ".pdf")
PAGES = (".html", ".htm")
WIDTH_PX, HEIGHT_PX = 1100, 450
"""Of figures that fit themselves to a page, as a picture."""
DPI = 2 * PX_PER_INCH
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


@runtime_checkable
class HasFrame(Protocol):
    """Whatever has its data as a table: plans, fronts, comparisons."""

    def to_frame(self) -> pd.DataFrame:
        """Return the data."""
        ...


def save(figure: go.Figure, path: str | Path, *, dpi: float = DPI, background: str | None = "white") -> Path:
    """Write a figure; the suffix selects the format.

    PDF and SVG consist of lines and texts. Exceptions are point clouds drawn by WebGL, and hatches in a PDF. Browsers print
    both as pixels, 96 per inch, and they are most of the file's bytes. An SVG has hatches as lines.

    Args:
        figure: any plotly figure.
        path: ``.html`` is a page that needs no network, ``.png``, ``.svg`` and ``.pdf`` are images; its folder is made, and the
            file is replaced atomically.
        dpi: pixels per inch of a PNG, at 96 of the figure's own pixels per inch: 192 is sharp on screens, print wants 300.
        background: of a PNG, because viewers put any colour behind transparent pixels; None keeps it transparent. SVG and PDF
            have the figure's own background, which is none.

    Returns:
        The path.

    Raises:
        MissingExtra: an image needs kaleido.
        InputError: no figure, another suffix, or the file cannot be written. NoPicture: there is no browser, or it cannot draw
            this.
    """
    return save_all([(figure, path)], dpi=dpi, background=background)[0]


def save_all(
    figures: Iterable[tuple[go.Figure, str | Path]], *, dpi: float = DPI, background: str | None = "white"
) -> list[Path]:
    """Write several figures, all images in one browser; nothing is written where one of them cannot be drawn.

    Args:
        figures: each with its path; for the other arguments and the exceptions see ``save``.
    """
    wanted = [(figure, _checked(figure, path)) for figure, path in figures]
    if not 10 <= dpi <= 2400:
        raise InputError(f"dpi is {dpi:g}; 10 to 2400 pixels per inch are needed")
    drawings = [_drawing(figure, path, dpi, background) for figure, path in wanted if path.suffix.lower() in PICTURES]
    drawn = iter(draw(drawings) if drawings else ())
    for figure, path in wanted:
        _write(path, next(drawn) if path.suffix.lower() in PICTURES else figure_page(figure).encode("utf-8"))
    return [path for _, path in wanted]


def save_data(shown: DataFigure | HasFrame | pd.DataFrame, path: str | Path) -> Path:
    """Write the numbers that a figure draws, or another table, as csv; columns have their units in their names.

    Numbers have nine digits. A text that a spreadsheet would take for a formula (it begins with ``=``, ``+``, ``-``, ``@`` or
    white space and is no number) gets a leading apostrophe. Names come from other people's logs, and users open these tables by
    double click.

    Args:
        shown: a figure of this package, whose ``table`` is written; anything with ``to_frame``; or a table.
        path: a file that ends with ``.csv``; its folder is made, and the file is replaced atomically.

    Raises:
        InputError: the path is no ``.csv``, or cannot be written; it has no table, such as another figure of plotly.
    """
    path = Path(path)
    if path.suffix.lower() != ".csv" or path.is_dir():
        raise InputError(f"{path}: the data behind a figure is written as csv; name a file that ends with .csv")
    table = _table_of(shown)
    if table is None:
        raise InputError(
            f"{path}: a {type(shown).__name__} has no table; a figure of rlhfless.plots is needed, such as plot_plane(...)"
        )
    safe = table.rename(columns=_no_formula).apply(
        lambda column: column.map(_no_formula) if column.dtype.kind not in "biufM" else column
    )
    _write(path, safe.to_csv(index=False, float_format="%.9g", lineterminator="\n").encode("utf-8", "replace"))
    return path


def _table_of(shown: Any) -> pd.DataFrame | None:
    if isinstance(shown, DataFigure):
        return shown.table
    if isinstance(shown, HasFrame):
        return shown.to_frame()
    return shown if isinstance(shown, pd.DataFrame) else None


def _no_formula(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def _checked(figure: Any, path: str | Path) -> Path:
    if not isinstance(figure, BaseFigure):
        raise InputError(f"{path}: a {type(figure).__name__} is no figure; a plotly figure is needed")
    path = Path(path)
    if path.suffix.lower() not in (*PAGES, *PICTURES) or path.is_dir():
        raise InputError(f"{path}: figures are written as .html, .png, .svg or .pdf; name a file that ends so")
    return path


def _drawing(figure: go.Figure, path: Path, dpi: float, background: str | None) -> ImageRequest:
    spec = figure.to_dict()
    layout = spec.setdefault("layout", {})
    kind = path.suffix.lower()[1:]
    if kind == "png" and background is not None:
        layout["paper_bgcolor"] = background
    return ImageRequest(spec, kind, layout.get("width") or WIDTH_PX, layout.get("height") or HEIGHT_PX, dpi)


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path.parent}: cannot be made ({error.strerror}); a writable folder is needed") from None
    replace_file(path, lambda stream: stream.write(data))
