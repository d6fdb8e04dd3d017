"""The notebooks run without a browser and leave a page that needs neither a kernel nor a network."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from error_messages import refused
from real_browser import drawn_page
from small_notebooks import execute

from rlhfless.cli import main
from rlhfless.errors import InputError
from rlhfless.system.browser import find_browser
from rlhfless.system.run_notebook import run_notebook

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PAGES = {  # headings (and marks) of a notebook's page, the drawings that it has at least, and whether there are sliders
    "01_one_step": (("What was executed", "What better schedules would have done", "Time against cost"), 10, True),
    "02_planning": (
        ("1. The problem", "2. The bound", "3. The front", "4. Uncertainty", "5. Several kinds", "6. What is"),
        12,
        True,
    ),
    "03_executor": (
        (
            "1. One step",
            "2. Which schedule wins",
            "2. The same step",
            "3. The same tokens",
            "4. Prompts computed",
            "5. Plan against",
        ),
        10,
        False,
    ),
    "04_cluster": (
        ("1. One step", "2. Four life-cycles", "2. The time lines", "3. The same", "3. A kill", "event: lost", "event: retry"),
        8,
        False,
    ),
    "05_training": (
        ("1. A few live steps", "2. Preparation", "The same step", "3. What whole", "4. Does it learn", "Longer answers"),
        5,
        False,
    ),
    "06_your_logs": (
        ("2. Where the GPU-seconds went", "The straggler: the last response", "3. What other", "4. What if", "5. The decision"),
        4,
        False,
    ),
    "08_paper/01_figures": (("1. Paper says, we find", "Figure 10", "Figure 2b", "Figure 16", "Figure 17"), 14, False),
    "07_what_if": (("2. The same without widgets", "3. Why a response", "4. Several policies"), 4, False),
}
TIERS = {"08_paper/01_figures": pytest.mark.nightly}  # it has no small parameters; the others are full


def test_a_missing_notebook_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["run-notebook", str(tmp_path / "none.ipynb"), "-o", str(tmp_path / "page.html")])
    assert result.exit_code == 2
    assert "none.ipynb: there is no such file; give a notebook" in result.output
    assert not (tmp_path / "page.html").exists()


@pytest.mark.full
def test_cells_that_print_into_an_output_widget_do_not_stop_the_run(tmp_path: Path) -> None:
    """What the client answers to the widget must not use up the notice of the kernel's reply: without care for that it waits
    for ever after a few dozen such cells."""
    import nbformat

    cells = ["import os; from pathlib import Path; import ipywidgets; out = ipywidgets.Output(); display(out)"]
    cells += ["for i in range(20):\n    with out:\n        print(i)"] * 100
    cells += ["Path(os.environ['RLHFLESS_PAGE']).write_text('<p>done</p>')"]
    code = [nbformat.v4.new_code_cell(source) for source in cells]
    nbformat.write(nbformat.v4.new_notebook(cells=code), tmp_path / "widgets.ipynb")
    executed = run_notebook(tmp_path / "widgets.ipynb", tmp_path / "out" / "page.html")
    assert [c.execution_count for c in nbformat.read(executed, as_version=4).cells] == list(range(1, len(cells) + 1))
    assert (tmp_path / "out" / "page.html").read_text() == "<p>done</p>"
    assert "RLHFLESS_PAGE" not in os.environ, "the next page of this process is written where it is told"


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
@pytest.mark.parametrize("name", [pytest.param(n, marks=TIERS.get(n, pytest.mark.full)) for n in PAGES])
def test_the_notebooks_run_and_their_pages_work(name: str, executed_notebook: Callable[[str], Path]) -> None:
    check_page(name, executed_notebook(name))


@pytest.mark.nightly
@pytest.mark.parametrize("name", PAGES)
def test_the_notebooks_run_as_they_are_shipped(name: str, tmp_path: Path) -> None:
    (tmp_path / "executed").mkdir()
    check_page(name, execute(name, tmp_path / "executed", {}))


def check_page(name: str, executed: Path) -> None:
    """The page that a notebook wrote has its sections, loads nothing, and is drawn by a browser."""
    assert executed.name == "page.ipynb"
    page = executed.with_suffix(".html")
    headings, drawings, sliders = PAGES[name]
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=[\"']?(https?:)?//", text), "the page loads something"
    for heading in headings:
        assert heading in text
    if find_browser() is None:
        pytest.skip("no Chromium here to open pages with (apt-get install chromium)")
    shown = drawn_page(page)
    assert shown.count('class="main-svg"') >= drawings, "figures are drawn"
    assert ('class="slider-container"' in shown) == sliders, "sliders can be moved without a kernel"
