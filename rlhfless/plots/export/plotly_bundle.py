"""The cartesian bundle of plotly.js, a third of the whole library: where it is, and which traces it draws.

``vendor/README.md`` names its source. Pages and dashboards contain it where it draws all their figures.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

VERSION = "4.1.1"
SHA256 = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
FILE = Path(__file__).parent / "vendor" / f"plotly-cartesian-{VERSION}.min.js"
TYPES = frozenset(
    ("bar", "box", "contour", "heatmap", "histogram", "histogram2d", "histogram2dcontour", "image", "pie", "scatter",
     "scatterternary", "violin")
)  # fmt: skip
"""Kinds of traces that the bundle draws."""


def plotly_js(types: Iterable[str]) -> str:
    """Return the JavaScript of plotly that draws traces of these types: the bundle, or the whole library."""
    if TYPES.issuperset(types):
        return FILE.read_text("utf-8")
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
