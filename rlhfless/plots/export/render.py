"""Draws figures as PNG, SVG and PDF with kaleido, all of a call in one browser; the same figure gives the same bytes.

kaleido uses the plotly.js of the installed plotly, so nothing is loaded from a network. Parts of a picture get random names
from plotly, and the browser writes the time into a PDF: both are fixed here. Another version of the browser, or other fonts,
may draw other pixels.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlhfless.errors import InputError, missing_extra
from rlhfless.system.browser import find_browser

PX_PER_INCH = 96.0
DRAW_S = 120.0  # for one picture; a browser that takes longer hangs
DATE = re.compile(rb"(/(?:Creation|Mod)Date \(D:)\d{14}")
DRAWN_AT = rb"\g<1>20000101000000"  # in every PDF
SAME_CHANCE = """<script>
(() => { let state = 1; Math.random = () => (state = (state * 48271) % 2147483647) / 2147483647; })();
</script>
"""
NO_MARGIN = "<style>@page { margin: 0; } img { display: block; }</style>\n"  # kaleido's of 0.1 inch cuts off what it moves away
NO_BROWSER = "a Chromium or Chrome is needed: install one, or name it in BROWSER_PATH"
BEGINS = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<svg ", "pdf": b"%PDF-"}
"""How a file of a kind begins."""


class NoPicture(InputError):
    """Raised where the browser or the figure prevents drawing a picture."""


class ImageRequest(NamedTuple):
    """A picture to draw: a figure as plotly's dictionary, ``png``, ``svg`` or ``pdf``, and its size in CSS pixels.

    Attributes:
        dpi: pixels per inch of a PNG.
    """

    figure: Mapping[str, Any]
    kind: str
    width: float
    height: float
    dpi: float = PX_PER_INCH


def why_no_pictures() -> str:
    """Return why no picture can be drawn on this machine, as a sentence; the empty text where pictures can be drawn."""
    if importlib.util.find_spec("kaleido") is None:
        return str(missing_extra("a picture of a figure", "kaleido", "export"))
    return "" if _browser() else f"a picture of a figure cannot be drawn: {NO_BROWSER}"


def draw(drawings: Sequence[ImageRequest]) -> list[bytes]:
    """Return the file contents of the pictures, in their order.

    Raises:
        MissingExtra: kaleido is not installed.
        NoPicture: there is no browser, it does not start, or a figure cannot be drawn.
    """
    try:
        import kaleido
    except ImportError:
        raise missing_extra("a picture of a figure", "kaleido", "export") from None
    browser = _browser()
    if browser is None:
        raise NoPicture(f"a picture of a figure cannot be drawn: {NO_BROWSER}")
    page = kaleido.PageGenerator(mathjax=False)
    page.header += SAME_CHANCE + NO_MARGIN
    with tempfile.TemporaryDirectory(prefix="rlhfless-pictures-") as folder:
        files = [Path(folder, f"{i}.{drawing.kind}") for i, drawing in enumerate(drawings)]
        orders = [
            {"fig": drawing.figure, "path": file,
             "opts": {"format": drawing.kind, "width": drawing.width, "height": drawing.height,
                      "scale": drawing.dpi / PX_PER_INCH if drawing.kind == "png" else 1}}
            for drawing, file in zip(drawings, files, strict=True)
        ]  # fmt: skip
        log = logging.getLogger("choreographer")
        level = log.level
        log.setLevel(logging.CRITICAL)  # it takes the browser's farewell for a broken message, and says so with a traceback
        try:
            failed = kaleido.write_fig_from_object_sync(
                orders, kopts={"path": browser, "page_generator": page, "timeout": DRAW_S}
            )
        except (RuntimeError, OSError, TimeoutError) as error:  # of the browser; those of figures are returned
            raise NoPicture(f"a picture of a figure cannot be drawn with {browser} ({_reason(error)}); {NO_BROWSER}") from None
        finally:
            log.setLevel(level)
        if failed:
            raise NoPicture(f"a figure cannot be drawn ({_reason(failed[0])}); one that plotly shows in a notebook is needed")
        return [_checked(file.read_bytes(), drawing) for drawing, file in zip(drawings, files, strict=True)]


def _browser() -> str | None:
    """Return the installed browser, or the one that plotly_get_chrome has installed."""
    if browser := find_browser():
        return browser
    from choreographer.browsers.chromium import Chromium

    local = Chromium.find_browser(skip_local=False)
    return None if local is None else str(local)


def _reason(error: BaseException) -> str:
    """Return the whole text of an error on one line; an error of the browser's start has several sentences as its arguments."""
    parts = error.args if all(isinstance(part, str) for part in error.args) else (str(error),)
    return " ".join(" ".join(parts).split()).rstrip(".") or type(error).__name__


def _checked(data: bytes, drawing: ImageRequest) -> bytes:
    """Return the file, without the time in a PDF."""
    if not data.startswith(BEGINS[drawing.kind]):  # the browser gives an empty picture where its memory does not suffice
        size = f"{drawing.width:,.0f} x {drawing.height:,.0f} pixels at {drawing.dpi:g} dpi"
        raise NoPicture(f"a figure of {size} cannot be drawn; a smaller one is needed")
    return DATE.sub(DRAWN_AT, data) if drawing.kind == "pdf" else data
