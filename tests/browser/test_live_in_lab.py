"""``live`` in a real JupyterLab: a run is started, watched, shown again by its cell, paused and stopped; its trace is whole. It
shows what it does while the learner or a cell keeps the kernel busy, and its buttons work under Run All."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from figures import illegible, markup_of_texts, plotly_data
from lab import (
    Lab,
    another_tab,
    card,
    count_drawings,
    counted_drawings,
    dark,
    notebook,
    pane,
    run_all,
    run_cell,
    wait_drawn,
    wait_text,
)
from real_browser import PATIENCE_S

from rlhfless.trace import read_trace

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]
EXECUTOR = """
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import Executor
from rlhfless.simulate import logged_steps
from rlhfless.trace import read_rollouts
from rlhfless.widgets import Settings, live
import solver, time

class Slow(SimulatedEngine):
    def advance(self, to_s):
        time.sleep(0.1)
        return super().advance(to_s)

s = Settings("cpu-tiny-qwen2", gpus=8, time_weight=1.0).setting
work = []
for one in logged_steps(read_rollouts("hostile.jsonl")):
    problem = solver.PlanningProblem(one.predicted.points, s.cluster, s.latency, s.objective)
    work.append((solver.plan(problem), one.requests()))
runner = Executor(Slow, s.cluster, latency=s.latency)
work = 1000 * work  # 3,000 steps of 20 calls of `advance` and more: the test's time limit ends before this does
"""
TRAINER = """
from rlhfless.trace import read_trace
from rlhfless.training.loop import Trainer
from rlhfless.widgets import live

recorded = read_trace("data/traces/arithmetic-grpo")
trainer = Trainer.continue_from(
    recorded, "data/models/arithmetic-grpo", steps=recorded.steps[-1] + 3,
    rollout={"prompts_per_step": 4, "samples_per_prompt": 2}, progress=False
)
view = live(trainer)
view
"""
HELD = """
import os, time
from pathlib import Path

learn = trainer.state.learner.learn
def held(batch):
    while not Path("learns").exists():
        time.sleep(0.05)
    return learn(batch)
trainer.state.learner.learn = held
print(os.getpid())
"""
WAITS = """
view.run.run()
while not Path("frees").exists():  # a cell that computes: nothing but threads of the kernel goes on
    time.sleep(0.05)
await view.run.finished()
print("waited:", view.run.state)
"""
STATE = (
    "() => { const figure = document.querySelector(\"[data-pane='timeline']\");"
    " const held = figure && figure._fullData && figure._fullData.find((trace) => trace.name === 'allocated, idle');"
    " const step = figure && /of step (\\d+)/.exec(figure.textContent);"
    " return held && step ? 1e6 * Number(step[1]) + Math.max(...held.x) : -1; }"
)
"""How far the run is that the timeline shows: steps, then virtual seconds of the step under way; -1 before there is any."""


@pytest.fixture(autouse=True)
def closed_gates(folder: Path) -> None:
    """The tests of one process share the folder: what a test before let go on is held again."""
    for gate in ("learns", "frees"):
        (folder / gate).unlink(missing_ok=True)


def button(page: Any, name: str) -> Any:
    """A button of a view; JupyterLab's own toolbar has some of the same names."""
    return page.locator("button.jupyter-button", has_text=name)


def wait_grown(page: Any, since: float) -> float:
    """Wait until the timeline shows more of the run; how far it is then."""
    page.wait_for_function(f"(since) => ({STATE})() > since", arg=since, timeout=1e3 * PATIENCE_S)
    return float(page.evaluate(STATE))


def wait_legible(page: Any) -> None:
    """Wait until all texts of a view have the colours that the page now has."""
    until = time.monotonic() + PATIENCE_S
    while illegible(page, ".rlhfless-panes"):
        assert time.monotonic() < until, illegible(page, ".rlhfless-panes")
        page.wait_for_timeout(200)


def test_a_run_is_watched_shown_again_paused_and_stopped(lab: Lab, folder: Path, page: Any, picture: Callable) -> None:
    after = "view.run.trace.save('stopped', overwrite=True)\nprint(view.run.state, view.run.trace.steps)"
    notebook(folder / "live.ipynb", EXECUTOR, "view = live(runner, work)\nview", after)
    lab.open(page, "live.ipynb")
    for cell in (0, 1):
        run_cell(page, cell)
    wait_drawn(page, "timeline")
    assert "ready" in page.locator(pane("facts")).inner_text()
    assert button(page, "pause").is_disabled()
    button(page, "run").focus()
    page.keyboard.press("Enter")  # buttons work by keyboard
    seen = wait_grown(page, -1.0)
    seen = wait_grown(page, seen)
    picture(page.locator(".jp-OutputArea-output").last, "live_light")

    page = another_tab(page)  # a run does not need the page that started it
    lab.open(page, "live.ipynb")
    run_cell(page, 1)  # shows the same run, which went on meanwhile
    wait_text(page, "facts", "running")
    wait_grown(page, seen)
    assert markup_of_texts(page, pane("timeline")) == 0

    button(page, "pause").click()
    wait_text(page, "facts", "paused")
    button(page, "run").click()
    wait_text(page, "facts", "running")
    button(page, "stop").click()
    wait_text(page, "facts", "stopped")
    said = run_cell(page, 2)
    kept = read_trace(folder / "stopped")
    assert said.split() == ["stopped", *str(kept.steps).split()]
    assert len(kept.rollouts) > 0
    assert (kept.allocations["end_s"] >= kept.allocations["start_s"]).all()
    assert page.evaluate("window.hacked") is None
    assert page.errors == []


def test_a_training_run_shows_reward_length_actors_and_cost(lab: Lab, folder: Path, page: Any, picture: Callable) -> None:
    notebook(folder / "trainer.ipynb", TRAINER)
    lab.open(page, "trainer.ipynb")
    run_all(page)
    wait_drawn(page, "timeline")
    button(page, "run").click()
    wait_text(page, "facts", "done")
    both = "(which) => document.querySelector(which)._fullData.filter((one) => one.y.length === 2).length === 6"
    page.wait_for_function(both, arg=pane("curves"), timeout=1e3 * PATIENCE_S)
    curves = {one["name"] for one in plotly_data(page, pane("curves"), ["name"])}
    assert curves == {
        "mean reward",
        "mean length (tokens)",
        "actors",
        "idle share of the GPU-seconds",
        "mismatch of engine and learner (nats per token)",
        "GPU-seconds of generation, static = 1",
    }
    facts = page.locator(pane("facts")).inner_text()
    assert re.search(r"complete steps\s+2, 0 left", facts)
    for meter in ("GPU-seconds", "cost", "idle share", "generation GPU-seconds relative to static", "actors"):
        assert meter in facts
    assert page.errors == []
    assert illegible(page, ".rlhfless-panes") == []
    picture(page.locator(".jp-OutputArea-output").last, "live_trainer")


def test_a_view_is_alive_while_the_learner_computes_and_its_buttons_work_under_run_all(
    lab: Lab, folder: Path, page: Any, picture: Callable
) -> None:
    notebook(folder / "all.ipynb", TRAINER, HELD, WAITS, "print('then:', len(view.run.traces))")
    lab.open(page, "all.ipynb")
    page.evaluate("() => { window.ran = false; window.jupyterapp.commands.execute('notebook:run-all-cells')"
                  ".finally(() => { window.ran = true; }); }")  # fmt: skip
    wait_text(page, "phase", "learning")
    seconds = "() => document.querySelector(\"[data-pane='phase']\").innerText"
    for _ in range(3):  # a cell blocks the kernel, the learner computes
        seen = page.evaluate(seconds)
        page.wait_for_function(f"(seen) => ({seconds})() !== seen", arg=seen, timeout=1e3 * PATIENCE_S)
    assert "8 of 8" in page.evaluate(seconds)
    wait_drawn(page, "cost")
    assert "USD" not in card(page, "cost")
    assert page.locator(".rlhfless-silent").count() == 0
    view = page.locator(".jp-OutputArea-output:has(.rlhfless-panes)").last
    picture(view, "live_learning_light")
    with dark(page):
        wait_legible(page)
        picture(view, "live_learning_dark")
    wait_legible(page)

    kernel = int(page.locator(".jp-Notebook .jp-Cell").nth(1).locator(".jp-Cell-outputArea").inner_text())
    os.kill(kernel, signal.SIGSTOP)
    try:
        page.wait_for_selector(".rlhfless-silent", timeout=1e3 * PATIENCE_S)
        seen = page.evaluate(seconds)
        told = page.locator(".rlhfless-silent").inner_text()
        page.wait_for_function("(told) => document.querySelector('.rlhfless-silent').innerText !== told", arg=told)
        assert page.evaluate(seconds) == seen, "seconds that the kernel did not send do not go on"
        picture(view, "live_silent")
    finally:
        os.kill(kernel, signal.SIGCONT)
    page.wait_for_selector(".rlhfless-silent", state="detached", timeout=1e3 * PATIENCE_S)

    (folder / "frees").touch()
    button(page, "stop").click()
    wait_text(page, "facts", "stopping")  # in the cell that still waits
    assert page.evaluate("window.ran") is False
    (folder / "learns").touch()
    page.wait_for_function("window.ran === true", timeout=1e3 * PATIENCE_S)
    said = [page.locator(".jp-Notebook .jp-Cell").nth(i).locator(".jp-Cell-outputArea").inner_text() for i in (2, 3)]
    assert [text.strip() for text in said] == ["waited: stopped", "then: 1"], "the step that learned is kept"
    wait_text(page, "phase", "stopped")
    assert page.errors == []


def test_a_cell_that_trains_is_watched_while_its_learner_keeps_the_kernel_busy(
    lab: Lab, folder: Path, page: Any, picture: Callable
) -> None:
    notebook(folder / "cell.ipynb", TRAINER.replace("live(trainer)", "trainer.live()"), HELD, "trainer.train()\nprint('ran')")
    lab.open(page, "cell.ipynb")
    page.evaluate("() => { window.ran = false; window.jupyterapp.commands.execute('notebook:run-all-cells')"
                  ".finally(() => { window.ran = true; }); }")  # fmt: skip
    wait_text(page, "phase", "learning")
    seconds = "() => document.querySelector(\"[data-pane='phase']\").innerText"
    for _ in range(3):
        seen = page.evaluate(seconds)
        page.wait_for_function(f"(seen) => ({seconds})() !== seen", arg=seen, timeout=1e3 * PATIENCE_S)
    assert page.evaluate("window.ran") is False
    wait_text(page, "facts", "A cell runs these steps")
    assert button(page, "pause").is_disabled()
    assert button(page, "stop").is_disabled()
    wait_drawn(page, "cost")
    assert page.evaluate(STATE) > 60e6, "the end of generation is drawn"
    count_drawings(page)
    picture(page.locator(".jp-OutputArea-output:has(.rlhfless-panes)").last, "live_cell_learning")
    (folder / "learns").touch()
    wait_text(page, "phase", "done")
    page.wait_for_timeout(1000)
    seen = counted_drawings(page)
    assert seen["states"] == ["running", "done"], "between the steps, too, the cell goes on"
    assert len(seen["steps"]) == 2, seen
    assert {"1 1", "2 2"} <= set(seen["cards"]), "each complete step is in cards and cost while the cell runs"
    page.wait_for_function("window.ran === true", timeout=1e3 * PATIENCE_S)
    assert page.locator(".jp-Notebook .jp-Cell").nth(2).locator(".jp-Cell-outputArea").inner_text().strip().endswith("ran")
    assert page.locator(".rlhfless-silent").count() == 0
    assert page.errors == []
