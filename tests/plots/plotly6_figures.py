"""Builds every plot with the plotly that is first in the path; ``test_plotly6.py`` runs this with an older one.

Writes ``figures.json`` (types of the traces by plot, from plotly's own JSON) and ``page.html`` into the folder it is given.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import plotly
from every_plot import every_plot

from rlhfless.plots.export.html_page import Page


def build(folder: Path) -> None:
    """Build the figures and write both files."""
    figures = {name: make() for name, make in every_plot("l40s").items()}
    types = {name: [trace["type"] for trace in json.loads(figure.to_json())["data"]] for name, figure in figures.items()}
    page = Page("Every plot", "")
    for name, figure in figures.items():
        page.section(name)
        page.figure(figure)
    (folder / "page.html").write_text(page.render(""), encoding="utf-8")
    (folder / "figures.json").write_text(json.dumps({"plotly": plotly.__version__, "types": types}), encoding="utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
