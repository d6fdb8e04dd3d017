"""Plotly figures in pages of the site, drawn by the script of the reports; plotly.js is stored once for the whole site.

A figure stands in a page as an element and its JSON. ``collect`` packs the figures of a page and adds the script that draws
them. Nothing is loaded from a network, and pages can be read from a folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhfless.plots.export import plotly_bundle
from rlhfless.plots.export.packed import packed

EXPORT = Path(plotly_bundle.__file__).parent
SCRIPT, LIBRARY = "figures.js", "plotly_packed.js"
STORED = re.compile(r'<script type="application/json" data-figure="([\w-]+)">(.*?)</script>', re.DOTALL)
CLEAR = "rgba(0,0,0,0)"


class NotInBundle(ValueError):
    """Raised for a figure with a kind of trace that the shipped plotly.js does not draw."""


def html(name: str, figure: Mapping[str, Any]) -> str:
    """Return a figure as HTML.

    Args:
        name: its id, one per page.
        figure: ``data``, ``layout`` and ``frames``, as plotly's JSON.
    """
    figure = {key: figure.get(key, []) for key in ("data", "layout", "frames")}
    layout = {"plot_bgcolor": CLEAR, **figure["layout"], "paper_bgcolor": CLEAR}
    text = json.dumps({**figure, "layout": layout}, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<div class="figure"><div id="{name}"></div></div><script type="application/json" data-figure="{name}">{text}</script>'
    )


def collect(body: str, root: str) -> str:
    """Return the HTML of a page whose figures are packed in one script; unchanged where there is none.

    Args:
        body: the page's HTML. root: the way to the site's folder ``_static`` from the page.

    Raises:
        NotInBundle: a figure has a kind of trace that the shipped plotly.js does not draw.
    """
    found = dict(STORED.findall(body))
    if not found:
        return body
    for name, text in found.items():
        figure = json.loads(text)
        kinds = {one.get("type", "scatter") for part in (figure, *figure["frames"]) for one in part["data"]}
        if others := kinds - plotly_bundle.TYPES:
            raise NotInBundle(f"{name} has traces of {', '.join(sorted(others))}, which the shipped plotly.js does not draw")
    joined = ",".join(f'"{name}":[{text}]' for name, text in found.items())
    return (
        STORED.sub("", body)
        + '<p id="too-old" hidden>The figures of this page need a browser of 2023 or later.</p>'
        + "<noscript><p>The figures of this page need JavaScript.</p></noscript>"
        + f'<script src="{root}/{LIBRARY}"></script>'
        + f'<script>const PACKED = {{library: PLOTLY, figures: "{packed(f"{{{joined}}}")}"}};</script>'
        + f'<script src="{root}/{SCRIPT}"></script>'
    )


def write_scripts(static: Path) -> None:
    """Write plotly.js, packed, and the script that draws into the site's folder ``_static``."""
    static.mkdir(parents=True, exist_ok=True)
    static.joinpath(LIBRARY).write_text(f'const PLOTLY = "{packed(plotly_bundle.plotly_js(()))}";\n', "utf-8")
    parts = [EXPORT / "wrapped.js", EXPORT / "page.js", Path(__file__).with_name("follow_theme.js")]
    static.joinpath(SCRIPT).write_text("".join(part.read_text("utf-8") for part in parts), "utf-8")
