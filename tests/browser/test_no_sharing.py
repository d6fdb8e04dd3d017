"""No figure of ours offers to upload itself: logs are private, and plotly 7 has a "Share chart" button by default."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plotly
import plotly.graph_objects as go
import plotly.io as pio
import pytest
from figures import share_buttons
from open_pages import open_page
from plotly.offline import get_plotlyjs

from rlhfless.plots import use_renderer
from rlhfless.plots.export.files import save
from rlhfless.plots.style import styled

pytestmark = pytest.mark.full
BUTTON = ".modebar-btn"
FOREIGN = go.Figure(go.Bar(x=[1, 2], y=[3, 4]))
"""A figure that has nothing of ours, as notebooks make some."""


@pytest.fixture(scope="module")
def plotly_page(chromium: Any) -> Iterator[Any]:
    """A page with the plotly.js of the installed package, which takes long to load."""
    page = open_page(chromium)
    page.add_script_tag(content=get_plotlyjs())  # it outlives new contents
    yield page
    page.context.close()


def drawn(page: Any, figure: str) -> Any:
    """The page with a figure (plotly's JSON) and no other, drawn with plotly's default settings."""
    page.set_content("<body><div id='figure' style='width:700px;height:400px'></div></body>")
    page.evaluate("async (figure) => { await Plotly.newPlot('figure', figure); }", json.loads(figure))
    page.wait_for_selector(BUTTON, state="attached")
    return page


@pytest.fixture
def renderer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plotly's renderer as it is in JupyterLab, given back afterwards."""
    monkeypatch.delenv("PLOTLY_RENDERER", raising=False)
    before, configs = pio.renderers.default, {name: pio.renderers[name].config for name in ("plotly_mimetype", "notebook")}
    pio.renderers.default = "plotly_mimetype"
    yield
    pio.renderers.default = before
    for name, config in configs.items():
        pio.renderers[name].config = config


@pytest.mark.skipif(plotly.__version__.startswith("6."), reason="plotly 6 has no such button")
def test_plotly_alone_offers_to_share(plotly_page: Any) -> None:
    assert share_buttons(drawn(plotly_page, FOREIGN.to_json())) == 1, "the test sees the button"


def test_a_figure_of_ours_has_no_share_button_wherever_it_is_drawn(plotly_page: Any) -> None:
    assert share_buttons(drawn(plotly_page, styled(go.Figure(FOREIGN), "bars").to_json())) == 0


def test_a_figure_that_a_notebook_makes_itself_has_none(plotly_page: Any, renderer: None) -> None:
    use_renderer()
    shown = FOREIGN._repr_mimebundle_()
    assert share_buttons(drawn(plotly_page, json.dumps(shown["application/vnd.plotly.v1+json"]))) == 0
    plotly_page.set_content(shown["text/html"])
    plotly_page.wait_for_selector(BUTTON, state="attached")
    assert share_buttons(plotly_page) == 0


def test_a_figure_file_has_none(page: Any, tmp_path: Path) -> None:
    page.goto(save(FOREIGN, tmp_path / "figure.html").as_uri())
    page.wait_for_selector(BUTTON, state="attached")
    assert share_buttons(page) == 0
