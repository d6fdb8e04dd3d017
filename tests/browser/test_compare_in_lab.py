"""``compare`` and ``zoom`` in a real JupyterLab: steps are chosen by keyboard, differences are marked, parts are drawn anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from figures import hover_text, illegible, markup_of_texts, plotly_data, point_at
from lab import ROOT, Lab, notebook, pane, run_all, shown_request, wait_drawn, wait_text

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]
EVIL = "<b>static</b><a href='javascript:window.hacked=1'>"
COMPARE = f"""
from rlhfless.simulate import simulate
from rlhfless.trace import read_rollouts
from rlhfless.widgets import Settings, compare
setting = Settings("cpu-tiny-qwen2", gpus=8, time_weight=0.3, usd_per_gpu_hour=1.5).setting
traces = simulate(read_rollouts("hostile.jsonl"), setting, ["static", "rlhfless", "solver"]).traces
compare({{{EVIL!r}: traces["static"], "rlhfless": traces["rlhfless"], "solver": traces["solver"]}})
"""
ZOOM = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests" / "support")!r})
from many_spans import many_spans
from rlhfless.widgets import zoom
zoom(many_spans(100_000))
"""


def test_runs_stand_beside_each_other_with_differences_marked(lab: Lab, folder: Path, page: Any, picture: Callable) -> None:
    notebook(folder / "compare.ipynb", COMPARE)
    lab.open(page, "compare.ipynb")
    run_all(page)
    for name in ("plane", "timelines"):
        wait_drawn(page, name)
    numbers = page.locator(pane("numbers"))
    assert EVIL in numbers.inner_text()
    assert "3 steps" in numbers.inner_text()
    signs = page.evaluate(
        "(which) => [...document.querySelectorAll(which + ' td.better, ' + which + ' td.worse')].map("
        "(cell) => [cell.classList.contains('better'), getComputedStyle(cell, '::before').content, cell.innerText])",
        pane("numbers"),
    )
    assert {(better, sign) for better, sign, _ in signs} == {(True, '"▼ "'), (False, '"▲ "')}
    assert all("%)" in text for *_, text in signs), "what is marked says by how much"
    assert illegible(page, ".rlhfless-panes") == []
    picture(page.locator(".jp-OutputArea-output").last, "compare_light")

    page.get_by_role("slider").first.focus()
    page.keyboard.press("ArrowRight")
    wait_text(page, "numbers", "step 0")
    wait_text(page, "plane", "Time and cost: step 0")
    assert len(plotly_data(page, pane("plane"))) >= 3
    for name, shape in (("plane", ".scatterlayer .points path"), ("timelines", ".barlayer .point path")):
        point_at(page, f"{pane(name)} {shape}")
        hover_text(page, pane(name))
    assert "<b>static</b>" in page.locator(pane("plane")).text_content()
    assert "<b>static</b>" in page.locator(pane("timelines")).text_content()
    assert markup_of_texts(page, ".jp-Notebook .rlhfless-panes") == 0
    assert page.evaluate("window.hacked") is None
    assert page.errors == []


def test_a_part_of_a_hundred_thousand_spans_is_drawn_one_by_one(lab: Lab, folder: Path, page: Any, picture: Callable) -> None:
    notebook(folder / "zoom.ipynb", ZOOM)
    lab.open(page, "zoom.ipynb")
    run_all(page)
    wait_drawn(page, "timeline")
    assert [one["type"] for one in plotly_data(page, pane("timeline"))] == ["heatmap"]
    picture(page.locator(".jp-OutputArea-output").last, "zoom_far")
    request = shown_request(page, "timeline")
    area = page.locator(f"{pane('timeline')} .nsewdrag").bounding_box()
    page.mouse.move(area["x"] + 0.50 * area["width"], area["y"] + 60)
    page.mouse.down()
    page.mouse.move(area["x"] + 0.53 * area["width"], area["y"] + 80, steps=4)
    page.mouse.up()
    wait_drawn(page, "timeline", request + 1)
    types = {one["name"]: one["type"] for one in plotly_data(page, pane("timeline"))}
    assert types["decode"] == types["migrate"] == "bar"
    picture(page.locator(".jp-OutputArea-output").last, "zoom_near")
    assert page.errors == []
