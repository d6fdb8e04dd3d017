"""How long a dashboard takes from a move of its slider until the page has drawn what follows from it.

    python tests/benchmarks/dashboard_speed.py [--moves 20] [--tiny] [--json FILE]

A real JupyterLab and a real browser (Playwright with Chromium) on this machine. ``explore`` on 512 prompts with 4 samples,
three steps of history-like lognormal lengths, L40S: a key moves the slider of the time weight, and the page's own clock says
when it was pressed and when the timeline (with the plan) and the plane (all policies, front and bound) had been drawn for it.
Planning begins when the slider has rested for 0.1 s.
``zoom`` on a step of 100,000 spans: from the end of a drag until the part is drawn anew. Moves come one by one, but for the
row "the last of eight moves at once". The rows that begin with "processor" are the same work in this process, in seconds of
the processor: what a machine that others use at the same time cannot distort.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "browser"), str(HERE.parent / "support")]

from lab import WIDE, Lab, missing, notebook, pane, run_all, shown_request, wait_drawn  # noqa: E402
from log_samples import rollouts  # noqa: E402
from real_browser import browser  # noqa: E402

import rlhfless as rl  # noqa: E402
from rlhfless.plots import plot_timeline  # noqa: E402
from rlhfless.widgets import Settings, WhatIf  # noqa: E402
from rlhfless.widgets.explorer_panels import plane  # noqa: E402

EXPLORE = "import rlhfless as rl\nrl.load('log.jsonl', 16, time_weight=0.5, verbose=False).explore()"
BURST, PARTS = 8, ("plan and timeline", "policies, front and bound")
ZOOM = """
import sys
sys.path.insert(0, {path!r})
from many_spans import many_spans
from rlhfless.widgets import zoom
zoom(many_spans({spans}))
"""
NOW = "performance.timeOrigin + performance.now()"


def drawn_at(page: Any, name: str) -> float:
    """When a pane was drawn last, in ms of the page's clock."""
    return float(page.locator(pane(name)).get_attribute("data-drawn-at"))


def press(page: Any, key: str, times: int = 1) -> float:
    """Press a key, and when that was: the page notes it as the event comes in."""
    page.evaluate(
        f"() => document.addEventListener('keydown', () => {{ window.pressed = {NOW}; }}, {{once: true, capture: true}})"
    )
    for _ in range(times):
        page.keyboard.press(key)
    return float(page.evaluate("window.pressed"))


def processor(log: Path, count: int) -> list[dict[str, Any]]:
    """ms of the processor for the two parts of what follows from a move, without a page."""
    what_if, took = WhatIf(rl.load(log, 16, verbose=False)), ([], [])  # type: ignore[var-annotated]
    for i in range(count + 1):
        began = time.process_time()
        planned = what_if.plan(Settings(gpus=16, time_weight=0.5 + 0.05 * (i % 2)))
        plot_timeline(planned.trace, what_if.step).to_json()
        drawn = time.process_time()
        others = what_if.alternatives(planned)
        assert others is not None
        plane(planned, others, what_if.front(planned)).to_json()
        took[0].append(1e3 * (drawn - began))
        took[1].append(1e3 * (time.process_time() - drawn))
    return [summary(f"processor: {what}", ms[1:]) for what, ms in zip(PARTS, took, strict=True)]


def moves(page: Any, count: int) -> dict[str, list[float]]:
    """ms from a key press until timeline and plane were drawn for it, one by one; and for bursts of eight."""
    page.get_by_role("slider").first.focus()
    took: dict[str, list[float]] = {"timeline": [], "plane": [], "burst": []}
    for i in range(count):
        request = shown_request(page, "plane")
        pressed = press(page, "ArrowLeft" if i % 2 else "ArrowRight")
        wait_drawn(page, "plane", request + 1)
        took["timeline"].append(drawn_at(page, "timeline") - pressed)
        took["plane"].append(drawn_at(page, "plane") - pressed)
    for i in range(max(1, count // 5)):  # how many requests become of a burst is the widgets' business: the last one counts
        pressed = press(page, "ArrowLeft" if i % 2 else "ArrowRight", BURST)
        wanted = f"time weight {0.5 if i % 2 else 0.5 + 0.05 * BURST:g},"
        page.wait_for_function(
            "([which, text]) => document.querySelector(which).textContent.includes(text)", arg=[pane("plane"), wanted]
        )
        wait_drawn(page, "plane")
        took["burst"].append(drawn_at(page, "plane") - pressed)
    return took


def zooms(page: Any, count: int) -> list[float]:
    """ms from the end of a drag until the part that was chosen is drawn; every second one is a part of a part."""
    took = []
    for i in range(count):
        wide = (0.2, 0.7) if i % 2 == 0 else (0.45, 0.46)
        request = shown_request(page, "timeline")
        box = page.locator(f"{pane('timeline')} .nsewdrag").bounding_box()
        page.mouse.move(box["x"] + wide[0] * box["width"], box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + wide[1] * box["width"], box["y"] + 80, steps=4)
        ended = float(page.evaluate(NOW))
        page.mouse.up()
        wait_drawn(page, "timeline", request + 1)
        took.append(drawn_at(page, "timeline") - ended)
        if i % 2:
            page.mouse.dblclick(box["x"] + 0.5 * box["width"], box["y"] + 60)
            wait_drawn(page, "timeline", request + 2)
    return took


def summary(name: str, took: list[float]) -> dict[str, Any]:
    """Median and the worst of all."""
    return {"what": name, "times": len(took), "median_ms": statistics.median(took), "worst_ms": max(took)}


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=20, help="an even number")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    prompts, spans, count = (12, 20_000, 2) if given.tiny else (512, 100_000, given.moves)
    found: list[dict[str, Any]] = []
    if why := missing():
        print(why)
    else:
        with tempfile.TemporaryDirectory() as name, browser() as opened:
            folder, home = Path(name, "served"), Path(name, "home")
            folder.mkdir()
            home.mkdir()
            rollouts(prompts=prompts, samples=4).drop(columns=["prompt", "response"]).to_json(
                folder / "log.jsonl", orient="records", lines=True
            )
            found += processor(folder / "log.jsonl", count)
            notebook(folder / "explore.ipynb", EXPLORE)
            notebook(folder / "zoom.ipynb", ZOOM.format(path=str(HERE.parent / "support"), spans=spans))
            with Lab(folder, home) as lab:
                page = opened.new_context(viewport=WIDE).new_page()
                lab.open(page, "explore.ipynb")
                run_all(page)
                wait_drawn(page, "plane", 1)
                took = moves(page, count)
                size = f"{prompts} x 4 responses"
                found.append(summary(f"plan and timeline, {size}", took["timeline"]))
                found.append(summary(f"policies, front and bound, {size}", took["plane"]))
                found.append(summary(f"the last of eight moves at once, {size}", took["burst"]))
                lab.open(page, "zoom.ipynb")
                run_all(page)
                wait_drawn(page, "timeline")
                found.append(summary(f"zoom into {spans:,} spans", zooms(page, count)))
    print("| what | moves | median | worst |\n|---|---|---|---|")
    for row in found:
        print(f"| {row['what']} | {row['times']} | {row['median_ms']:.0f} ms | {row['worst_ms']:.0f} ms |")
    if given.json:
        given.json.write_text(json.dumps({"rows": found}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
