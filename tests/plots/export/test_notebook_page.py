"""What a notebook showed becomes a page without its code, and figures are drawn wherever the notebook is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from error_messages import refused
from page_figures import figures_json
from real_browser import drawn_page

pio = pytest.importorskip("plotly.io", reason="plotly is not installed")
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
import plotly.graph_objects as go  # noqa: E402

from rlhfless.errors import InputError  # noqa: E402
from rlhfless.plots import use_renderer  # noqa: E402
from rlhfless.plots.export.notebook_page import FIGURE, HTML, PLAIN, SENTENCE, WIDGET, write_notebook_page  # noqa: E402
from rlhfless.plots.export.plotly_bundle import plotly_js  # noqa: E402
from rlhfless.plots.renderer import THEME_STYLE  # noqa: E402
from rlhfless.system.browser import find_browser  # noqa: E402

NAMES = {"figure": FIGURE, "html": HTML, "plain": PLAIN, "widget": WIDGET}


def executed(folder: Path, *cells: Any) -> Path:
    """A notebook with these cells after its first one."""
    head = nbformat.v4.new_markdown_cell("# A *title*\n\n**What it is for:** to test [pages](x.md).\n\nText of `code`.")
    path = folder / "executed.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[head, *cells]), path)
    return path


def ran(*outputs: Any) -> Any:
    return nbformat.v4.new_code_cell("secret_code()", outputs=list(outputs))


def output(**data: Any) -> Any:
    return nbformat.v4.new_output("display_data", data={NAMES[name]: value for name, value in data.items()})


def test_texts_tables_and_figures_of_a_notebook_are_on_its_page_and_code_is_not(tmp_path: Path) -> None:
    figure = json.loads(go.Figure(go.Bar(x=[1], y=[2])).to_json())
    text = nbformat.v4.new_markdown_cell("## A section\n\n- one **item**\n- another\n\n| a | b |\n|---|---|\n| 1 | `two` |")
    printed = nbformat.v4.new_output("stream", name="stdout", text="3 < 4\n")
    frame = output(html=pd.DataFrame({"column": ["<b>x</b>"]}).to_html(), plain="a frame")
    library = output(html="<script>window.Plotly</script>")
    drawn = output(figure=figure, html="<script></script>")
    theme = output(html=f"{THEME_STYLE}.js-plotly-plot {{}}</style>", plain="")
    page = write_notebook_page(executed(tmp_path, text, ran(printed, frame, library, drawn, theme)), tmp_path / "a" / "p.html")
    found = page.read_text("utf-8")
    for part in ("<h1>A title</h1>", ">To test pages.<", "<p>Text of code.</p>", ">A section</h2>", "<p>• one item</p>",
                 "<td class=\"text short\">two</td>", "3 &lt; 4", "&lt;b&gt;x&lt;/b&gt;"):  # fmt: skip
        assert part in found, part
    assert figures_json(found).startswith('{"figure-1":[{"data"')
    assert "secret_code" not in found
    assert "window.Plotly<" not in found
    assert THEME_STYLE not in found


def test_a_picture_of_what_a_cell_draws_is_left_out(tmp_path: Path) -> None:
    text = nbformat.v4.new_markdown_cell("Before.\n\n![What the cell draws](../docs/one_step.png)\n*The caption.*\n\nAfter.")
    page = write_notebook_page(executed(tmp_path, text), tmp_path / "page.html").read_text("utf-8")
    assert "<p>Before.</p>" in page
    assert "<p>After.</p>" in page
    assert not [part for part in ("What the cell draws", "The caption", "one_step") if part in page]


def test_errors_warnings_and_parameters_are_on_the_page_and_progress_bars_are_not(tmp_path: Path) -> None:
    failed = nbformat.v4.new_output("error", ename="TrainError", evalue="\x1b[31mno <such> option", traceback=[])
    bars = "Loading:   0%|          | 0/26\rLoading: 100%|##########| 26/26\ntrain: chosen: gpus=4\n"
    told = nbformat.v4.new_output("stream", name="stderr", text=bars)
    parameters = nbformat.v4.new_code_cell("LOG = rl.example()", metadata={"tags": ["parameters"]})
    page = write_notebook_page(executed(tmp_path, parameters, ran(told, failed)), tmp_path / "page.html").read_text("utf-8")
    for part in (
        "LOG = rl.example()",
        "TrainError: no &lt;such&gt; option",
        "train: chosen: gpus=4",
    ):
        assert part in page, part
    assert "Loading" not in page
    assert "secret_code" not in page


def test_a_sentence_stands_in_the_place_of_a_dashboard(tmp_path: Path) -> None:
    dashboard = output(widget={"model_id": "1"}, plain="This dashboard is not shown.")
    bar = output(widget={"model_id": "2"}, plain="0%|")
    found = write_notebook_page(executed(tmp_path, ran(dashboard, bar)), tmp_path / "page.html").read_text("utf-8")
    assert found.count(SENTENCE) == 1, "a progress bar is no dashboard"


def test_the_list_of_functions_and_what_follows_is_left_out(tmp_path: Path) -> None:
    links = nbformat.v4.new_markdown_cell("## The functions used here\n\n[`f`](f.py)")
    assert "functions used" not in write_notebook_page(executed(tmp_path, links), tmp_path / "page.html").read_text("utf-8")


def test_what_the_small_library_cannot_draw_brings_the_whole_one() -> None:
    assert len(plotly_js({"bar", "scatter"})) < 2_000_000 < len(plotly_js({"bar", "scattergl"}))


@pytest.mark.skipif(find_browser() is None, reason="no Chromium here (apt-get install chromium)")
@pytest.mark.parametrize("width", [1280, 390])
def test_a_figure_of_the_users_own_is_drawn(width: int, tmp_path: Path) -> None:
    """It says nothing of its height, margins or title."""
    figure = go.Figure([go.Scatter(x=[1], y=[2], name="one"), go.Scatter(x=[1], y=[3], name="two")])
    page = write_notebook_page(executed(tmp_path, ran(output(figure=json.loads(figure.to_json())))), tmp_path / "page.html")
    html = drawn_page(page, viewport={"width": width, "height": 800})
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
        write_notebook_page(executed(tmp_path), tmp_path / "file" / "page.html")
    with refused(InputError, "file"):
        write_notebook_page(tmp_path / "file", tmp_path / "page.html")


@pytest.mark.parametrize(
    ("found", "named", "then"),
    [
        ("plotly_mimetype", None, "plotly_mimetype+notebook+rlhfless_theme"),
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
