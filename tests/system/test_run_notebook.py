"""The notebooks run without a browser, and their pages need neither a kernel nor a network."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from pathlib import Path

import pytest
from error_messages import refused
from notebook_rules import READ, cells_of
from real_browser import drawn_page
from small_notebooks import execute

from rlhfless.errors import InputError
from rlhfless.report import page
from rlhfless.system.browser import find_browser
from rlhfless.system.run_notebook import run_notebook

TIERS = {"09_papers": pytest.mark.nightly}  # it has no small parameters
MOST_BYTES = 3_000_000
PLOTLY = "application/vnd.plotly.v1+json"


def test_a_missing_notebook_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert page.main([str(tmp_path / "none.ipynb"), str(tmp_path / "page.html")]) == 2
    assert "none.ipynb: there is no such file; give the path of a notebook (.ipynb)" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
    assert page.main([]) == 2
    assert "NOTEBOOK is missing" in capsys.readouterr().err


def test_a_notebook_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notebook, other = tmp_path / "a.ipynb", tmp_path / "log.csv"
    notebook.write_text("{}")
    other.write_text("step\n1\n")
    for source, out in ((notebook, "a.ipynb"), (notebook, "a.html"), (other, "page.html")):
        assert page.main([str(source), str(tmp_path / out)]) == 2
        assert str(source) in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.ipynb", "log.csv"]
    assert notebook.read_text() == "{}"


@pytest.mark.full
def test_cells_that_print_into_an_output_widget_do_not_stop_the_run(tmp_path: Path) -> None:
    """What the client answers to the widget must not use up the notice of the kernel's reply: without care for that it waits
    for ever after a few dozen such cells."""
    import nbformat

    cells = ["import ipywidgets; out = ipywidgets.Output(); display(out)"]
    cells += ["for i in range(20):\n    with out:\n        print(i)"] * 100
    code = [nbformat.v4.new_code_cell(source) for source in cells]
    nbformat.write(nbformat.v4.new_notebook(cells=code), tmp_path / "widgets.ipynb")
    executed = run_notebook(tmp_path / "widgets.ipynb", tmp_path / "out" / "page.html")
    assert [c.execution_count for c in nbformat.read(executed, as_version=4).cells] == list(range(1, len(cells) + 1))


@pytest.mark.full
def test_a_failing_cell_says_which_notebook_and_why(tmp_path: Path) -> None:
    import nbformat

    broken = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("raise ValueError('no such trace')")])
    nbformat.write(broken, tmp_path / "broken.ipynb")
    with refused(InputError, "broken.ipynb", "ValueError"):
        run_notebook(tmp_path / "broken.ipynb", tmp_path / "page.html")


@pytest.mark.full
def test_a_kernel_that_dies_is_one_sentence(tmp_path: Path) -> None:
    import nbformat

    deadly = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import os; os._exit(1)")])
    nbformat.write(deadly, tmp_path / "deadly.ipynb")
    with refused(InputError, "deadly.ipynb", "kernel"):
        run_notebook(tmp_path / "deadly.ipynb", tmp_path / "page.html")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [pytest.param(n, marks=TIERS.get(n, pytest.mark.full)) for n in READ])
def test_the_notebooks_run_and_their_pages_work(name: str, executed_notebook: Callable[[str], Path]) -> None:
    check_page(executed_notebook(name))


@pytest.mark.nightly
@pytest.mark.parametrize("name", READ)
def test_the_notebooks_run_as_they_are_shipped(name: str, tmp_path: Path) -> None:
    (tmp_path / "executed").mkdir()
    check_page(execute(name, tmp_path / "executed", {}))


def check_page(executed: Path) -> None:
    """The page of an executed notebook has its sections and figures, loads nothing, is small, and is drawn by a browser."""
    page = executed.with_suffix(".html")
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=[\"']?(https?:)?//", text), "the page loads something"
    assert len(text.encode()) < MOST_BYTES
    cells = cells_of(executed)
    texts = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    titles = re.findall(r"^## (.*)$", texts, flags=re.MULTILINE)
    assert titles
    for title in titles[:-1]:  # the last one is of the list of functions
        assert f">{escape(title, quote=False)}<" in text.replace("&#39;", "'")
    shows = [output.get("data", {}) for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    figures = [data[PLOTLY] for data in shows if PLOTLY in data]
    if find_browser() is None:
        pytest.skip("no Chromium here to open pages with (apt-get install chromium)")
    shown = drawn_page(page)
    assert len(re.findall(r'<div id="figure-\d+"', shown)) == len(figures) > 0
    sliders = any(figure["layout"].get("sliders") for figure in figures)
    assert ('class="slider-container"' in shown) == sliders, "sliders can be moved without a kernel"
