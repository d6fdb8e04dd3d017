"""Where a page's figures have their titles, legends and other texts: what is cut off, and what lies on something else.

Knows plotly's elements in a page and the frames that our pages put around figures; nothing of what figures show.
"""

from __future__ import annotations

from typing import Any

DRAWN = ".barlayer path, .scatterlayer .points path, .hm image"
WRITTEN = ".xtick text, .ytick text, .xtitle, .ytitle, .x2title, .annotation text, .slider-group"
MISPLACED = """([drawn, written]) => {
  const found = [], cut = (box, seen) => box.left < seen.left - 1 || box.right > Math.min(seen.right, innerWidth) + 1
    || box.top < seen.top - 1 || box.bottom > seen.bottom + 1;
  const shared = (a, b) => Math.min(Math.min(a.right, b.right) - Math.max(a.left, b.left),
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top));
  for (const div of document.querySelectorAll(".js-plotly-plot")) {
    const boxes = (which, name) => [...div.querySelectorAll(which)].map((one) => [name || one.textContent || which, one])
      .map(([text, one]) => [text, one.getBoundingClientRect()]).filter(([, box]) => box.width > 1 && box.height > 1);
    const heads = [...boxes(".gtitle", "title"), ...boxes(".legendtext, .legendsymbols", "legend")];
    const seen = (div.closest(".figure") || div).getBoundingClientRect();
    const figure = (div.querySelector(".gtitle") || div).textContent.slice(0, 60);
    const scrolls = div.scrollWidth > (div.closest(".figure") || div).clientWidth + 1;  // its plot is seen in parts
    for (const [text, box] of scrolls ? [] : boxes(".bartext"))
      if (cut(box, seen)) found.push([figure, `${text} is cut off`]);
    for (const [place, [name, box]] of heads.entries()) {
      if (cut(box, seen)) found.push([figure, `${name} is cut off`]);
      const later = heads.slice(place + 1).filter(([other]) => other !== name);
      for (const [other, its] of [...later, ...boxes(drawn, "something drawn"), ...boxes(written)])
        if (shared(box, its) > 1.5) found.push([figure, `${name} lies on ${other.slice(0, 60)}`]);
    }
  }
  return found;
}"""


def misplaced(page: Any) -> list[list[str]]:
    """Titles and legends that are cut off or lie on bars, points or texts, and texts at bars that are cut off.

    Returns:
        The title of each figure, and what is wrong.
    """
    return list(page.evaluate(MISPLACED, [DRAWN, WRITTEN]))


OVERLAID = """(drawn) => {
  const found = [];
  for (const div of document.querySelectorAll(".js-plotly-plot")) {
    const texts = [...div.querySelectorAll("text")].filter((one) => one.textContent && !one.closest(".barlayer"));
    for (const text of texts.filter((one) => one.getClientRects().length && !one.closest(".modebar"))) {
      const box = text.getBoundingClientRect();
      const under = [...div.querySelectorAll(drawn), ...texts.filter((one) => one !== text && one.closest(".ytick"))];
      const its = under.map((one) => one.getBoundingClientRect()).filter((one) => one.width > 0 && one.height > 0);
      if (its.some((one) => Math.min(box.right, one.right) - Math.max(box.left, one.left) > 1.5
          && Math.min(box.bottom, one.bottom) - Math.max(box.top, one.top) > 1.5)) found.push(text.textContent.slice(0, 60));
    }
  }
  return found;
}"""


def overlaid(page: Any) -> list[str]:
    """Texts that lie on bars, points or names at the left axis, other than the bars' own."""
    return list(page.evaluate(OVERLAID, DRAWN))
