"""``live`` on a page of Voila, wide and on a telephone: it grows while a run goes on, and shows the learner at work."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from lab import ROOT, card, count_drawings, counted_drawings, pane, wait_text
from voila_server import open_dashboard, served

if find_spec("voila") is None:  # not imported, as it is a command here
    pytest.skip("voila is not installed (pip install 'rlhfless[dev]')", allow_module_level=True)
pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]
CELLS = f"""
import time
from rlhfless.trace import read_trace
from rlhfless.training.algorithms import policy_gradient
from rlhfless.training.loop import Trainer

recorded = read_trace({str(ROOT / "data/traces/arithmetic-grpo")!r})
trainer = Trainer.continue_from(
    recorded, {str(ROOT / "data/models/arithmetic-grpo")!r}, steps=recorded.steps[-1] + 4,
    rollout={{"prompts_per_step": 4, "samples_per_prompt": 2}}, progress=False
)
update = policy_gradient.clip_and_step

def slow(*given):  # the learner of a large model
    while not Path("learns").exists():
        time.sleep(0.05)
    until = time.thread_time() + 10
    while time.thread_time() < until:  # keeps a processor busy
        pass
    return update(*given)

policy_gradient.clip_and_step = slow
"""
FITS = """(pane) => { const figure = document.querySelector(pane);
  return figure.querySelector(".gtitle").getBoundingClientRect().right <= figure.getBoundingClientRect().right; }"""
TITLED = "([pane, title]) => document.querySelector(pane).innerText.replace(/\\s/g, '').includes(title)"
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


def test_a_page_shows_a_training_run_while_it_runs(page: Any, tmp_path: Path, picture: Callable) -> None:
    code = f"import os\nfrom pathlib import Path\nos.chdir({str(tmp_path)!r})\n{CELLS}"
    cells = [
        {"cell_type": "code", "metadata": {}, "source": source, "outputs": [], "execution_count": None}
        for source in (code, "trainer.live()")
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    book = tmp_path / "live.ipynb"
    book.write_text(json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8")
    with served(tmp_path, notebook=book) as (address, token):
        page.set_viewport_size(DESK)
        page.route(lambda url: not url.startswith(address), lambda route: route.abort())
        open_dashboard(page, f"{address}?token={token}", "timeline", request=0)
        page.errors.clear()
        assert "The run has not started" in page.locator(pane("timeline")).inner_text()
        count_drawings(page)
        page.locator("button.jupyter-button", has_text="run").click()
        wait_text(page, "phase", "learning")
        seen = page.locator(pane("phase")).inner_text()
        page.wait_for_function("([which, seen]) => document.querySelector(which).innerText !== seen", arg=[pane("phase"), seen])
        wait_text(page, "timeline", "learner")  # its row, while it works
        for name in ("timeline", "cost"):  # panes are drawn one after another
            page.wait_for_function(TITLED, arg=[pane(name), "virtualclock,profilecpu-tiny-qwen2"])
        assert card(page, "complete steps").startswith("0")
        assert float(card(page, "GPU-seconds")) > 0
        for name in ("timeline", "cost"):
            assert page.evaluate(FITS, pane(name)), "no title is cut off"
        picture(page.locator("body"), "live_voila_learning")
        picture(page.locator("body"), "live_voila_learning_phone", PHONE)
        (tmp_path / "learns").touch()
        wait_text(page, "phase", "done")
        page.wait_for_timeout(1000)
        seen = counted_drawings(page)
        assert len(seen["steps"]) == 3, seen
        assert all(drawn >= 2 for drawn in seen["steps"].values()), f"each is drawn while it runs and at its end: {seen}"
        assert all(drawn >= 2 for drawn in seen["learning"].values()), "the learner's row, while it works and at the end"
        assert {"1 1", "2 2", "3 3"} <= set(seen["cards"]), "each complete step is in cards and cost while the run goes on"
        page.set_viewport_size(PHONE)
        page.wait_for_timeout(1000)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        for name in ("timeline", "cost", "curves"):
            assert page.evaluate(FITS, pane(name)), "no title is cut off"
        picture(page.locator("body"), "live_voila_done_phone", {**PHONE, "height": 2400})
        assert page.errors == []
