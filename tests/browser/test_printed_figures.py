"""Figures for print as a browser draws them: whatever the data, no text leaves the page, which keeps its size."""

from __future__ import annotations

import json
import random
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest
from every_plot import every_plot

from rlhfless.plots import paper_style, plot_plane
from rlhfless.plots.export.plotly_bundle import TYPES, plotly_js

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
NAMES = ["static", "right-sizing", "oracle+replan", "least-loaded, held", "a policy of mine with a long name", "fold"]
OUTSIDE = """() => {
  const page = document.querySelector("#figure .main-svg").getBoundingClientRect();
  const texts = [...document.querySelectorAll("#figure text")].filter((one) => one.textContent && one.getClientRects().length);
  const out = (box) => box.left < page.left - 1 || box.right > page.right + 1 || box.top < page.top - 1
    || box.bottom > page.bottom + 1;
  return [[page.width, page.height],
    texts.filter((one) => out(one.getBoundingClientRect())).map((one) => one.textContent)];
}"""
"""Size of the page in pixels, and the texts that are not all on it."""


def policies(seed: int) -> pd.DataFrame:
    """One to six policies, most of them close to each other or equal."""
    draw = random.Random(seed)
    time_s, cost = draw.uniform(1, 5000), draw.uniform(1, 1e6)
    beside = [0.0, 0.0, 0.001, 0.01, 0.03, 1.0]
    return pd.DataFrame(
        [(name, time_s * (1 + draw.choice(beside)), cost * (1 + draw.choice(beside))) for name in NAMES[: draw.randint(1, 6)]],
        columns=["policy", "time_s", "gpu_seconds"],
    )


def drawn(page: Any, figure: go.Figure) -> tuple[list[float], list[str]]:
    """Draw a figure; returns the size of its page and the texts that are not all on it."""
    page.evaluate(
        "async (figure) => { Plotly.purge('figure'); await Plotly.newPlot('figure', figure); }", json.loads(figure.to_json())
    )
    size, outside = page.evaluate(OUTSIDE)
    return size, outside


def test_no_text_leaves_a_page_for_print(page: Any) -> None:
    page.set_content("<body style='margin:0'><div id='figure'></div></body>")
    page.add_script_tag(content=plotly_js(TYPES))
    planes = {f"policies {seed}": plot_plane(policies(seed)) for seed in range(12)}
    printed = {f"{name}, {width:g} mm": paper_style(plane, width) for name, plane in planes.items() for width in (85.0, 170.0)}
    printed |= {
        name: paper_style(make(), 170.0) for name, make in every_plot("demo").items()
    }  # panels beside each other want it
    for name, figure in printed.items():
        size, outside = drawn(page, figure)
        assert outside == [], name
        assert size == pytest.approx([figure.layout.width, figure.layout.height], abs=1)
    assert page.errors == []
