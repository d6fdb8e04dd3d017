"""A grid of plotly figures and HTML as one widget: every dashboard draws on it.

The browser's part is ``panes.js``. A page needs three models. The box of this file is an ordinary ipywidgets model with all
contents, and a small anywidget in it draws. The third is the kernel's ``plotly_js.shared``. The box holds the contents because
anywidget gives a page 2 s to start a widget and drops all messages to a slower one. Each figure is drawn with ``Plotly.react``
from one message, whatever changed in it. A page that has just made its view says what it holds, and gets what it missed:
messages that come before its model of the box are lost.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from rlhfless.errors import missing_extra
from rlhfless.plots.export import plotly_bundle
from rlhfless.system.templates import Markup
from rlhfless.widgets.latest_request import Newest

try:
    import anywidget
    import ipywidgets as widgets
    import plotly.graph_objects as go
    import traitlets
    from plotly.io.json import to_json_plotly
except ImportError as error:
    raise missing_extra("a dashboard", error.name, "notebook") from None

from rlhfless.widgets import plotly_js
from rlhfless.widgets.fallback import ReloadFallback

HERE = Path(__file__).parent
Rows = Sequence[Sequence[tuple[str, float]]]


def script() -> str:
    """Return the drawing code as one ES module, without plotly.js."""
    files = (HERE / "library.js", HERE.parent / "plots" / "export" / "wrapped.js", HERE / "panes.js")
    return "".join(file.read_text("utf-8") for file in files)


class PanesView(anywidget.AnyWidget):  # type: ignore[misc]
    """The browser's view of the panes; ``box`` is the model with the contents."""

    _esm = script()
    _css = (HERE / "panes.css").read_text("utf-8")
    box = traitlets.Unicode().tag(sync=True)


class Panes(ReloadFallback, widgets.VBox):  # type: ignore[misc]
    """Figures and pieces of HTML in rows.

    Args:
        rows: of (name, share of the row's width); on a narrow page the panes of a row are stacked.
        html: names of the panes that hold HTML instead of a figure.
        on_click: called with the pane's name and ``curve, point, x, y, customdata, trace`` of a click in a figure.
        on_zoom: called with the pane's name and the new time range ``(from, to)``, or None for the whole range.
        on_choice: called with the pane's name and the number of an ``html.Choice`` that was pressed.

    Attributes:
        beat: counts up every second or so while the kernel keeps these panes up to date, see ``beats``; 0 while it need not. A
            page on which it does not come says for how long.
    """

    rows = traitlets.List().tag(sync=True)
    html_panes = traitlets.List().tag(sync=True)
    stale = traitlets.List().tag(sync=True)
    library = traitlets.Unicode().tag(sync=True)
    beat = traitlets.Int(0).tag(sync=True)

    def __init__(
        self,
        rows: Rows,
        html: Collection[str] = (),
        *,
        on_click: Callable[[str, dict[str, Any]], object] | None = None,
        on_zoom: Callable[[str, tuple[float, float] | None], object] | None = None,
        on_choice: Callable[[str, int], object] | None = None,
    ) -> None:
        names = [name for row in rows for name, _ in row]
        assert set(html) <= set(names)
        self.add_traits(**{f"pane_{name}": traitlets.Unicode("").tag(sync=True) for name in names})
        shown = {"rows": [[[name, grow] for name, grow in row] for row in rows], "html_panes": sorted(html)}
        layout = widgets.Layout(width="100%", overflow="visible")
        super().__init__(**shown, library=plotly_js.shared().model_id, layout=layout, _dom_classes=["rlhfless-box"])
        self.children = [PanesView(box=self.model_id)]  # after the box: the page must know it by then
        self._greying = threading.Lock()
        self._on_click, self._on_zoom, self._on_choice = on_click, on_zoom, on_choice
        self.on_msg(self._on_message)

    def draw(self, name: str, figure: go.Figure | dict[str, Any], request: int = 0) -> None:
        """Show a figure, or plotly's JSON of one, in a pane; ``request`` is stored in the page with the figure."""
        spec = figure.to_plotly_json() if isinstance(figure, go.Figure) else figure
        assert {trace["type"] for trace in spec["data"]} <= plotly_bundle.TYPES, "what the page's plotly.js cannot draw"
        layout = {**spec["layout"], "meta": {"request": request}}
        setattr(self, f"pane_{name}", to_json_plotly({**spec, "layout": layout}))

    def put(self, name: str, html: Markup) -> None:
        """Show HTML in a pane."""
        setattr(self, f"pane_{name}", str(html))

    def grey(self, names: Collection[str]) -> None:
        """Grey exactly these panes while their contents are computed again."""
        self.stale = sorted(names)

    def ask(self, names: Collection[str], submit: Callable[[], object]) -> None:
        """Grey these panes and request their contents, atomically: no ``answered`` of an earlier request comes between."""
        with self._greying:
            self.grey(names)
            submit()

    def answered(self, newest: Newest, still: Collection[str]) -> None:
        """Leave only these panes grey, unless a newer request has been made."""
        with self._greying:
            if newest():
                self.grey(still)

    def _send_missing(self, has: dict[str, int]) -> None:
        """Send the panes of which a page has another text, by its checksums, and the traits that go with them."""
        with self._greying:
            differ = [f"pane_{name}" for name, checksum in has.items() if checksum != _checksum(getattr(self, f"pane_{name}"))]
            self.send_state([*differ, "stale", "library", "beat"])

    def _on_message(self, _: object, content: dict[str, Any], __: object) -> None:
        if "has" in content:
            self._send_missing(content["has"])
        elif "click" in content and self._on_click is not None:
            self._on_click(content["pane"], content["click"])
        elif "choice" in content and self._on_choice is not None:
            self._on_choice(content["pane"], int(content["choice"]))
        elif "zoom" in content and self._on_zoom is not None:
            zoom = content["zoom"]
            self._on_zoom(content["pane"], None if zoom is None else (float(zoom[0]), float(zoom[1])))
        elif "again" in content:
            self.library = plotly_js.shared().model_id
            plotly_js.shared().send_again()


def _checksum(text: str) -> int:
    """Return what ``panes.js`` computes of a pane's text."""
    return zlib.adler32(text.encode(errors="replace"))
