"""Chooses plotly's renderer for a notebook, so that figures are also drawn in exported pages."""

from __future__ import annotations

import os

import plotly.io as pio

JUPYTER = "plotly_mimetype"
PRIVATE = {"showSendToCloud": False}
"""What plotly's renderers are told: no button that uploads a figure to Plotly's servers."""


def use_renderer() -> None:
    """Set plotly's renderer so that figures are drawn in any notebook: call it once, in the first cell.

    The renderer that ``PLOTLY_RENDERER`` names, or that plotly detected (on Colab and Kaggle, for example), stays. In Jupyter
    figures are stored in a second form in addition to plotly's own, so that pages exported by nbconvert draw them, too. No
    figure gets plotly's "Share chart" button, which uploads it.
    """
    if not os.environ.get("PLOTLY_RENDERER") and pio.renderers.default == JUPYTER:
        pio.renderers.default = f"{JUPYTER}+notebook"
    for name in filter(None, (pio.renderers.default or "").split("+")):
        renderer = pio.renderers[name]
        if hasattr(renderer, "config"):  # pictures have no buttons
            renderer.config = {**(renderer.config or {}), **PRIVATE}
