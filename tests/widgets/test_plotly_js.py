"""The plotly.js of the dashboards: the file that ships, what is said where it is damaged, and one model of it per kernel."""

from __future__ import annotations

import html
import tomllib
from importlib import import_module
from pathlib import Path

import plotly.graph_objects as go
import pytest
from error_messages import refused

from rlhfless.plots.export import plotly_bundle
from rlhfless.widgets import plotly_js
from rlhfless.widgets.fallback import HTML, PLAIN, SENTENCE, ReloadFallback
from rlhfless.widgets.panes import Panes, PanesView

ROOT = Path(__file__).parents[2]
FIGURE = ((("figure", 1),),)


def test_the_file_that_ships_is_the_one_that_is_named() -> None:
    code, problem = plotly_js.checked()
    assert problem == ""
    assert f"plotly.js (cartesian - minified) v{plotly_bundle.VERSION}".encode() in code[:200]
    told = (plotly_js.FILE.parent / "README.md").read_text("utf-8")
    assert plotly_js.SHA256 in told
    assert plotly_js.FILE.name in told
    assert "MIT License" in (plotly_js.FILE.parent / "plotly-cartesian.LICENSE").read_text("utf-8")


def test_its_licence_is_one_of_the_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = {path for pattern in project["license-files"] for path in ROOT.glob(pattern)}
    assert plotly_js.FILE.parent / "plotly-cartesian.LICENSE" in found
    assert "MIT" in project["license"]


def test_the_bundle_draws_the_kinds_of_traces_that_are_named() -> None:
    code = plotly_js.FILE.read_text("utf-8")
    assert {kind for kind in plotly_bundle.TYPES if f'moduleType:"trace",name:"{kind}"' not in code} == set()
    with refused(AssertionError):
        Panes(FIGURE).draw("figure", go.Figure(go.Scattergl(x=[1], y=[2])))


def test_a_missing_or_damaged_file_is_a_sentence(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.js"
    damaged.write_bytes(plotly_js.FILE.read_bytes()[:-1])
    for file in (tmp_path / "missing.js", damaged):
        code, problem = plotly_js.checked(file)
        assert code == b""
        assert str(file) in problem


def test_a_kernel_has_one_copy_for_all_dashboards() -> None:
    one, other = Panes(FIGURE), Panes(FIGURE)
    assert one.library == other.library == plotly_js.shared().model_id
    assert len(one.get_state()["pane_figure"]) == 0
    drawing = one.children[0]
    assert isinstance(drawing, PanesView)
    assert drawing.box == one.model_id
    assert sum(len(str(value)) for value in drawing.get_state().values()) < 40_000, "anywidget gives it 2 s"


def test_another_try_sends_the_file_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    panes, source = Panes(FIGURE), plotly_js.shared()
    before, told = source.sent, []
    monkeypatch.setattr(source, "_send", lambda message, buffers=None: told.append((message["state"], buffers)))
    panes._on_message(None, {"again": True}, [])
    assert source.sent == before + 1
    assert any(buffers and bytes(buffers[0]) == plotly_js.FILE.read_bytes() for _, buffers in told)
    assert "sent" in told[-1][0]


def test_a_copy_that_was_closed_is_made_anew() -> None:
    panes = Panes(FIGURE)
    plotly_js.shared().close()
    panes._on_message(None, {"again": True}, [])
    assert panes.library == plotly_js.shared().model_id
    assert plotly_js.shared().comm is not None


def test_where_widgets_do_not_load_a_sentence_stands_in_their_place() -> None:
    for name in ("explorer.Explorer", "comparison.ComparisonDashboard", "live_view.LiveView", "zooming.Zoom"):
        module, _, kind = name.partition(".")
        assert issubclass(getattr(import_module(f"rlhfless.widgets.{module}"), kind), ReloadFallback)
    forms, _ = Panes(FIGURE)._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in forms
    assert forms[PLAIN] == SENTENCE
    assert SENTENCE in html.unescape(forms[HTML])


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("live_view.LiveView", "print_phases"), ("explorer.Explorer", "WhatIf"),
        ("comparison.ComparisonDashboard", "compared"), ("zooming.Zoom", "plot_timeline"),
    ],
)  # fmt: skip
def test_without_widgets_the_text_says_what_to_call_instead(name: str, call: str) -> None:
    module, _, kind = name.partition(".")
    shown = getattr(import_module(f"rlhfless.widgets.{module}"), kind)
    made = type("Shown", (Panes,), {"instead": shown.instead})(FIGURE)
    forms, _ = made._repr_mimebundle_()
    assert forms[PLAIN].startswith(SENTENCE)
    assert call in forms[PLAIN]
    assert call in forms[HTML]
