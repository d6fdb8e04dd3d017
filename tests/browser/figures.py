"""What figures on a page show and say: plotly's own data, hover texts, clicks, sliders, legible text, none that became markup.

Knows plotly's elements in a page; nothing of dashboards, reports or JupyterLab. Waits for what plotly knows, never for time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TRIES, TRY_S = 60, 4.0  # PATIENCE_S in all
FOUND = (
    "(shape) => { const figure = shape.closest('.js-plotly-plot');"
    " return Boolean(figure && figure._hoverdata && figure._hoverdata.length); }"
)
FORGET = "(shape) => { shape.closest('.js-plotly-plot')._hoverdata = undefined; }"
"""Lets a figure forget what was pointed at before."""
CLICKS = """(shape) => {
  const place = shape.__data__ && shape.__data__.p, same = (where) => typeof where !== "number" || where === place;
  window.clicked = false;
  shape.closest(".js-plotly-plot").once("plotly_click", ({points: [point]}) => {
    window.clicked = typeof place !== "number" || same(point.x) || same(point.y);
  });
}"""
"""Notes in ``window.clicked`` that a click has met the shape, or another one in the same row."""


def plotly_data(page: Any, figure: str, keys: Sequence[str] = ("name", "type")) -> list[dict[str, Any]]:
    """Plotly's own data of a figure: these keys of every trace."""
    found: list[dict[str, Any]] = page.evaluate(
        "([which, keys]) => document.querySelector(which)._fullData.map(t =>"
        " Object.fromEntries(keys.map(k => [k, ArrayBuffer.isView(t[k]) ? Array.from(t[k]) : t[k]])))",
        [figure, list(keys)],
    )
    return found


def share_buttons(page: Any) -> int:
    """How many buttons on the page offer to upload a figure."""
    titles = page.locator(".modebar-btn").evaluate_all("(all) => all.map((one) => one.outerHTML.split('<svg')[0])")
    return sum("share" in title.lower() or "cloud" in title.lower() for title in titles)


def point_at(page: Any, shape: str, number: int = 0, click: bool = False) -> None:
    """Move the mouse to the middle of something that a figure has drawn until the figure knows it; click if wanted, until the
    figure says that its row was clicked.

    Args:
        shape: selector of what was drawn. number: which of those that match.
    """
    from playwright.sync_api import TimeoutError as NotInTime

    found = page.locator(shape).nth(number)
    found.scroll_into_view_if_needed()
    for attempt in range(TRIES):
        try:
            box, handle = found.bounding_box(), found.element_handle()
            x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
            handle.evaluate(FORGET)
            page.mouse.move(x - 3, y + attempt % 3)
            page.mouse.move(x, y)  # plotly looks at what is under the mouse when it moves
            page.wait_for_function(FOUND, arg=handle, timeout=1e3 * TRY_S)
            if click:
                handle.evaluate(CLICKS)
                page.mouse.click(x, y)
                page.wait_for_function("window.clicked", timeout=1e3 * TRY_S)
        except NotInTime:
            continue  # the figure was drawn anew meanwhile, or moved
        return
    raise AssertionError(f"the figure of {shape} does not notice the mouse")


def hover_text(page: Any, figure: str) -> str:
    """What the figure's hover labels say, once there is one."""
    page.wait_for_selector(f"{figure} .hoverlayer .hovertext text")
    return str(page.locator(f"{figure} .hoverlayer").text_content())


def markup_of_texts(page: Any, within: str) -> int:
    """Elements that only a text could have made: no figure, table or page of ours has links in drawings, images, scripts
    or handlers."""
    made = "svg a, img, script, iframe, [onerror], [onclick], [onload], [href^='javascript']"
    return int(page.evaluate("([root, made]) => document.querySelector(root).querySelectorAll(made).length", [within, made]))


def move_slider(page: Any, figure: str, share: float) -> None:
    """Press on a figure's own slider at a share of its length until it stands elsewhere: a figure that is drawn anew meanwhile
    loses the press."""
    from playwright.sync_api import TimeoutError as NotInTime

    before = page.evaluate("(which) => document.querySelector(which)._fullLayout.sliders[0].active", figure)
    rail = page.locator(f"{figure} .slider-rail-touch-rect").first
    for _ in range(TRIES):
        rail.scroll_into_view_if_needed()
        box = rail.bounding_box()
        page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
        try:
            page.wait_for_function(
                "([which, before]) => document.querySelector(which)._fullLayout.sliders[0].active !== before",
                arg=[figure, before],
                timeout=1e3 * TRY_S,
            )
        except NotInTime:
            continue
        return
    raise AssertionError(f"the slider of {figure} does not move")


DATA = (
    "(which) => JSON.stringify(document.querySelector(which)._fullData.map((trace) =>"
    " ['x', 'y', 'base'].map((key) => trace[key] && trace[key].length ? Array.from(trace[key]) : trace[key])))"
)


def move_slider_to_its_other_end(page: Any, figure: str) -> None:
    """Move a figure's own slider, and wait until the figure shows other data."""
    active = page.evaluate("(which) => document.querySelector(which)._fullLayout.sliders[0].active", figure)
    before = page.evaluate(DATA, figure)
    move_slider(page, figure, 0.02 if active else 0.98)
    page.wait_for_function(f"([which, before]) => ({DATA})(which) !== before", arg=[figure, before])


def illegible(page: Any, within: str, least: float = 4.5) -> list[tuple[float, str]]:
    """Texts whose contrast with what is behind them is below WCAG's 4.5 to 1, with their contrast."""
    contrasts = page.evaluate((HERE / "contrasts.js").read_text("utf-8"), within)
    assert contrasts, f"there is no text in {within}"
    return [(round(ratio, 2), text) for ratio, text in contrasts if ratio < least]
