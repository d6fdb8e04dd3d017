"""Draws figures as PNG, SVG and PDF with kaleido, all of a call in one browser; the same figure gives the same bytes.

The browser loads nothing from a network. plotly gives parts of a picture random names, and the browser writes the time into a
PDF: both are fixed here. Another version of the browser, or other fonts, may draw other pixels.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import struct
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlhfless.errors import InputError, missing_extra
from rlhfless.system.browser import find_browser

PX_PER_INCH, PT_PER_INCH, MM_PER_INCH = 96.0, 72.0, 25.4
DRAW_S = 120.0  # for one picture; a browser that takes longer hangs
DRAWN_AT = b"20000101000000"  # in every PDF
SAME_CHANCE = """<script>
(() => { let state = 1; Math.random = () => (state = (state * 48271) % 2147483647) / 2147483647; })();
</script>
"""
NO_MARGIN = "<style>@page { margin: 0; } img { display: block; }</style>\n"  # kaleido's of 0.1 inch cuts off what it moves away
NO_BROWSER = "a Chromium or Chrome is needed: install one, or name it in BROWSER_PATH"


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
        files = [Path(folder, f"{i}.{one.kind}") for i, one in enumerate(drawings)]
        orders = [
            {"fig": one.figure, "path": file, "opts": {"format": one.kind, "width": one.width, "height": one.height,
                                                       "scale": one.dpi / PX_PER_INCH if one.kind == "png" else 1}}
            for one, file in zip(drawings, files, strict=True)
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
        return [_finished(file.read_bytes(), one) for one, file in zip(drawings, files, strict=True)]


def _browser() -> str | None:
    """Return the installed browser, or the one that plotly_get_chrome has installed."""
    if found := find_browser():
        return found
    from choreographer.browsers.chromium import Chromium

    local = Chromium.find_browser(skip_local=False)
    return None if local is None else str(local)


def _reason(error: BaseException) -> str:
    """Return the whole text of an error on one line; an error of the browser's start has several sentences as its arguments."""
    said = error.args if all(isinstance(part, str) for part in error.args) else (str(error),)
    return " ".join(" ".join(said).split()).rstrip(".") or type(error).__name__


def _finished(data: bytes, drawing: ImageRequest) -> bytes:
    begins, finish = KINDS[drawing.kind]
    if not data.startswith(begins):  # the browser gives an empty picture where its memory does not suffice
        size = f"{drawing.width:,.0f} x {drawing.height:,.0f} pixels at {drawing.dpi:g} dpi"
        raise NoPicture(f"a figure of {size} cannot be drawn; a smaller one is needed")
    return finish(data, drawing)


def _png(data: bytes, drawing: ImageRequest) -> bytes:
    """Add the size on paper: pixels per metre, after the header of 33 bytes."""
    per_metre = round(drawing.dpi / MM_PER_INCH * 1000)
    chunk = b"pHYs" + struct.pack(">IIB", per_metre, per_metre, 1)
    return data[:33] + struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[33:]


def _svg(data: bytes, drawing: ImageRequest) -> bytes:
    """Set the size in millimetres, which is the same on a screen; the SVG's own units stay CSS pixels."""
    width, height = (f"{size / PX_PER_INCH * MM_PER_INCH:.6g}mm" for size in (drawing.width, drawing.height))
    size = re.compile(rb'(<svg [^>]*?)width="[^"]*" height="[^"]*"')
    return size.sub(rb'\g<1>width="%s" height="%s"' % (width.encode(), height.encode()), data, count=1)


def _pdf(data: bytes, drawing: ImageRequest) -> bytes:
    """Remove the time and set the requested size: the browser rounds it to 1/300 inch. A PDF stores the byte offsets of its
    parts, so every replacement has as many bytes as the text before it."""

    def exact(found: re.Match[bytes]) -> bytes:
        points = [size / PX_PER_INCH * PT_PER_INCH for size in (drawing.width, drawing.height)]
        texts = (" ".join(f"{p:.{digits}f}" for p in points).encode() for digits in (4, 3, 2, 1))
        room = len(found[2])
        return found[1] + next((text for text in texts if len(text) <= room), found[2]).ljust(room) + b"]"

    data = re.sub(rb"(/(?:Creation|Mod)Date \(D:)\d{14}", rb"\g<1>" + DRAWN_AT, data)
    return re.sub(rb"(/MediaBox \[0 0 )([\d.]+ [\d.]+)\]", exact, data)


KINDS: dict[str, tuple[bytes, Callable[[bytes, ImageRequest], bytes]]] = {
    "png": (b"\x89PNG\r\n\x1a\n", _png),
    "svg": (b"<svg ", _svg),
    "pdf": (b"%PDF-", _pdf),
}
"""How a file of a kind begins, and what is fixed in it."""
