"""Common style of all figures: safe text from logs, titles and axes, and the figure without data.

Paper is white, so that a figure is legible wherever it is shown. It is dark where plotly's default template is a dark one
(``plotly.io.templates.default = "plotly_dark"``). JupyterLab (``renderer.py``), the project's pages and its dashboards make the
paper transparent and give the text their own colour.
"""

from __future__ import annotations

import html
import math
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio

from rlhfless.plots.data_figure import DataFigure
from solver.model.plurals import counted as counted

F = TypeVar("F", bound=go.Figure)

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
INK, GRID = "#333333", "rgba(127,127,127,0.22)"
PAPERS = {False: ("#FFFFFF", INK), True: ("#111111", "#E4E7EB")}
"""Colours of paper and text: of a light and of a dark figure."""

SUBTITLE_CHARS, TITLE_CHARS = 104, 78  # of a line; a notebook's output is about 700 px wide
WIDE_ONLY = "wide only"  # name of annotations that are left out on a narrow screen and on narrow paper
MODE_BAR_PX = 32  # plotly's buttons stand in the upper right corner, over whatever is there
AXIS_PX = 58  # of the ticks and the title under a plot
LONGEST_TEXT = 60
MAX_TICKS = 12
SMALLEST = 5e-7  # smaller numbers are written with a power of ten
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MINUS = "\u2212"
SOFT_BREAK = "<br >"  # plotly breaks the line there, and scripts of pages see that it may stand elsewhere
UNBROKEN = "\u00a0"  # between a number and its unit while lines are made
SHARE_BUTTON = "sendChartToCloud"
"""Plotly 7's button that uploads a figure to Plotly's servers: logs are private, so no figure has it."""
TURNS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
ISOLATE, END = "\u2068", "\u2069"
NUMBERS = {"exponentformat": "power", "minexponent": 6, "separatethousands": True}
"""Ticks: 16,000 instead of plotly's 16k, and a power of ten instead of 100n."""
TEMPLATE = go.layout.Template(
    {
        "layout": {
            "colorway": ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"],
            "hovermode": "closest",
            "colorscale": {"sequential": "Viridis"},
            **{axis: {"title": {"standoff": 15}, "zerolinewidth": 2, "ticks": "", **NUMBERS} for axis in ("xaxis", "yaxis")},
        },
        "data": {
            "bar": [
                {
                    "marker": {
                        "line": {"color": "white", "width": 0.5},
                        "pattern": {"size": 10, "solidity": 0.2, "fillmode": "overlay"},  # hatched over the bar's own colour
                    }
                }
            ]
        },
    }
)
"""What is not said in every figure. Plotly's own templates say more than ours need, and copying them takes longer than all
the rest of a figure's layout."""


def clean(text: Any, longest: int = LONGEST_TEXT) -> str:
    """Return text of a log for titles, labels and hovers: one line, limited in length, markup escaped.

    Only ``& < >`` are replaced: plotly reads these entities, and would show those of quotation marks literally. Marks that
    change the direction of writing are left out, and right-to-left text is isolated from the text around it.
    """
    line = TURNS.sub("", re.sub(r"[\x00-\x1f\x7f\s]+", " ", str(text)).strip())
    if len(line) > longest:
        line = line[: longest - 1] + "…"
    if not line.isascii() and any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in line):
        line = f"{ISOLATE}{line}{END}"
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def unmarked(text: str) -> str:
    """Return the text without markup, as a reader sees it."""
    return html.unescape(re.sub(r"<[^<>]*>", "", text))


def plain(text: Any) -> str:
    """Return text of a figure without markup, on one line."""
    return " ".join(unmarked(re.sub(r"<br\s*/?>", " ", str(text))).split())


def number(value: Any, unit: str = "", digits: int = 3) -> str:
    """Return a number with about ``digits`` digits and its unit, or ``unknown``."""
    try:
        finite = value is not None and math.isfinite(value)
    except (TypeError, ValueError):
        finite = False
    if not finite:
        return "unknown"
    size = abs(float(value))
    if 0 < size < SMALLEST:  # a few digits and a power of ten
        power = math.floor(math.log10(size))
        parts = [f"{float(value) / 10.0**power:.{digits}g}\u00d710{str(power).translate(RAISED)}".replace("-", MINUS), unit]
        return " ".join(filter(None, parts))
    decimals = 0 if size == 0 or size >= 10 ** (digits - 1) else min(6, digits - 1 - math.floor(math.log10(size)))
    return f"{float(value):,.{decimals}f}".replace("-", MINUS) + (f" {unit}" if unit else "")


def usd(value: float) -> str:
    """Return dollars in a unit that shows digits: ``1.23 USD``, ``0.47 cents``; the empty text for nothing or unknown costs."""
    if not (math.isfinite(value) and value > 0):
        return ""
    if value >= 0.01:
        return number(value, "USD")
    return number(100 * value, "cents") if value >= 1e-6 else "less than 0.0001 cents"


def cost_line(dollars: float) -> list[tuple[str, str]]:
    """Return dollars as a line of a hover text; no line where nothing is paid or known."""
    return [("cost", usd(dollars))] if usd(dollars) else []


def signed_share(value: float) -> str:
    """Return ``+3.1%``; an empty text for an unknown value."""
    return f"{round(value, 3) + 0.0:+.1%}".replace("-", MINUS).replace("+0.0%", "0.0%") if math.isfinite(value) else ""


def hover(lines: Iterable[tuple[str, str]], head: str = "") -> str:
    """Return a hover text: a bold head and one ``name: value`` per line. Values must be clean."""
    rows = [f"<b>{head}</b>"] if head else []
    return "<br>".join(rows + [f"{name}: {value}" for name, value in lines])


def lines_of(text: str, max_chars: int) -> str:
    """Return clean text in lines of at most so many letters; text with tags other than ``<br>`` keeps its lines.

    A number and its unit stay in one line. The breaks are ``SOFT_BREAK``: pages break texts anew for their width.
    """
    if re.search(r"<(?!br>)", text):
        return text
    whole = [re.sub(r"(?<=\d) (?=[A-Za-z])", UNBROKEN, line) for line in text.split("<br>")]
    lines = (textwrap.wrap(line, max_chars, break_long_words=False, break_on_hyphens=False) for line in whole)
    return "<br>".join(SOFT_BREAK.join(line) for line in lines if line).replace(UNBROKEN, " ")


def cut_axes(**begins: float) -> str:
    """Return which axes do not start at 0, for a subtitle, by their names; the empty text where all do."""
    cut = [name for name, begin in begins.items() if begin != 0]
    if len(cut) == 1:
        return f"the {cut[0]} axis does not start at 0"
    return f"the axes of {' and '.join(cut)} do not start at 0" if cut else ""


def is_dark() -> bool:
    """Return whether plotly's default template is a dark one."""
    return "dark" in str(pio.templates.default or "")


def styled(fig: F, title: str, subtitle: str = "", height: int = 420, above: int = 0, **layout: Any) -> F:
    """Return ``fig`` with the common style; ``title`` and ``subtitle`` must be clean, and are broken into lines.

    Args:
        height: of the figure whose title and subtitle have one line each; further lines make it taller.
        above: pixels between the titles and the plot, for headings of panels or a legend.
    """
    text, further = titles(title, subtitle)
    paper, ink = PAPERS[is_dark()]
    update: dict[str, Any] = {
        "template": TEMPLATE,
        "title": {
            "text": text, "x": 0.0, "xanchor": "left", "xref": "container", "y": 1.0, "yanchor": "top",
            "yref": "container", "pad": {"t": MODE_BAR_PX, "l": 14}, "font": {"size": 15},
        },
        "font": {"family": FONT, "size": 12, "color": ink},
        "paper_bgcolor": paper,
        "plot_bgcolor": "rgba(0,0,0,0)",
        "height": height + further,
        "margin": {"l": 70, "r": 24, "t": (82 if subtitle else 66) + further + above, "b": 56},
        "legend": {"x": 1.01, "xanchor": "left", "y": 1.0, "yanchor": "top", "traceorder": "normal"},
        "modebar": {
            "bgcolor": "rgba(0,0,0,0)", "color": "rgba(127,127,127,0.55)", "activecolor": "#7F7F7F", "remove": [SHARE_BUTTON],
        },
        "hoverlabel": {"align": "left", "font": {"family": FONT, "size": 12}},
    }  # fmt: skip
    so_far = fig.layout.to_plotly_json()
    line = {"gridcolor": GRID, "zerolinecolor": GRID, "automargin": True}
    for axis in {"xaxis", "yaxis", *axis_keys(so_far, "xy")}:
        ticks = {} if axis.startswith("x") else {"ticks": "outside", "ticklen": 5, "tickcolor": "rgba(0,0,0,0)"}
        update[axis] = {**line, **ticks}
    if "t" in layout.get("margin", {}):
        layout["margin"] = {**layout["margin"], "t": layout["margin"]["t"] + further}
    fig.layout = merged(so_far, update)  # at once: plotly checks and copies a layout at every update of it
    if layout:
        fig.update_layout(**layout)
    return fig


def titles(title: str, subtitle: str = "") -> tuple[str, int]:
    """Return the title and subtitle of a figure in lines, and the pixels of the lines after the first of each."""
    title, subtitle = lines_of(title, TITLE_CHARS), lines_of(subtitle, SUBTITLE_CHARS)
    below = f"<br><span style='font-size:12px;font-weight:normal'>{subtitle}</span>" if subtitle else ""
    return f"<b>{title}</b>{below}", 19 * title.count("<br") + 15 * subtitle.count("<br")


def legend_below(inner_px: float) -> dict[str, Any]:
    """Return a horizontal legend under the ticks and the title of the lowest horizontal axis.

    Args:
        inner_px: height of the plotting area, from the lowest axis to the top of the highest panel.
    """
    return {
        "orientation": "h", "x": 0, "xanchor": "left", "y": -AXIS_PX / inner_px, "yanchor": "top", "traceorder": "normal",
    }  # fmt: skip


def axis_keys(layout: Iterable[str], letters: str) -> list[str]:
    """Return the keys of a layout that are axes of these letters."""
    return [key for key in layout if re.fullmatch(rf"[{letters}]axis\d*", key)]


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return two nested dicts merged into one; ``over`` wins where both have a key."""
    both = {}
    for name, value in over.items():
        below = under.get(name)
        both[name] = merged(below, value) if isinstance(value, Mapping) and isinstance(below, Mapping) else value
    return {**under, **both}


def whole_steps(steps: Sequence[float]) -> dict[str, Any]:
    """Return the axis settings that mark whole steps only."""
    return {"tickvals": list(steps)} if len(steps) <= MAX_TICKS else {"nticks": MAX_TICKS, "tickformat": "d"}


def whole_counts(most: float) -> dict[str, Any]:
    """Return the axis settings of counts up to ``most``: no ticks between whole numbers."""
    return {"rangemode": "tozero", "tickformat": ",d", **({"dtick": 1} if most <= 6 else {})}


def message_figure(title: str, missing: str, table: pd.DataFrame | None = None) -> DataFigure:
    """Return a figure without data that says what is missing; ``table`` is what the plot would have drawn."""
    fig = DataFigure()
    if table is not None:
        fig.table = table
    fig.add_annotation(text=missing, x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False, font={"size": 14})
    fig.update_xaxes(visible=False)
    fig.update_yaxes(visible=False)
    return styled(fig, title, height=180)
