"""The style sheet that figures of ours on white paper bring to JupyterLab, where plotly has an extension to draw them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
import pytest
from plot_samples import sample_trace

from rlhfless.plots import plot_timeline
from rlhfless.plots.renderer import THEME, THEME_STYLE, follow_theme


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is displayed, where figures follow the theme."""
    outputs: list[dict[str, Any]] = []
    follow_theme()
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: outputs.append(bundle))
    return outputs


@pytest.fixture
def renderer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plotly's default renderer, given back afterwards."""
    monkeypatch.delenv("PLOTLY_RENDERER", raising=False)
    before = pio.renderers.default
    yield
    pio.renderers.default = before


def test_a_figure_of_ours_brings_the_sheet(shown: list[dict[str, Any]]) -> None:
    pio.show(plot_timeline(sample_trace(1)), renderer=THEME)
    (output,) = shown
    assert output["text/html"].startswith(THEME_STYLE)
    assert "fill: rgb(51, 51, 51)" in output["text/html"], "as browsers write our ink"
    assert "--jp-ui-font-color1" in output["text/html"]


def test_other_figures_and_dark_ones_do_not(shown: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    pio.show(go.Figure(go.Bar(y=[1, 2])), renderer=THEME)
    monkeypatch.setattr(pio.templates, "default", "plotly_dark")
    pio.show(plot_timeline(sample_trace(1)), renderer=THEME)
    assert shown == []


def test_a_figure_widget_of_ours_brings_it_alone_and_in_boxes(
    shown: list[dict[str, Any]], renderer: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    widgets, shell_module = pytest.importorskip("ipywidgets"), pytest.importorskip("IPython.core.interactiveshell")
    shell = shell_module.InteractiveShell()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    pio.renderers.default = "plotly_mimetype"
    follow_theme()
    mine, other = go.FigureWidget(plot_timeline(sample_trace(1))), go.FigureWidget(go.Figure(go.Bar(y=[1, 2])))
    boxed = widgets.HBox([widgets.Label("mine"), widgets.VBox([other, mine])])
    for widget, sheets in ((mine, 1), (boxed, 1), (other, 0), (widgets.VBox([other]), 0)):
        shown.clear()
        bundle, _ = shell.display_formatter.format(widget)
        assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == widget.model_id, "it is shown as before"
        assert [output["text/html"].startswith(THEME_STYLE) for output in shown] == [True] * sheets
    pio.renderers.default = "plotly_mimetype"  # somebody wants no sheet
    shown.clear()
    shell.display_formatter.format(mine)
    assert shown == []


@pytest.mark.parametrize(
    ("found", "named", "then"),
    [
        ("plotly_mimetype", "", f"plotly_mimetype+{THEME}"),
        ("vscode", "", "vscode"),
        ("colab", "", "colab"),
        ("browser", "", "browser"),
        ("plotly_mimetype", "plotly_mimetype", "plotly_mimetype"),
    ],
)
def test_what_plotly_found_stays_elsewhere(
    found: str, named: str, then: str, renderer: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLOTLY_RENDERER", named)
    pio.renderers.default = found
    follow_theme()
    assert pio.renderers.default == then


def test_where_nothing_is_shown_the_plots_load_no_schemas_of_notebooks() -> None:
    """jsonschema builds a grammar when it is imported: more time than all else that a plot imports."""
    code = "import sys, rlhfless.plots; print([name for name in ('nbformat', 'jsonschema') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == "[]"
