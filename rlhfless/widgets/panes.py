"""A grid of plotly figures and of HTML, as one widget: what every dashboard draws on.

Knows plotly's JSON and the browser's side in ``panes.js``; nothing of what is shown. It is one widget for all figures of a
dashboard, so plotly.js (4.6 MB, from the installed package; nothing is loaded from a network) is sent once. A figure is drawn
with ``Plotly.react`` from one message, whatever changed in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from rlhfless.errors import missing_extra
from rlhfless.widgets.latest import Newest

try:
    import anywidget
    import plotly.graph_objects as go
    import traitlets
    from plotly.offline import get_plotlyjs
except ImportError as error:
    raise missing_extra("a dashboard", error.name, "notebook") from None

HERE = Path(__file__).parent
Rows = Sequence[Sequence[tuple[str, float]]]


@lru_cache(maxsize=1)
def script() -> str:
    """plotly.js and ``panes.js`` as one ES module."""
    head = "const module = {exports: {}}, exports = module.exports;\n"
    return f"{head}{get_plotlyjs()}\nconst Plotly = module.exports;\n{(HERE / 'panes.js').read_text('utf-8')}"


class Panes(anywidget.AnyWidget):  # type: ignore[misc]
    """Figures and pieces of HTML in rows.

    Args:
        rows: of (name, share of the row's width); on a narrow page the panes of a row stand below each other.
        html: names of the panes that hold HTML instead of a figure. What is put there must be escaped.
        on_click: told the pane's name and ``curve, point, x, y, customdata, trace`` of a click in a figure.
        on_zoom: told the pane's name and the new time range ``(from, to)``, or None for all of it.
        on_choice: told the pane's name and the number of a ``pieces.Choice`` that was pressed.
    """

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    rows = traitlets.List().tag(sync=True)
    html_panes = traitlets.List().tag(sync=True)
    stale = traitlets.List().tag(sync=True)

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
        layout = [[[name, grow] for name, grow in row] for row in rows]
        style = (HERE / "panes.css").read_text("utf-8")
        super().__init__(_esm=script(), _css=style, rows=layout, html_panes=sorted(html))
        self._greying = threading.Lock()
        self._on_click, self._on_zoom, self._on_choice = on_click, on_zoom, on_choice
        self.on_msg(self._told)

    def draw(self, name: str, figure: go.Figure, request: int = 0) -> None:
        """Show a figure in a pane; ``request`` is found again in the page, as what the pane shows."""
        figure.update_layout(meta={"request": request})
        setattr(self, f"pane_{name}", figure.to_json())

    def put(self, name: str, html: str) -> None:
        """Show HTML in a pane; whatever came from a log in it must be escaped."""
        setattr(self, f"pane_{name}", html)

    def grey(self, names: Collection[str]) -> None:
        """Grey these panes, as what they show is being worked out anew, and no others."""
        self.stale = sorted(names)

    def ask(self, names: Collection[str], submit: Callable[[], object]) -> None:
        """Grey these panes and ask for what they are to show: no ``answered`` of an earlier request comes between."""
        with self._greying:
            self.grey(names)
            submit()

    def answered(self, newest: Newest, still: Collection[str]) -> None:
        """Leave only these panes grey, unless something else has been asked since."""
        with self._greying:
            if newest():
                self.grey(still)

    def _told(self, _: object, content: dict[str, Any], __: object) -> None:
        if "click" in content and self._on_click is not None:
            self._on_click(content["pane"], content["click"])
        elif "choice" in content and self._on_choice is not None:
            self._on_choice(content["pane"], int(content["choice"]))
        elif "zoom" in content and self._on_zoom is not None:
            zoom = content["zoom"]
            self._on_zoom(content["pane"], None if zoom is None else (float(zoom[0]), float(zoom[1])))
