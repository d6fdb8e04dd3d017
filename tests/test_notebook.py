"""The first notebook runs without a browser and leaves a page that needs neither a kernel nor a network."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from rlhfless.cli import main
from rlhfless.errors import InputError
from rlhfless.notebook import run_notebook

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "01_one_step.ipynb"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def test_a_missing_notebook_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["run-notebook", str(tmp_path / "none.ipynb"), "-o", str(tmp_path / "page.html")])
    assert result.exit_code == 2
    assert "none.ipynb: is no file; give a notebook" in result.output
    assert not (tmp_path / "page.html").exists()


def test_the_notebook_ships_without_outputs() -> None:
    import nbformat

    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells if cell.cell_type == "code")


@pytest.mark.full
def test_a_failing_cell_says_which_notebook_and_why(tmp_path: Path) -> None:
    import nbformat

    broken = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("raise ValueError('no such trace')")])
    nbformat.write(broken, tmp_path / "broken.ipynb")
    with pytest.raises(InputError, match=r"broken\.ipynb: a cell failed \(ValueError: no such trace\)"):
        run_notebook(tmp_path / "broken.ipynb", tmp_path / "page.html")


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_first_notebook_runs_and_its_page_works(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    executed = run_notebook(NOTEBOOK, page)
    assert executed == tmp_path / "page.ipynb"
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=[\"']?(https?:)?//", text), "the page loads something"
    for heading in ("What was executed", "What better schedules would have done", "Time against cost"):
        assert heading in text
    if CHROMIUM is None:
        pytest.skip("the page was written; no Chromium here to open it")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000", "--dump-dom"]
    shown = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=300, check=True).stdout
    assert shown.count('class="main-svg"') >= 10, "figures are drawn"
    assert "slider-container" in shown, "the time weight can be moved without a kernel"
