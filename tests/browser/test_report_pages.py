"""Report pages in a real browser: they load nothing, throw nothing, draw every figure, and their sliders and choices move."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import run_rlhfless
from figures import hover_text, illegible, markup_of_texts, move_slider, plotly_data, point_at, share_buttons
from lab import LAPTOP, ROOT, WIDE
from log_samples import HOSTILE, rollouts
from open_pages import open_page
from real_browser import UNFOLD, resize, wait_all_drawn

pytestmark = pytest.mark.timeout(1800)
QUICK = "trl"  # opened with every change, and with the older plotly
NIGHTLY = pytest.mark.nightly
TIERS = {"trl": [], "hostile": pytest.mark.full, "arithmetic-grpo": pytest.mark.full, "grpo-gsm8k-lengths": NIGHTLY}
TELEPHONE = {"width": 390, "height": 844}
DESK = {"width": 1920, "height": 1080}
HIDDEN = {"width": 1, "height": 1}  # what Chromium makes of a window for a moment when it takes a picture of a whole page
GSM8K = ROOT.parent / "shared" / "data" / "grpo-gsm8k-lengths" / "areal_s0_lengths.csv"
GOLDEN = ROOT / "tests" / "trace" / "importers" / "golden"
TRL = GOLDEN / "trl"
LONG_NAME = "a_folder_whose_name_is_longer_than_a_line_of_a_telephone"
MAPS = [word for one in ("prompt_id=prompt_index", "sample=rollout", "step=visit") for word in ("--map", one)]
OF_A_TRACE = [
    "What limits this run", "Where the time went", "Other schedules and settings", "Timelines", "Assumptions and method",
]  # fmt: skip
OF_A_LOG = [OF_A_TRACE[0], "Where the time went, by simulation of the run's own schedule", *OF_A_TRACE[2:]]
SOURCES = {  # words of the command, sections of the page
    "arithmetic-grpo": ([str(ROOT / "data" / "traces" / "arithmetic-grpo")], OF_A_TRACE),
    "grpo-gsm8k-lengths": ([str(GSM8K), *MAPS, "--max-response-tokens", "512", "--gpus", "16"], OF_A_LOG),
    "trl": ([LONG_NAME, "--tokenizer", LONG_NAME, "--max-response-tokens", "24", "--gpus", "8"], OF_A_LOG),
    "hostile": (["hostile.jsonl", "--gpus", "8", "--profile", "cpu-tiny-qwen2"], OF_A_LOG),
    "slime": ([str(GOLDEN / "slime"), "--gpus", "8", "--usd-per-gpu-hour", "2.5"], OF_A_LOG),
    "nemo-rl": ([str(GOLDEN / "nemo-rl"), "--gpus", "8"], OF_A_LOG),
    "prime-rl": ([str(GOLDEN / "prime-rl"), "--gpus", "8"], OF_A_LOG),
    "verl-scalars": (
        [str(GOLDEN / "verl-scalars" / "experiment.jsonl"), "--responses-per-step", "8", "--gpus", "8", "--simulate"],
        OF_A_LOG,
    ),
}
WITH_EVERY_CHANGE = ("slime", "nemo-rl")  # the other golden logs are opened at night
FIRST_SENTENCES = {  # what limits the run, with the numbers that prove it
    "slime": r"The engine is slow: 1,000\.0 ms per token of one response .* A length limit cuts responses: 12\.5% \(1 of 8\)",
    "nemo-rl": r"The long tail: at most 19% of generation runs with at most 1 of 4 responses unfinished\.",
    "prime-rl": r"The engine is slow: 1,000\.0 ms per token of one response ",
    "verl-scalars": r"A length limit cuts responses: 12\.5% end at the length limit",
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes the report of one of ``SOURCES`` as the command does, once."""
    folder = tmp_path_factory.mktemp("reports")
    rollouts(prompts=24, samples=8).to_json(folder / "hostile.jsonl", orient="records", lines=True)
    shutil.copytree(TRL, folder / LONG_NAME)

    def write(name: str) -> Path:
        out = folder / f"{name}.html"
        if not out.exists():
            words = [str(folder / word) if (folder / word).exists() else word for word in SOURCES[name][0]]
            done = run_rlhfless("report", *words, "--steps", "2", "-o", str(out))
            assert done.exit_code == 0, done.output
        return out

    return write


@pytest.fixture
def opened(chromium: Any, report: Callable[[str], Path]) -> Any:
    """Opens a report and keeps what it asks for and what it says to the console."""
    contexts = []

    def open_report(name: str, scheme: str = "light", viewport: dict[str, int] = WIDE, unfold: bool = True) -> Any:
        page = open_page(chromium, viewport=viewport, color_scheme=scheme)
        contexts.append(page.context)
        page.asked = []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("console", lambda said: page.errors.append(said.text) if said.type in ("error", "warning") else None)
        page.goto(report(name).as_uri())
        wait_all_drawn(page)
        if unfold:
            page.evaluate(UNFOLD)
            wait_all_drawn(page)
        return page

    yield open_report
    for context in contexts:
        context.close()


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks) for name, marks in TIERS.items()])
def test_a_report_draws_everything_and_loads_nothing(name: str, opened: Any, pages: Callable) -> None:
    if name == "grpo-gsm8k-lengths" and not GSM8K.exists():
        pytest.skip(f"public data absent: {GSM8K.name}")
    page = opened(name, viewport=TELEPHONE, unfold=False)
    _, sections = SOURCES[name]
    assert page.locator("h2").all_inner_texts() == sections
    assert page.locator(".figure > div[id]").count() > page.locator(".figure .main-svg").count() / 3, (
        "folded ones are not drawn"
    )
    assert page.evaluate(OUTSIDE) == []
    resize(page, WIDE)
    page.evaluate(UNFOLD)
    wait_all_drawn(page)
    assert all(url.startswith("file://") or url.startswith(("data:", "blob:file://")) for url in page.asked), page.asked
    assert sum(url.startswith("file://") for url in page.asked) == 1
    figures = page.evaluate("[...document.querySelectorAll('.figure > div[id]')].map((div) => div.id)")
    assert len(figures) >= 5
    assert all(plotly_data(page, f"#{figure}") or page.locator(f"#{figure} .annotation").count() for figure in figures)
    slider = next(one for one in figures if page.locator(f"#{one} .slider-container").count())

    told = [page.locator(f"#{slider} .annotation").first.text_content()]
    for share, weight in ((0.05, "0"), (0.95, "1")):
        move_slider(page, f"#{slider}", share)
        page.wait_for_function(
            "([which, weight, before]) => document.querySelector(`${which} .annotation`).textContent !== before &&"
            " [...document.querySelectorAll(`${which} .slider-container text`)].some((one) =>"
            " one.textContent.endsWith(`: ${weight}`))",
            arg=[f"#{slider}", weight, told[-1]],
        )
        told.append(page.locator(f"#{slider} .annotation").first.text_content())
    assert len(set(told)) == 3, "every weight has a plan of its own"
    bars = plotly_data(page, f"#{slider}", ["type", "x"])[0]
    assert bars["type"] == "bar"
    assert sum(length > 0 for length in bars["x"]) == int(told[-1].split(": ")[1].split(" actor")[0])

    chosen = page.locator("label.choice", has_text="Policy").locator("select")
    figure = f"#{chosen.get_attribute('id').removesuffix('-choice')}"
    before = page.locator(f"{figure} .gtitle").text_content()
    chosen.focus()
    page.keyboard.press("Home")  # the first one, by keyboard
    page.wait_for_function(
        "([which, before]) => { const title = document.querySelector(which);"
        " return title && title.textContent && title.textContent !== before; }",
        arg=[f"{figure} .gtitle", before],
    )
    if name == QUICK:
        resize(page, HIDDEN)  # plotly fails to draw anything so narrow
    for size in (WIDE, LAPTOP):
        resize(page, size)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out to the side"
    assert illegible(page, "main") == []
    assert share_buttons(page) == 0
    assert page.errors == []
    pages(page, f"report_{name}")


OUTSIDE = """() => {
  const scrolls = (one) => one.tagName !== "MAIN" && (getComputedStyle(one).overflowX === "auto" || scrolls(one.parentElement));
  const width = document.documentElement.clientWidth, found = [];
  for (const one of document.querySelectorAll("main *")) {
    if (one.closest(".js-plotly-plot") || !one.getClientRects().length) continue;
    const {overflowX} = getComputedStyle(one), inside = scrolls(one.parentElement);
    if (!inside && one.getBoundingClientRect().right > width + 1) found.push(one.outerHTML.slice(0, 80));
    if (["hidden", "clip"].includes(overflowX) && one.scrollWidth > one.clientWidth + 1) found.push(one.outerHTML.slice(0, 80));
  }
  return found;
}"""
"""What sticks out of the page, or is cut off where nothing scrolls."""
COVERED = """() => [...document.querySelectorAll('.figure > div[id]')].filter((div) => {
  const legend = div.querySelector('.legend'), box = legend && legend.getBoundingClientRect();
  const beside = (one) => box.left >= one.right - 1 || box.right <= one.left + 1;
  const apart = (one) => beside(one) || box.top >= one.bottom - 1 || box.bottom <= one.top + 1;
  return box && ![...div.querySelectorAll('.nsewdrag')].every((plot) => apart(plot.getBoundingClientRect()));
}).map((div) => div.id)"""
"""The figures whose legend covers a plot."""
PLACES = (
    "[...document.querySelectorAll('.figure > div[id]')].map((div) =>"
    " { const {legend, height} = div._fullLayout; return [height, legend ? [legend.x, legend.y, legend.orientation] : null]; })"
)
WIDTH = "document.scrollingElement.scrollWidth"


FRONT = """() => {
  const [head, next] = document.querySelectorAll("h2"), said = [];
  for (let one = head.nextElementSibling; one && one !== next && !one.matches("details"); one = one.nextElementSibling)
    if (!one.matches(".figure")) said.push(one.textContent);
  return said.join(" ").split(/\\s+/).join(" ");
}"""
"""What the first screen says, without its figure."""
COLLIDING = """() => {
  const texts = [...document.querySelectorAll(".figure text")].filter((one) => one.textContent && one.getClientRects().length);
  const boxes = texts.map((one) => [one.textContent, one.getBoundingClientRect()]), found = [];
  for (const [i, [text, one]] of boxes.entries())
    for (const [other, two] of boxes.slice(i + 1))
      if (Math.min(one.right, two.right) - Math.max(one.left, two.left) > 2
          && Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top) > 3) found.push([text, other]);
  return found;
}"""
"""Texts of drawn figures that cover each other."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if name in WITH_EVERY_CHANGE else NIGHTLY) for name in FIRST_SENTENCES]
)
def test_the_first_screen_of_a_golden_log_answers_at_every_width(
    name: str, opened: Any, report: Callable, pages: Callable
) -> None:
    page = opened(name, viewport=TELEPHONE, unfold=False)
    assert report(name).stat().st_size < 2_000_000
    said = page.evaluate(FRONT)
    assert re.match(rf"(GPUs: [^.]*\. )?{FIRST_SENTENCES[name]}", said), said
    for size in (TELEPHONE, WIDE, DESK):
        resize(page, size)
        page.wait_for_function(f"() => ({COLLIDING})().length === 0", polling=200)
        assert page.evaluate(WIDTH) <= size["width"]
        assert page.evaluate(OUTSIDE) == []
        pages(page, f"first_screen_{name}_{size['width']}")
    assert page.errors == []


@pytest.mark.parametrize("name", [pytest.param("trl", marks=pytest.mark.full), pytest.param("arithmetic-grpo", marks=NIGHTLY)])
def test_a_report_fits_a_telephone(name: str, opened: Any, pages: Callable) -> None:
    page = opened(name, viewport=TELEPHONE)
    page.wait_for_function(f"() => ({COVERED})().length === 0", polling=200)  # legends find their places after drawing
    assert page.evaluate(WIDTH) <= TELEPHONE["width"]
    assert page.evaluate(OUTSIDE) == []
    kept = page.evaluate("[...document.querySelectorAll('.figure > div[id]')].map((div) => div._fullLayout._size.h)")
    assert min(kept) > 60, "plots keep their height"
    pages(page, f"report_telephone_{name}")
    wide = json.dumps(opened(name).evaluate(PLACES), separators=(",", ":"))
    resize(page, WIDE)
    page.wait_for_function(f"(places) => JSON.stringify({PLACES}) === places", polling=200, arg=wide)  # each is drawn anew
    assert page.errors == []


@pytest.mark.full
def test_a_report_is_legible_in_the_dark(opened: Any, pages: Callable) -> None:
    page = opened("arithmetic-grpo", "dark")
    assert illegible(page, "main") == []
    assert page.errors == []
    pages(page, "report_dark")


@pytest.mark.full
def test_texts_of_a_log_are_texts_in_its_report(opened: Any) -> None:
    page = opened("hostile")
    assert markup_of_texts(page, "main") == 0
    figures = page.evaluate("[...document.querySelectorAll('.figure > div[id]')].map((div) => div.id)")
    lengths = next(one for one in figures if "Predicted" in page.locator(f"#{one} .gtitle").text_content())
    points = page.locator(f"#{lengths} .scatterlayer .points path")
    said = set()
    for number in range(0, points.count(), max(1, points.count() // 12)):
        point_at(page, f"#{lengths} .scatterlayer .points path", number)
        said.add(hover_text(page, f"#{lengths}"))
        assert markup_of_texts(page, f"#{lengths}") == 0
    assert any(text[:12] in one for one in said for text in HOSTILE if text.startswith("<")), said
    assert page.evaluate("window.hacked") is None
    assert page.errors == []
