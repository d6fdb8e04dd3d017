"""``compare``: a dashboard that compares several runs or policies, step by step or over all steps.

It draws widgets and figures; ``compared`` computes the numbers and their marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import ipywidgets as widgets
import pandas as pd

from rlhfless.plots import plot_plane, plot_timelines
from rlhfless.plots.style import number, signed_share
from rlhfless.system.templates import Markup
from rlhfless.trace import Limits, Trace
from rlhfless.widgets import html as html_parts
from rlhfless.widgets.fallback import ReloadFallback
from rlhfless.widgets.loaded_run import LoadedRun
from rlhfless.widgets.panes import Panes
from rlhfless.widgets.run_table import Compared, compared, read_runs

ROWS = ((("numbers", 1),), (("plane", 1),), (("timelines", 1),))  # names are long: a legend needs the whole width
ALL = "all steps"
HEADS = {
    "time_s": "time (s)", "gpu_seconds": "GPU-seconds", "idle_gpu_seconds": "idle GPU-seconds", "cost_usd": "cost (USD)",
}  # fmt: skip
SHARES, COUNTS = ("idle_share", "truncated_share"), ("actors", "responses")


class ComparisonDashboard(ReloadFallback, widgets.VBox):  # type: ignore[misc]
    """The dashboard that ``compare`` makes.

    Attributes:
        step: the steps that are shown: one step, or ``all steps``. shown: their numbers.
    """

    instead = (
        "Without widgets, compared(traces) of rlhfless.widgets has the tables, and plot_timelines(traces) of "
        "rlhfless.plots draws them."
    )

    def __init__(self, traces: Mapping[str, Trace]) -> None:
        self.traces = dict(traces)
        self.shown = compared(self.traces)
        self.panes = Panes(ROWS, ("numbers",))
        self.step = widgets.SelectionSlider(
            options=[ALL, *self.shown.steps], value=ALL, description="step", layout=widgets.Layout(width="480px")
        )
        self.step.observe(lambda _: self._show(), "value")
        super().__init__([self.step, self.panes])
        self._show()

    def _show(self) -> None:
        step = None if self.step.value == ALL else int(self.step.value)
        self.shown = compared(self.traces, step)
        self.panes.put("numbers", numbers_html(self.shown))
        results = self.shown.table.reset_index(names="policy")[["policy", "time_s", "gpu_seconds", "cost_usd"]]
        title = f"Time and cost: {ALL if step is None else f'step {step}'}"
        self.panes.draw("plane", plot_plane(results, title=title))
        self.panes.draw("timelines", plot_timelines(self.traces, self.shown.steps[-1]))


def numbers_html(shown: Compared) -> Markup:
    """Return the numbers as HTML; a sign and words, not colour alone, mark a difference to the first row."""
    table = shown.table.loc[:, shown.table.notna().any()]
    rows, marks = [], []
    for i, (name, values) in enumerate(table.iterrows()):
        cells, signs = [str(name)[:80]], [""]
        for column, value in values.items():
            html = _shown(str(column), value)
            change = shown.relative.loc[name, column]
            mark = shown.marks.loc[name, column]
            cells.append(html + (f" ({signed_share(change)})" if i and mark and signed_share(change) else ""))
            signs.append(mark if mark != "differs" else "")
        rows.append(cells)
        marks.append(signs)
    head = ["", *(HEADS.get(str(column), str(column).replace("_", " ")) for column in table.columns)]
    steps = f"{len(shown.steps)} steps" if len(shown.steps) > 1 else f"step {shown.steps[0]}"
    html = html_parts.table(head, rows, f"{steps}; ▼ is better and ▲ is worse than {rows[0][0]}", marks)
    if shown.differs:
        differs = [(name, *(value[:120] for value in values)) for name, values in shown.differs.items()]
        html += html_parts.table(["setting that differs", *(row[0] for row in rows)], differs)
    return html


def _shown(column: str, value: float) -> str:
    if column in SHARES and pd.notna(value):
        return f"{value:.1%}"
    if column in COUNTS and float(value).is_integer():  # else it is a mean over steps
        return f"{value:,.0f}"
    return number(value, digits=4)


def compare(traces: Mapping[str, LoadedRun | Trace | str | Path], *, limits: Limits | None = None) -> ComparisonDashboard:
    """Compare several runs or policies: numbers with differences marked, time against cost, timelines.

    The same without widgets: ``compared(traces)``, ``plot_plane``, ``plot_timelines``.

    Args:
        traces: name to trace, loaded run (``rlhfless.load``) or trace folder; the first is the base of the
            comparison. ``simulate(...).traces`` is one.
        limits: maximal amounts to read of each folder; None takes the default.

    Raises:
        TraceError: one is no trace or holds several runs, or they share no step.
    """
    return ComparisonDashboard(read_runs(traces, limits))
