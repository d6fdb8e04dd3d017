"""What a notebook found becomes a page; cells may be run again, and figures are drawn wherever the notebook is."""

from __future__ import annotations

from pathlib import Path

import pytest
from error_messages import refused
from real_browser import drawn_page

pio = pytest.importorskip("plotly.io", reason="plotly is not installed")
import plotly.graph_objects as go  # noqa: E402

from rlhfless.errors import InputError  # noqa: E402
from rlhfless.plots import use_renderer  # noqa: E402
from rlhfless.plots.export.notebook_page import FiguresPage  # noqa: E402
from rlhfless.system.browser import find_browser  # noqa: E402


@pytest.fixture(autouse=True)
def no_page_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLHFLESS_PAGE", raising=False)


def test_a_cell_that_is_run_again_replaces_its_section(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page, figure = FiguresPage(), go.Figure(go.Scatter(x=[1], y=[2]))
    assert page.found("First", "There are\n      3 actors.", figure) is figure
    page.add("Second", "Kept, not told.")
    page.found("First", "There are 4 actors.\n\n<b>Really</b>.", figure)
    assert capsys.readouterr().out == "There are 3 actors.\nThere are 4 actors.\n<b>Really</b>.\n"
    text = page.write("Title", "Lead.", tmp_path / "new" / "page.html").read_text("utf-8")
    assert text.index(">First<") < text.index(">Second<")
    assert "<p>There are 4 actors.</p>" in text
    assert "<p>&lt;b&gt;Really&lt;/b&gt;.</p>" in text
    assert "3 actors" not in text


def test_the_page_goes_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHFLESS_PAGE", str(tmp_path / "named.html"))
    assert FiguresPage().write("Title", "Lead.", tmp_path / "own.html") == tmp_path / "named.html"
    assert not (tmp_path / "own.html").exists()


@pytest.mark.skipif(find_browser() is None, reason="no Chromium here (apt-get install chromium)")
@pytest.mark.parametrize("width", [1280, 390])
def test_a_figure_of_the_users_own_is_drawn(width: int, tmp_path: Path) -> None:
    """It says nothing of its height, margins or title."""
    page = FiguresPage()
    page.add("Mine", "", go.Figure([go.Scatter(x=[1], y=[2], name="one"), go.Scatter(x=[1], y=[3], name="two")]))
    html = drawn_page(page.write("Title", "Lead.", tmp_path / "page.html"), viewport={"width": width, "height": 800})
    assert html.count('class="scatterlayer') == 1


@pytest.mark.skipif(find_browser() is None, reason="no Chromium here (apt-get install chromium)")
@pytest.mark.parametrize("fails", ['throw new Error("no data")', 'Promise.reject(new Error("no data"))'])
def test_a_page_with_an_error_ends_the_wait_for_its_figures(fails: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(f'<div class="figure"><div id="f0"></div></div><script>{fails}</script>')
    with pytest.raises(AssertionError, match="no data"):
        drawn_page(page)


def test_a_page_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused(InputError):
        FiguresPage().write("Title", "Lead.", tmp_path / "file" / "page.html")


@pytest.mark.parametrize(
    ("found", "named", "then"),
    [
        ("plotly_mimetype", None, "plotly_mimetype+notebook"),
        ("colab", None, "colab"),
        ("kaggle", None, "kaggle"),
        ("plotly_mimetype", "plotly_mimetype", "plotly_mimetype"),
    ],
)
def test_what_plotly_found_to_be_right_stays(found: str, named: str | None, then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLOTLY_RENDERER", raising=False)
    if named:
        monkeypatch.setenv("PLOTLY_RENDERER", named)
    before = pio.renderers.default
    try:
        pio.renderers.default = found
        use_renderer()
        assert pio.renderers.default == then
    finally:
        pio.renderers.default = before
