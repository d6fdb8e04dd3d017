"""How figures are shown in a notebook. Knows plotly's renderers; nothing of figures."""

from __future__ import annotations

import os

import plotly.io as pio

JUPYTER = "plotly_mimetype"
PRIVATE = {"showSendToCloud": False}
"""What plotly's renderers are told: no button that uploads a figure to Plotly's servers."""


def use_renderer() -> None:
    """Let figures be drawn wherever the notebook is: call it once, in a notebook's first cell.

    What ``PLOTLY_RENDERER`` names, and what plotly found to be right (on Colab and Kaggle, for example), stays. In Jupyter
    figures are kept in a second form besides plotly's own, so that they are drawn in pages that nbconvert exports, too.
    No figure gets plotly's "Share chart" button, which uploads it.
    """
    if not os.environ.get("PLOTLY_RENDERER") and pio.renderers.default == JUPYTER:
        pio.renderers.default = f"{JUPYTER}+notebook"
    for name in filter(None, (pio.renderers.default or "").split("+")):
        renderer = pio.renderers[name]
        if hasattr(renderer, "config"):  # pictures have no buttons
            renderer.config = {**(renderer.config or {}), **PRIVATE}
