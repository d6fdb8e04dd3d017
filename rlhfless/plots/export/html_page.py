"""Builds a page of text, tables and figures as one HTML file that needs no network; plotly.js is included once.

All text arguments are escaped here. The data of figures are JSON in one script. Of alternative figures (per step, per policy)
only the chosen one is drawn. Light and dark style follow the reader's system.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhfless.trace.storage import write_text

LONGEST_CELL = 300

CSS = """
:root { color-scheme: light dark; --paper: #ffffff; --card: #f6f7f9; --ink: #22262b; --soft: #5c6570; --line: #dfe3e8;
  --accent: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --paper: #16191d; --card: #1f242a; --ink: #e4e7eb; --soft: #a3adb8;
  --line: #343b44; --accent: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 20px 24px 60px; }
h1 { font-size: 26px; margin: 8px 0 4px; line-height: 1.25; }
h2 { font-size: 20px; margin: 44px 0 8px; padding-top: 14px; border-top: 2px solid var(--line); }
h3 { font-size: 16px; margin: 26px 0 4px; }
p { margin: 6px 0 10px; max-width: 88ch; }
h1, p, li, dd { overflow-wrap: anywhere; }
.lead { color: var(--soft); font-size: 16px; }
nav { display: flex; flex-wrap: wrap; gap: 6px 18px; margin: 10px 0 14px; }
a { color: var(--accent); }
.basis { background: var(--card); border-left: 4px solid var(--accent); border-radius: 4px; padding: 8px 14px;
  margin: 10px 0 16px; font-size: 14px; }
.basis p { margin: 2px 0; max-width: none; }
.cards { display: flex; flex-wrap: wrap; gap: 12px; margin: 12px 0 6px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 8px 16px; min-width: 130px; }
.card b { display: block; font-size: 20px; font-weight: 600; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: 13px; }
.scroll { overflow-x: auto; margin: 8px 0 16px; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: 6px 0; }
th, td { padding: 5px 14px 5px 0; text-align: right; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--soft); vertical-align: bottom; }
th.text, td.text { text-align: left; }
tbody tr:hover { background: var(--card); }
th.text, td.text { white-space: nowrap; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(430px, 100%), 1fr)); gap: 0 36px; margin: 8px 0;
  font-size: 14px; }
dl div { display: flex; gap: 16px; padding: 4px 0; border-bottom: 1px solid var(--line); }
dt { flex: 0 0 150px; color: var(--soft); font-weight: 600; }
dd { margin: 0; font-variant-numeric: tabular-nums; }
.figure { border: 1px solid var(--line); border-radius: 8px; margin: 10px 0 18px; overflow-x: auto; }
.choice { display: inline-block; padding: 12px 14px 2px; }
select { font: inherit; padding: 3px 8px; border-radius: 6px; border: 1px solid var(--line); background: var(--paper);
  color: var(--ink); max-width: 100%; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 8px 14px; overflow-x: auto;
  font-size: 13px; }
@media (max-width: 640px) { main { padding: 12px 12px 40px; } dl div { gap: 10px; } dt { flex-basis: 110px; } }
footer { margin-top: 50px; color: var(--soft); font-size: 13px; border-top: 1px solid var(--line); padding-top: 10px; }
"""

SCRIPT = """
const CONFIG = {
  responsive: true, displaylogo: false, showSendToCloud: false,
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
};
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const narrow = window.matchMedia("(max-width: 640px)");
const LINE = 18, TITLE_LETTER = 8.8, SUBTITLE_LETTER = 6.5, NAME = 90, BESIDE = 600;  // px
// A title in lines that are not wider than the figure, and how many lines were added. Tags stay as they are.
function wrapped(text, width) {
  let used = 0, letter = TITLE_LETTER, space = "", lines = 0, made = "";
  for (const part of text.split(/(<[^>]*>| )/)) {
    if (part.startsWith("<br")) { used = 0; letter = SUBTITLE_LETTER; space = ""; made += part; }
    else if (part.startsWith("<")) made += part;
    else if (part === " ") space = " ";
    else if (part) {
      if (space && used + (part.length + 1) * letter > width) { made += "<br>"; used = 0; lines += 1; }
      else { made += space; used += space.length * letter; }
      made += part; used += part.length * letter; space = "";
    }
  }
  return [made, lines];
}
// How wide a figure must be (px) that has plots beside each other, or names below an axis that would overlap; else 0.
function widthNeeded(layout) {
  const axes = Object.keys(layout).filter((key) => key.startsWith("xaxis")).map((key) => layout[key]);
  const names = Math.max(0, ...axes.map((axis) => (axis.ticktext || axis.categoryarray || []).length));
  return Math.max(names > 4 ? names * NAME : 0, axes.some((axis) => (axis.domain || [0])[0] > 0.05) ? BESIDE : 0);
}
// On a narrow screen the title is wrapped and the legend stands below it: beside the plot it would cover the plot. A figure
// that needs room keeps its width, and its frame scrolls.
async function draw(id, name) {
  const div = document.getElementById(id), spec = FIGURES[id][name], small = narrow.matches;
  const colour = getComputedStyle(document.body).color;
  const layout = {...spec.layout, font: {...spec.layout.font, color: colour}, paper_bgcolor: "rgba(0,0,0,0)", autosize: true};
  let top = layout.margin.t;
  div.style.minWidth = small ? widthNeeded(layout) + "px" : "";
  if (small) {
    const [text, lines] = wrapped(layout.title.text || "", div.clientWidth - 28);
    top += lines * LINE;
    layout.height += lines * LINE;
    layout.title = {...layout.title, text};
    layout.margin = {...layout.margin, t: top};
    const place = {xref: "container", x: 0.02, xanchor: "left", yref: "container", yanchor: "top"};
    layout.legend = {...layout.legend, ...place, orientation: "h", y: 1 - (top - 6) / layout.height};
  }
  Plotly.purge(div);
  div.style.height = layout.height + "px";
  await Plotly.newPlot(div, {data: spec.data, layout: layout, frames: spec.frames || [], config: CONFIG});
  const legend = div.querySelector(".legend");
  if (!small || !legend) return;
  const heads = (layout.annotations || []).some((one) => one.yref === "paper" && one.y >= 1) ? 24 : 8;
  const tall = Math.ceil(legend.getBoundingClientRect().height) + heads, height = layout.height + tall;
  div.style.height = height + "px";
  await Plotly.relayout(div, {height, "margin.t": top + tall, "legend.y": 1 - (top - 6) / height});
}
function chosen(id) {
  const select = document.getElementById(id + "-choice");
  return select ? select.value : Object.keys(FIGURES[id])[0];
}
for (const id of Object.keys(FIGURES)) {
  const select = document.getElementById(id + "-choice");
  if (select) select.addEventListener("change", () => draw(id, select.value));
  draw(id, chosen(id));
}
const all = () => { for (const id of Object.keys(FIGURES)) draw(id, chosen(id)); };
dark.addEventListener("change", all);
narrow.addEventListener("change", all);
"""


def escaped(text: Any) -> str:
    """Return text as HTML: one line, not longer than a table cell should be, without active markup."""
    line = " ".join(str(text).split())
    return html.escape(line if len(line) <= LONGEST_CELL else line[: LONGEST_CELL - 1] + "…")


class Page:
    """The parts of a page in the order in which they are added."""

    def __init__(self, title: str, lead: str) -> None:
        self.title, self.lead = title, lead
        self._parts: list[str] = []
        self._sections: list[str] = []
        self._figures: list[str] = []

    def section(self, title: str) -> None:
        """Start a section."""
        self._sections.append(title)
        self._parts.append(f'<h2 id="section-{len(self._sections)}">{escaped(title)}</h2>')

    def heading(self, title: str) -> None:
        """Add a heading within a section."""
        self._parts.append(f"<h3>{escaped(title)}</h3>")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{html.escape(' '.join(text.split()))}</p>")

    def basis(self, lines: Iterable[tuple[str, str]]) -> None:
        """Add the basis of the section: ``measured``, ``modelled``, ... each with the values that are."""
        rows = (f"<p><b>{escaped(name)}:</b> {html.escape(' '.join(text.split()))}</p>" for name, text in lines)
        self._parts.append(f'<div class="basis">{"".join(rows)}</div>')

    def cards(self, cards: Iterable[tuple[str, str]]) -> None:
        """Add large numbers: (name, value with unit)."""
        cells = (f'<div class="card"><b>{escaped(value)}</b><span>{escaped(name)}</span></div>' for name, value in cards)
        self._parts.append(f'<div class="cards">{"".join(cells)}</div>')

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Add names and their meanings or values, in as many columns as fit."""
        rows = (f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>" for name, value in facts)
        self._parts.append(f"<dl>{''.join(rows)}</dl>")

    def table(self, caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> None:
        """Add a table whose first columns are text and whose other columns are numbers."""

        def row(cells: Sequence[str], tag: str) -> str:
            marks = [' class="text"' if i < text_columns else "" for i in range(len(cells))]
            return "<tr>" + "".join(f"<{tag}{m}>{escaped(c)}</{tag}>" for m, c in zip(marks, cells, strict=True)) + "</tr>"

        body = "".join(row(cells, "td") for cells in rows)
        self._parts.append(
            f'<div class="scroll"><table><caption>{escaped(caption)}</caption>'
            f"<thead>{row(head, 'th')}</thead><tbody>{body}</tbody></table></div>"
        )

    def code(self, caption: str, lines: Iterable[str]) -> None:
        """Add lines to copy, unchanged."""
        text = html.escape("\n".join(lines))
        self._parts.append(f"<p>{escaped(caption)}:</p><pre>{text}</pre>")

    def figure(self, figure: Any) -> None:
        """Add a plotly figure."""
        self.choice("", {"": figure})

    def choice(self, label: str, figures: Mapping[str, Any], selected: str | None = None) -> None:
        """Add figures of which the reader chooses one; ``selected`` (the first when None) is drawn first."""
        name = f"figure-{len(self._figures) + 1}"
        first = next(iter(figures)) if selected is None else selected
        options = "".join(
            f'<option value="{i}"{" selected" if title == first else ""}>{escaped(title)}</option>'
            for i, title in enumerate(figures)
        )
        select = f'<label class="choice">{escaped(label)} <select id="{name}-choice">{options}</select></label>'
        self._parts.append(f'<div class="figure">{select if len(figures) > 1 else ""}<div id="{name}"></div></div>')
        specs = ",".join(f'"{i}":{figure.to_json()}' for i, figure in enumerate(figures.values()))
        self._figures.append(f'"{name}":{{{specs}}}')

    def render(self, footer: str) -> str:
        """Return the whole page as HTML."""
        from plotly.offline import get_plotlyjs

        links = "".join(f'<a href="#section-{i}">{escaped(title)}</a>' for i, title in enumerate(self._sections, start=1))
        figures = ",\n".join(self._figures).replace("<", "\\u003c")  # no text within a string can end the script
        page = "\n".join(
            [
                '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                f"<title>{escaped(self.title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>",
                f'<h1>{escaped(self.title)}</h1>\n<p class="lead">{escaped(self.lead)}</p>\n<nav>{links}</nav>',
                "<noscript><p>The figures of this page need JavaScript; the tables do not.</p></noscript>",
                *self._parts,
                f"<footer>{escaped(footer)}</footer>\n</main>",
                f"<script>{get_plotlyjs()}</script>",
                f"<script>const FIGURES = {{{figures}}};{SCRIPT}</script>\n</body>\n</html>\n",
            ]
        )
        return page.encode("utf-8", "replace").decode("utf-8")


def page_path(out: str | Path, refusal: type[Exception]) -> Path:
    """Return the path of a page; raise ``refusal`` where it is a folder."""
    path = Path(out)
    if path.is_dir() or not path.name:
        raise refusal(f"{path}: is a folder; name the HTML file to write")
    return path


def write_page(path: Path, text: str, refusal: type[Exception]) -> Path:
    """Write a page atomically and make its folder; raise ``refusal`` where that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refusal(f"{path.parent}: cannot be made ({error.strerror}); a writable folder is needed") from None
    write_text(path, text)
    return path
