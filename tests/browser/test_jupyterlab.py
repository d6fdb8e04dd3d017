"""Dashboards and notebooks in a real JupyterLab: cells run, sliders move, buttons work, and text from logs stays text."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dashboard_cells import ALL_DRAWN, DASHBOARDS, DRAWN_PANES
from figures import hover_text, illegible, markup_of_texts, plotly_data, point_at
from lab import LAPTOP, Lab, card, dark, notebook, pane, run_all, run_cell, shown_request, wait_drawn, wait_text
from real_browser import PATIENCE_S

pytestmark = pytest.mark.timeout(1800)
EXPLORE = """
import rlhfless as rl
shown = rl.load('hostile.jsonl', 8, 'cpu-tiny-qwen2', time_weight=1.0, verbose=False).explore()
shown
"""
CONTROLS = (  # of explore, the keys that change each, and what the copied settings say then
    ("time weight", ["Home"], "time_weight", 0.0),
    ("GPUs", ["ArrowRight"], "gpus", 16),
    ("GPU kind", ["ArrowDown", "ArrowDown"], "profile", "h100-qwen2.5-3b-tp2"),
    ("GPUs per actor", ["Home", "ArrowRight"], "profile", "h100-qwen2.5-3b-tp1"),  # the first is: as the plan chooses
    ("tau (rlhfless)", ["Home"], "tau", 0.05),
    ("USD per GPU-h", ["ArrowUp"], "usd_per_gpu_hour", 6.9),
    ("predictor", ["i"], "predictor", "inflight"),
)


@pytest.mark.full
def test_a_slider_plans_anew_and_a_click_tells_of_a_response(lab: Lab, folder: Path, page: Any, picture: Callable) -> None:
    notebook(folder / "explore.ipynb", EXPLORE)
    lab.open(page, "explore.ipynb")
    run_all(page)
    for name in ("timeline", "plane", "responses"):
        wait_drawn(page, name, 1)
    names = [one["name"] for one in plotly_data(page, pane("plane"))]
    front, bound = "best plans with known lengths", "lower bound: no schedule is below"
    assert {"solver (this plan)", "static", "random", front, bound} <= set(names)
    before = card(page, "GPU-seconds")
    assert illegible(page, ".rlhfless-panes") == []
    picture(page.locator(".jp-OutputArea-output").last, "explore_light")
    picture(page.locator(".jp-Notebook"), "explore_laptop", LAPTOP)

    slider = page.get_by_role("slider").first
    slider.focus()
    page.keyboard.press("Home")
    wait_text(page, "plane", "time weight 0,")
    wait_drawn(page, "plane")
    assert card(page, "GPU-seconds") != before
    assert re.search(r"%\nagainst static\n|% against static", page.locator(pane("facts")).inner_text())
    page.keyboard.press("End")
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".widget-readout >> text='0.70'")
    wait_text(page, "plane", "time weight 0.7,")  # curves of moves in between may have been drawn before
    wait_drawn(page, "plane")
    wait_drawn(page, "timeline", shown_request(page, "plane"))
    assert shown_request(page, "timeline") == shown_request(page, "plane")
    decoding = next(one for one in plotly_data(page, pane("timeline"), ["name", "y", "x"]) if one["name"] == "decode")
    rows = page.locator(f"{pane('actors')} tbody tr").count()
    assert rows == len(set(decoding["y"]))

    bar = list(decoding["y"]).index(rows - 1)  # decode is drawn right after what is held
    point_at(page, f"{pane('timeline')} .barlayer .trace:nth-child(2) .point path", number=bar, click=True)
    wait_text(page, "responses", f"Responses of actor-{rows - 1}:")
    bars = f"{pane('responses')} .barlayer .trace:last-child .point path"
    said = set()
    count = page.locator(bars).count()
    for number in range(0, count, max(1, count // 10)):
        point_at(page, bars, number)
        said.add(hover_text(page, pane("responses")))
    assert any("<script>" in one or "<b>bold</b> <a href=" in one for one in said), said
    point_at(page, bars, click=True)
    wait_text(page, "response", "Earlier responses to this prompt")
    told = page.locator(pane("response")).inner_text()
    assert re.search(r"Actor \d+ has \d+ responses", told)
    assert markup_of_texts(page, ".rlhfless-panes") == 0
    assert page.evaluate("window.hacked") is None
    assert page.errors == []
    picture(page.locator(".jp-OutputArea-output").last, "explore_response")


@pytest.mark.full
def test_every_control_works_by_keyboard_and_the_state_is_copied(lab: Lab, folder: Path, page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    notebook(folder / "keys.ipynb", EXPLORE)
    lab.open(page, "keys.ipynb")
    run_all(page)
    wait_drawn(page, "plane", 1)
    for label, keys, name, value in CONTROLS:
        page.get_by_label(label, exact=True).focus()
        for key in keys:
            page.keyboard.press(key)
        page.wait_for_function(
            "([which, name, value]) => { const pre = document.querySelector(which);"
            " return pre && JSON.parse(pre.textContent)[name] === value; }",
            arg=[f"{pane('copy')} pre.as-json", name, value],
        )
    wait_drawn(page, "timeline")
    page.locator(f"{pane('actors')} button").last.focus()
    page.keyboard.press("Enter")
    wait_text(page, "responses", f"Responses of {page.locator(pane('actors') + ' button').last.inner_text()}:")
    page.locator(f"{pane('response')} button").first.focus()
    page.keyboard.press("Enter")
    wait_text(page, "response", "next response")
    before = page.locator(pane("response")).inner_text()
    page.locator(f"{pane('response')} button", has_text="next").focus()
    page.keyboard.press("Enter")
    page.wait_for_function(
        "([which, before]) => document.querySelector(which).innerText !== before", arg=[pane("response"), before]
    )
    assert page.evaluate("document.activeElement.textContent") == "next response", "the keyboard stays where it was"
    page.get_by_role("button", name="Copy as JSON").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("async () => (await navigator.clipboard.readText()).startsWith('{')")
    assert json.loads(page.evaluate("navigator.clipboard.readText()"))["predictor"] == "inflight"
    assert page.errors == []


@pytest.mark.full
def test_the_report_of_a_log_is_shown_by_its_magic(lab: Lab, folder: Path, page: Any, picture: Callable) -> None:
    small = (folder / "hostile.jsonl").read_text("utf-8").splitlines()
    rows = [row for row in map(json.loads, small) if row["step"] == 0 and row["prompt_id"].rsplit("-", 1)[1] in SMALL]
    (folder / "small.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    notebook(folder / "magic.ipynb", "%load_ext rlhfless", "%rlhfless small.jsonl --gpus 16")
    lab.open(page, "magic.ipynb")
    run_all(page)
    frame = page.frame_locator("iframe[title='Report of small.jsonl']")
    frame.locator("h1").wait_for()
    assert "Other schedules and settings" in frame.locator("main").inner_text()
    frame.locator("summary", has_text="Other schedules and settings").click()
    frame.locator("details[open] .main-svg").first.wait_for()
    assert frame.locator("img").count() == 0
    assert page.evaluate("window.hacked") is None
    picture(page.locator("iframe[title='Report of small.jsonl']"), "magic_light")


SMALL = ("0", "1", "2", "4", "5")  # prompts whose texts are hostile
SHOWN = """
from rlhfless.plots import plot_plane, plot_timeline
from rlhfless.simulate import simulate
from rlhfless.trace import read_rollouts
from rlhfless.widgets import Settings
setting = Settings("cpu-tiny-qwen2", gpus=8, time_weight=0.3, usd_per_gpu_hour=1.5).setting
result = simulate(read_rollouts("hostile.jsonl"), setting, ["static", "solver"])
plot_timeline(result.traces["solver"])
"""
FOREIGN = "import plotly.graph_objects as go\ngo.Figure(go.Bar(y=[1, 2]))"
PAPERS = (
    "[...document.querySelectorAll('.jp-RenderedPlotly')].map((one) =>"
    " getComputedStyle(one.querySelector('.main-svg')).backgroundColor)"
)
NONE, WHITE = "rgba(0, 0, 0, 0)", "rgb(255, 255, 255)"


@pytest.mark.full
def test_figures_follow_the_theme_also_when_it_is_switched(lab: Lab, folder: Path, page: Any, picture: Callable) -> None:
    notebook(folder / "themed.ipynb", SHOWN, "plot_plane(result.table)", FOREIGN)
    lab.open(page, "themed.ipynb")
    run_all(page)
    page.wait_for_function("document.querySelectorAll('.jp-RenderedPlotly .gtitle').length >= 2")
    page.wait_for_function("document.querySelectorAll('.jp-RenderedPlotly .main-svg').length >= 9")
    page.evaluate("document.querySelectorAll('.jp-RenderedPlotly').forEach((one, i) => { one.id = `figure-${i}`; })")
    for name in ("light", "dark", "light"):
        with dark(page) if name == "dark" else contextlib.nullcontext():
            assert page.evaluate(PAPERS) == [NONE, NONE, WHITE], "ours have the page's paper, others the one they state"
            for figure in ("#figure-0", "#figure-1"):
                assert illegible(page, figure) == []
            picture(page.locator(".jp-Notebook"), f"figures_in_lab_{name}")
    ink = page.locator("#figure-0 .xtitle").evaluate("(one) => getComputedStyle(one).fill")
    with dark(page):
        assert page.locator("#figure-0 .xtitle").evaluate("(one) => getComputedStyle(one).fill") != ink
        page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
        page.wait_for_function("!window.jupyterapp.shell.currentWidget.context.model.dirty")
        page.reload()
        lab.wait_ready(page)
        page.wait_for_selector(".jp-RenderedPlotly .plot-img[src]")
        filters = page.locator(".jp-RenderedPlotly .plot-img").evaluate_all(
            "(all) => all.map((one) => getComputedStyle(one).filter)"
        )
        assert [("invert" in one) for one in filters] == [True, True, False], "plotly shows a picture until the mouse is there"
        picture(page.locator(".jp-Notebook"), "figures_in_lab_reopened_dark")
    assert page.errors == []


WIDGET = """
import ipywidgets, pandas as pd, plotly.graph_objects as go
from rlhfless.plots import plot_plane
results = pd.DataFrame({"policy": ["static", "solver"], "time_s": [9.0, 8.0], "gpu_seconds": [80.0, 60.0]})
mine, other = go.FigureWidget(plot_plane(results)), go.FigureWidget(go.Figure(go.Bar(y=[1, 2])))
"""


def show_until_drawn(page: Any, *drawn: str) -> None:
    """Make and show plotly's widgets until they are drawn: one whose data come before its 5 MB of script stays empty."""
    from playwright.sync_api import TimeoutError as NotInTime

    until, pause_s = time.monotonic() + PATIENCE_S, 1.0
    while not all(page.locator(one).count() for one in drawn):
        assert time.monotonic() < until, f"{drawn} are not drawn"
        run_cell(page, 0)  # makes them
        page.wait_for_timeout(1e3 * pause_s)
        pause_s *= 2
        for cell in (1, 2):  # show them
            run_cell(page, cell)
        with contextlib.suppress(NotInTime):
            for one in drawn:
                page.wait_for_selector(one, state="attached", timeout=1e4)


@pytest.mark.full
@pytest.mark.parametrize("shown", ["mine", "ipywidgets.VBox([ipywidgets.HBox([ipywidgets.Label('mine'), mine])])"])
def test_a_figure_widget_follows_the_theme_also_when_it_is_switched(
    shown: str, lab: Lab, folder: Path, page: Any, picture: Callable
) -> None:
    """No other figure of ours is on the page; one of another package keeps its white paper."""
    name = "widget_in_boxes" if shown.startswith("ipywidgets") else "widget_alone"
    notebook(folder / f"{name}.ipynb", WIDGET, shown, "other")
    lab.open(page, f"{name}.ipynb")
    show_until_drawn(page, ".js-plotly-plot .gtitle", ".js-plotly-plot .barlayer .point")
    page.evaluate("document.querySelectorAll('.js-plotly-plot').forEach((one, i) => { one.id = `widget-${i}`; })")
    inks = set()
    for theme in ("light", "dark", "light"):
        with dark(page) if theme == "dark" else contextlib.nullcontext():
            page.wait_for_function(
                "(wanted) => [...document.querySelectorAll('.js-plotly-plot')].map((one) =>"
                " getComputedStyle(one.querySelector('.main-svg')).backgroundColor).join() === wanted",
                arg=f"{NONE},{WHITE}",
                timeout=1e3 * PATIENCE_S,
            )
            assert illegible(page, "#widget-0") == []
            inks.add(page.locator("#widget-0 .xtitle").evaluate("(one) => getComputedStyle(one).fill"))
            picture(page.locator(".jp-Notebook"), f"{name}_{theme}")
    assert len(inks) == 2, "its text is dark on light and light on dark paper"
    assert page.locator(".jp-OutputArea-child:visible").count() == 2, "the output that holds the style sheet takes no room"
    assert page.errors == []


@pytest.mark.nightly
def test_dark_pages_have_light_text(lab: Lab, folder: Path, page: Any, picture: Callable) -> None:
    tables = ("planned.plan", "front", "planned.bound", "settings.setting.latency", "planned.trace")
    figure = "from rlhfless.plots import plot_timeline\nplot_timeline(shown.planned.trace)"
    notebook(folder / "dark.ipynb", EXPLORE, "shown.wait(60)", *(f"shown.{table}" for table in tables), figure)
    lab.open(page, "dark.ipynb")
    with dark(page):
        run_all(page)
        wait_drawn(page, "plane", 1)
        page.wait_for_selector(".jp-RenderedPlotly .gtitle", state="attached")
        assert illegible(page, ".jp-OutputArea-output") == []
        picture(page.locator(".jp-OutputArea-output").first, "explore_dark")
        picture(page.locator(".jp-RenderedPlotly").last, "figure_dark")
        for n, table in enumerate(tables, start=2):
            picture(page.locator(".jp-OutputArea-output").nth(n), f"repr_dark_{table.rsplit('.', 1)[-1]}")
    assert page.errors == []


@pytest.mark.full
def test_dark_pages_have_light_text_in_every_dashboard(lab: Lab, folder: Path, page: Any, picture: Callable) -> None:
    notebook(folder / "dark_dashboards.ipynb", *DASHBOARDS.values(), "result")
    lab.open(page, "dark_dashboards.ipynb")
    with dark(page):
        run_all(page)
        page.wait_for_function(ALL_DRAWN, arg=DRAWN_PANES)
        wait_text(page, "facts", "done")
        assert illegible(page, ".jp-OutputArea-output") == []
        for n, name in enumerate([*DASHBOARDS, "repr_dark_simulation"]):
            picture(page.locator(".jp-OutputArea-output").nth(n), f"{name}_dark" if name in DASHBOARDS else name)
    assert page.errors == []


@pytest.mark.full
def test_a_figure_of_a_report_and_a_dashboard_are_drawn_in_notebook_7(
    lab: Lab, folder: Path, page: Any, picture: Callable
) -> None:
    figure = (
        "import rlhfless as rl\nfrom rlhfless.plots import plot_timeline, use_renderer\nuse_renderer()\n"
        "run = rl.load('hostile.jsonl', 8, 'cpu-tiny-qwen2', verbose=False)\n"
        "plot_timeline(run.plan(step=-1).compare('static').traces['static'])"
    )
    notebook(folder / "seven.ipynb", figure, "run.explore()")
    lab.open(page, "seven.ipynb", view="notebooks")
    page.errors.clear()  # of Notebook 7 itself
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    page.locator(".jp-OutputArea-output .js-plotly-plot .gtitle").first.wait_for()
    assert "GPU timeline of step" in page.locator(".jp-OutputArea-output .js-plotly-plot .gtitle").first.text_content()
    wait_drawn(page, "timeline", 1)
    wait_drawn(page, "plane", 1)
    picture(page.locator(".jp-Notebook"), "notebook_7_report_and_dashboard")
    assert page.errors == []
