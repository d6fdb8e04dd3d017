"""Dashboards and notebooks in a real JupyterLab: cells run, sliders move, buttons work, and text from logs stays text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab import Lab, notebook, pane, plotly_data, point_at, run_all, shown_request, wait_drawn, wait_text

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
EXPLORE = """
from rlhfless.widgets import explore
shown = explore('hostile.jsonl', profile='cpu-tiny-qwen2', gpus=8, time_weight=1.0)
shown
"""
LIVE = """
from rlhfless.engine.simulated import SimulatedEngine
from rlhfless.executor import Executor
from rlhfless.simulate import logged_steps
from rlhfless.trace import read_rollouts
from rlhfless.widgets import Settings, live
import solver, time

class Slow(SimulatedEngine):
    def advance(self, to_s):
        time.sleep(0.05)
        return super().advance(to_s)

s = Settings("cpu-tiny-qwen2", gpus=8, time_weight=1.0).setting
work = []
for one in logged_steps(read_rollouts("hostile.jsonl")):
    work.append((solver.plan_generation(one.predicted.points, s.cluster, s.latency, s.objective), one.requests()))
runner = Executor(Slow, s.latency, s.cluster)
work = 100 * work  # it goes on for as long as the page is looked at
"""


def cards(page: Any) -> str:
    return str(page.locator(pane("facts")).inner_text())


def button(page: Any, name: str) -> Any:
    """A button of a view; JupyterLab's own toolbar has some of the same names."""
    return page.locator("button.jupyter-button", has_text=name)


def test_a_slider_plans_anew_and_a_click_tells_of_a_response(lab: Lab, folder: Path, page: Any, picture: Callable) -> None:
    notebook(folder / "explore.ipynb", EXPLORE)
    lab.open(page, "explore.ipynb")
    run_all(page)
    for name in ("timeline", "plane", "responses"):
        wait_drawn(page, name, 1)
    names = [one["name"] for one in plotly_data(page, "plane")]
    assert {"this plan, executed", "static", "planning front (predicted)", "bound: no policy can be below"} <= set(names)
    before = cards(page)
    picture(page.locator(".jp-OutputArea-output").last, "explore_light")

    slider = page.get_by_role("slider").first
    slider.focus()
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".widget-readout >> text='0.70'")
    wait_text(page, "plane", "time weight 0.7")  # curves of moves in between may have been drawn before
    wait_drawn(page, "plane")
    wait_drawn(page, "timeline", shown_request(page, "plane"))
    assert cards(page) != before
    assert shown_request(page, "timeline") == shown_request(page, "plane")
    decoding = next(one for one in plotly_data(page, "timeline", ["name", "y", "x"]) if one["name"] == "decode")
    rows = page.locator(f"{pane('actors')} tbody tr").count()
    assert rows == len(set(decoding["y"]))

    point_at(page, f"{pane('timeline')} .barlayer .point path", click=True)
    page.wait_for_timeout(500)
    point_at(page, f"{pane('responses')} .barlayer .point path", click=True)
    page.wait_for_selector(f"{pane('response')} table")
    told = page.locator(pane("response")).inner_text()
    assert re.search(r"Actor \d+ has \d+ responses", told)
    assert "History of the prompt" in told
    assert page.locator(f"{pane('response')} script, {pane('response')} img").count() == 0
    assert page.evaluate("window.hacked") is None
    assert page.errors == []
    picture(page.locator(".jp-OutputArea-output").last, "explore_response")


def test_the_state_is_copied_to_the_clipboard(lab: Lab, folder: Path, page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    notebook(folder / "copy.ipynb", EXPLORE)
    lab.open(page, "copy.ipynb")
    run_all(page)
    page.get_by_role("button", name="Copy as JSON").click()
    page.wait_for_selector("text=copied")
    assert json.loads(page.evaluate("navigator.clipboard.readText()"))["profile"] == "cpu-tiny-qwen2"


def test_a_run_is_watched_paused_and_stopped(lab: Lab, folder: Path, page: Any, picture: Callable) -> None:
    notebook(folder / "live.ipynb", LIVE, "view = live(runner, work)\nview")
    lab.open(page, "live.ipynb")
    run_all(page)
    wait_drawn(page, "timeline")
    assert "ready" in cards(page)
    button(page, "run").click()
    wait_text(page, "facts", "responses")
    page.wait_for_function("document.querySelector(\"[data-pane='timeline']\")._fullData.some((t) => t.name === 'decode')")
    ends = "Math.max(...document.querySelector(\"[data-pane='timeline']\")._fullData[0].x)"
    first = page.evaluate(ends)
    page.wait_for_function(f"(first) => {ends} > first", arg=first, timeout=60_000)  # it grows
    picture(page.locator(".jp-OutputArea-output").last, "live_light")
    button(page, "pause").click()
    wait_text(page, "facts", "paused")
    button(page, "stop").click()
    wait_text(page, "facts", "stopped")
    assert page.errors == []


def test_the_report_of_a_log_is_shown_by_its_magic(lab: Lab, folder: Path, page: Any, picture: Callable) -> None:
    small = (folder / "hostile.jsonl").read_text("utf-8").splitlines()
    rows = [row for row in map(json.loads, small) if row["prompt_id"].rsplit("-", 1)[1] in ("0", "1", "2", "4", "5")]
    (folder / "small.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    notebook(folder / "magic.ipynb", "%load_ext rlhfless", "%rlhfless small.jsonl")
    lab.open(page, "magic.ipynb")
    run_all(page)
    frame = page.frame_locator("iframe[title='Report of small.jsonl']")
    frame.locator("h1").wait_for()
    assert "What better schedules would have done" in frame.locator("main").inner_text()
    frame.locator(".main-svg").first.wait_for()
    assert frame.locator("img").count() == 0
    assert page.evaluate("window.hacked") is None
    picture(page.locator("iframe[title='Report of small.jsonl']"), "magic_light")


def test_dark_pages_have_light_text(folder: Path, page: Any, picture: Callable, tmp_path: Path) -> None:
    tables = ("planned.plan", "others.front", "others.bound", "settings.setting.latency", "planned.trace")
    notebook(folder / "dark.ipynb", EXPLORE, "shown.wait(60)", *(f"shown.{table}" for table in tables))
    with Lab(folder, tmp_path, theme="JupyterLab Dark") as dark:
        dark.open(page, "dark.ipynb")
        run_all(page)
        wait_drawn(page, "plane", 1)
        colour = page.evaluate(f'getComputedStyle(document.querySelector("{pane("plane")} .gtitle")).fill')
        assert min(int(part) for part in re.findall(r"\d+", colour)[:3]) > 150, colour
        picture(page.locator(".jp-OutputArea-output").first, "explore_dark")
        for n, table in enumerate(tables, start=2):
            picture(page.locator(".jp-OutputArea-output").nth(n), f"repr_dark_{table.rsplit('.', 1)[1]}")
    assert page.errors == []


@pytest.mark.parametrize("name", ["01_one_step", "07_what_if"])
def test_a_notebook_runs_in_jupyterlab(name: str, lab: Lab, page: Any, picture: Callable) -> None:
    lab.open(page, f"notebooks/{name}.ipynb")
    run_all(page, 240)
    page.wait_for_selector(".js-plotly-plot .main-svg", timeout=30_000)
    assert page.evaluate("document.querySelectorAll('.js-plotly-plot').length") >= 2
    assert page.evaluate("[...document.querySelectorAll('.js-plotly-plot')].every((one) => one._fullData.length > 0)")
    assert page.errors == []
    picture(page.locator(".js-plotly-plot").last, f"notebook_{name}")
