"""Chooses plotly's renderers for a notebook, so that figures follow JupyterLab's theme and are drawn in exported pages, too.

plotly's extension of JupyterLab draws a figure with the colours that the figure states, and a kernel does not know the theme.
So each figure of ours brings a style sheet (``jupyter_theme.css``) that gives paper and text the colours of the page, also when
the theme is switched. Where a page has no theme of JupyterLab (VS Code, Colab), the sheet changes nothing. No renderer shows a
``FigureWidget``, alone or in boxes of ipywidgets, but IPython does, and is told to show the sheet with it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import plotly.io as pio
from plotly.basedatatypes import BaseFigure
from plotly.io.base_renderers import ExternalRenderer

from rlhfless.plots.style import INK, PAPERS

JUPYTER, THEME = "plotly_mimetype", "rlhfless_theme"
"""Names of renderers: plotly's own in Jupyter, and the style sheet."""
PRIVATE = {"showSendToCloud": False}
"""What plotly's renderers are told: no button that uploads a figure to Plotly's servers."""
THEME_STYLE = '<style class="rlhfless-theme">'
"""How the output begins that holds the style sheet."""
WIDGETS = (("plotly.graph_objs._figurewidget", "FigureWidget"), ("ipywidgets.widgets.widget_box", "Box"))
"""Modules and classes of widgets that are figures or hold some; they are not imported for this."""


class ThemeRenderer(ExternalRenderer):  # type: ignore[misc]
    """Shows the style sheet after a figure of ours on white paper; other figures keep the colours that they state."""

    def render(self, fig_dict: dict[str, Any]) -> None:
        """Show the sheet if the figure has our paper and our ink."""
        if _is_on_white_paper(fig_dict.get("layout", {})):
            _show_sheet()


def _is_on_white_paper(layout: Mapping[str, Any]) -> bool:
    """Whether a figure's layout has our paper and our ink."""
    return (layout.get("paper_bgcolor"), layout.get("font", {}).get("color")) == PAPERS[False]


def _show_sheet() -> None:
    from IPython.display import display

    display({"text/html": _theme_html(), "text/plain": ""}, raw=True)


def _with_sheet(widget: Any) -> Any:
    """Return what IPython shows of a widget, after the sheet where figures of ours are in it and the renderer has the sheet."""
    follows = THEME in (pio.renderers.default or "").split("+")
    if follows and any(_is_on_white_paper(figure.layout.to_plotly_json()) for figure in _figures(widget)):
        _show_sheet()
    return widget._repr_mimebundle_()


def _figures(widget: Any) -> Iterator[BaseFigure]:
    """Yield the figure that a widget is, or those in a box."""
    if isinstance(widget, BaseFigure):
        yield widget
    else:
        for inner in getattr(widget, "children", ()):
            yield from _figures(inner)


@cache
def _theme_html() -> str:
    """Return the style sheet; browsers write the ink's colour as ``rgb(51, 51, 51)``."""
    ink = f"rgb({', '.join(str(int(INK[i : i + 2], 16)) for i in (1, 3, 5))})"
    return f"{THEME_STYLE}{Path(__file__).with_name('jupyter_theme.css').read_text('utf-8').replace('INK', ink)}</style>"


def running_shell() -> Any | None:
    """Return the IPython that this code runs in; None elsewhere."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def follow_theme() -> None:
    """Let figures follow JupyterLab's theme where plotly draws them with its extension; importing the plots in IPython does it.

    Elsewhere nothing is shown, and plotly's table of renderers loads nbformat with its schemas: seconds of every command.
    """
    pio.renderers[THEME] = ThemeRenderer()
    shell = running_shell()
    if shell is not None:
        for module, name in WIDGETS:
            shell.display_formatter.mimebundle_formatter.for_type_by_name(module, name, _with_sheet)
    if not os.environ.get("PLOTLY_RENDERER") and pio.renderers.default == JUPYTER:
        pio.renderers.default = f"{JUPYTER}+{THEME}"


def use_renderer() -> None:
    """Set plotly's renderer so that figures are drawn in any notebook: call it once, in the first cell.

    The renderer that ``PLOTLY_RENDERER`` names, or that plotly detected (on Colab and Kaggle, for example), stays. In Jupyter
    figures are stored in a second form in addition to plotly's own, so that pages exported by nbconvert draw them, too. No
    figure gets plotly's "Share chart" button, which uploads it.
    """
    follow_theme()
    if not os.environ.get("PLOTLY_RENDERER") and pio.renderers.default == f"{JUPYTER}+{THEME}":
        pio.renderers.default = f"{JUPYTER}+notebook+{THEME}"
    for name in filter(None, (pio.renderers.default or "").split("+")):
        renderer = pio.renderers[name]
        if hasattr(renderer, "config"):  # pictures have no buttons
            renderer.config = {**(renderer.config or {}), **PRIVATE}
