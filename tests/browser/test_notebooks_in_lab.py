"""Every notebook in a real JupyterLab: what its cells say and draw is on the page, and its sliders move.

The first notebook and the what-ifs are run in JupyterLab itself, slider moves included. The others take minutes: they are
opened with the outputs of the one run that ``tests/system/test_run_notebook.py`` looks at, too, and the page is compared with
them. All of them have small parameters.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from figures import move_slider_to_its_other_end, share_buttons
from lab import ROOT, Lab, card, pane, run_all, shown_request, wait_drawn, wait_text
from small_notebooks import RECORDED, SMALL, write_copy

pytestmark = pytest.mark.timeout(1800)
FULL = pytest.mark.full
PLOTLY = "application/vnd.plotly.v1+json"
LIVE = ("01_quick_start", "06_what_if")
OFTEN = ("02_your_log",)  # the others before a release; all are executed without a browser more often
EXECUTED = sorted(
    str(path.relative_to(ROOT / "notebooks").with_suffix(""))
    for path in (ROOT / "notebooks").glob("*.ipynb")
    if path.stem not in (*LIVE, "dashboard")  # a page of its own
)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
DRAWN = "(count) => [...document.querySelectorAll('.js-plotly-plot')].filter((one) => one._fullData).length >= count"
LOADED = "(which) => document.querySelector(which)?.naturalWidth > 0"
DATA = "[...document.querySelectorAll('.jp-Notebook .js-plotly-plot')].map((one) => one._fullData.map((t) => t.type))"


def told(cells: list[Any]) -> tuple[list[str], list[list[str]]]:
    """First lines of what cells printed, and the types of traces of every figure that they drew."""
    lines, figures = [], []
    for output in (output for cell in cells if cell.cell_type == "code" for output in cell.outputs):
        if output.output_type == "stream" and output.name == "stdout":
            text = COLOURS.sub("", output.text)  # JupyterLab shows colours, not their codes
            printed = [line.split("\r")[-1].strip() for line in text.split("\n")]
            lines += [line for line in printed if line][:1]
        if PLOTLY in output.get("data", {}):
            figures.append([trace["type"] for trace in output["data"][PLOTLY]["data"]])
    return lines, figures


@pytest.mark.parametrize("name", [pytest.param(n, marks=FULL if n in OFTEN else pytest.mark.nightly) for n in EXECUTED])
def test_what_a_notebook_said_and_drew_is_on_its_page(
    name: str, executed_notebook: Callable[[str], Path], lab: Lab, page: Any, picture: Callable
) -> None:
    executed = executed_notebook(name)
    shutil.copy(executed, lab.folder / "notebooks" / f"{name}.ipynb")
    lab.trust(f"notebooks/{name}.ipynb")
    lines, figures = told(nbformat.read(executed, as_version=4).cells)
    assert len(figures) >= 2
    lab.open(page, f"notebooks/{name}.ipynb")
    page.wait_for_function(DRAWN, arg=len(figures))
    assert page.evaluate(DATA) == figures
    assert share_buttons(page) == 0
    shown = " ".join(str(page.locator(".jp-Notebook").inner_text()).split())
    assert [line for line in lines if " ".join(line.split()) not in shown] == []
    if page.locator(".js-plotly-plot .slider-container").count():
        page.evaluate("document.querySelector('.js-plotly-plot:has(.slider-container)').id = 'slides'")
        move_slider_to_its_other_end(page, "#slides")
    assert page.errors == []
    picture(page.locator(".js-plotly-plot").last, f"notebook_{name}")


@pytest.mark.full
def test_the_first_notebook_runs_and_its_sliders_plan(lab: Lab, page: Any, picture: Callable) -> None:
    write_copy("01_quick_start", lab.folder / "notebooks" / "01_quick_start.ipynb", SMALL["01_quick_start"])
    lab.open(page, "notebooks/01_quick_start.ipynb")
    page.wait_for_function(LOADED, arg=".jp-MarkdownOutput img")
    run_all(page, 1500)
    page.wait_for_function(DRAWN, arg=4)
    assert all(page.evaluate(DATA))
    slider_plans(page)
    assert page.errors == []
    picture(page.locator(".js-plotly-plot").last, "notebook_01_quick_start")


def slider_plans(page: Any) -> None:
    """Moving the slider of the time weight plans the step anew."""
    for name in ("timeline", "plane", "responses"):
        wait_drawn(page, name, 1)
    before = card(page, "GPU-seconds")
    page.get_by_role("slider").first.focus()
    page.keyboard.press("Home")
    wait_text(page, "plane", "time weight 0,")
    wait_drawn(page, "timeline", shown_request(page, "plane"))
    assert card(page, "GPU-seconds") != before


@pytest.mark.nightly
def test_the_what_ifs_run_and_their_slider_plans(lab: Lab, page: Any, picture: Callable) -> None:
    write_copy("06_what_if", lab.folder / "notebooks" / "06_what_if.ipynb", {"LOG": RECORDED, "GPUS": [4, 8]})
    lab.open(page, "notebooks/06_what_if.ipynb")
    run_all(page, 1500)
    slider_plans(page)
    page.locator(f"{pane('numbers')} td.better").first.wait_for(state="attached")  # compare, below
    assert len(page.evaluate(DATA)) >= 4
    assert all(page.evaluate(DATA))
    assert page.errors == []
    picture(page.locator(".js-plotly-plot").last, "notebook_06_what_if")
