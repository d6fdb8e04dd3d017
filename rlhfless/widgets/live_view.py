"""``live``: buttons that run, pause and stop a run, and a live view of it.

It draws widgets and figures; ``live_run`` drives the run. A run has one view. A cell that is run again gets a new view of the
same run, and the old view is no longer updated.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets

from rlhfless.engine.protocol import Request
from rlhfless.plots import plot_curves, plot_timeline
from rlhfless.plots.style import message_figure, number, signed_share
from rlhfless.system.templates import Markup
from rlhfless.trace import Trace, step_metrics
from rlhfless.widgets import html as html_parts
from rlhfless.widgets.fallback import ReloadFallback
from rlhfless.widgets.live_run import GENERATES, UNDER_WAY, WHEN_IT_STOPS, LiveRun, RunStatus
from rlhfless.widgets.live_steps import steps_of
from rlhfless.widgets.panes import Panes
from solver.model.plan import Plan
from solver.model.plurals import counted

ROWS = ((("facts", 1),), (("timeline", 3), ("curves", 2)))


class LiveView(ReloadFallback, widgets.VBox):  # type: ignore[misc]
    """The view that ``live`` makes.

    Attributes:
        run: the run that the buttons drive; ``run.trace`` has everything that is kept.
    """

    def __init__(self, run: LiveRun) -> None:
        self.run = run
        self.panes = Panes(ROWS, ("facts",))
        self._drawn_steps = -1
        self._buttons = {
            "run": widgets.Button(description="run", icon="play", tooltip="Start or continue the run"),
            "pause": widgets.Button(description="pause", icon="pause", tooltip="Pause the run"),
            "stop": widgets.Button(description="stop", icon="stop", tooltip="Stop the run in the current step"),
        }
        self._buttons["run"].on_click(lambda _: run.run())
        self._buttons["pause"].on_click(lambda _: run.pause())
        self._buttons["stop"].on_click(lambda _: run.request_stop())
        super().__init__([widgets.HBox(list(self._buttons.values())), self.panes])
        self._drawing = threading.Lock()  # whoever draws last shows the newest
        self.panes.draw("timeline", message_figure("GPU timeline", "The run has not started: press run."))
        run.on_change = self.refresh  # from here on the thread of the run draws, too
        self.refresh()

    def refresh(self) -> None:
        """Show the current state of the run."""
        with self._drawing:
            run = self.run.status()
            self._buttons["run"].disabled = not (run.state == "paused" or (run.state not in UNDER_WAY and run.left))
            self._buttons["pause"].disabled = run.state != "running"
            self._buttons["stop"].disabled = run.state not in ("running", "paused")
            self.panes.put("facts", facts(run))
            shown = run.interrupted if run.snapshot is None else run.snapshot.trace
            if shown is None and run.complete != self._drawn_steps:
                shown = run.last
            if shown is not None:
                self.panes.draw("timeline", timeline(shown))
            if run.complete != self._drawn_steps:
                self.panes.draw("curves", plot_curves(run.table))
                self._drawn_steps = run.complete


def timeline(shown: Trace) -> Any:
    """Return the timeline of a step; the user's zoom stays while it grows."""
    figure = plot_timeline(shown, roles=GENERATES)
    return figure.update_layout(uirevision=f"step {shown.steps[-1]}", height=420, title_font_size=13)


def facts(run: RunStatus) -> Markup:
    """Return state and meters as HTML: of all complete steps and the running step."""
    table = run.table
    total = {
        name: float(table[name].sum()) if name in table else 0.0 for name in ("gpu_seconds", "idle_gpu_seconds", "cost_usd")
    }
    generation, static = (
        float(table.dropna(subset=["static_gpu_seconds"])[name].sum()) if name in table else 0.0
        for name in ("generation_gpu_seconds", "static_gpu_seconds")
    )
    under_way = "none"
    actors = f"{int(table['actors'].iloc[-1])}" if len(table) else "none yet"
    if run.snapshot is not None:
        now = step_metrics(run.snapshot.trace).iloc[-1]
        for name in total:
            total[name] += float(now[name])
        under_way = f"{run.snapshot.completed:,} of {counted(run.snapshot.of, 'response')}"
        actors = str(int(now["actors"]))
    idle = f"{total['idle_gpu_seconds'] / total['gpu_seconds']:.1%}" if total["gpu_seconds"] > 0 else "unknown"
    unknown = "unknown" if len(table) else "after the first step"
    against = signed_share(generation / static - 1) if static > 0 else unknown
    html = html_parts.cards(
        html_parts.Card(name, value)
        for name, value in (
            ("state", run.state),
            ("complete steps", f"{run.complete}, {run.left} left"),
            ("current step", under_way),
            ("actors", actors),
            ("GPU-seconds", number(total["gpu_seconds"], digits=4)),
            ("cost", number(total["cost_usd"], "USD")),
            ("idle share", idle),
            ("generation GPU-seconds relative to static", against),
        )
    )
    if run.state == "stopping":
        html += html_parts.paragraph(f"The current step is asked to stop; {WHEN_IT_STOPS}.")
    return html if run.error is None else html + html_parts.problem(f"{type(run.error).__name__}: {run.error}")


def live(source: Any, work: Sequence[tuple[Plan, Sequence[Request]]] = ()) -> LiveView:
    """Run, pause and stop a run, and watch it: timeline of the running step, cost meter, curves over the steps.

    Run the cell again to see the same run in its current state; so create the source in a cell above. With other ``work``, a
    new run starts, unless the executor still has one. The same without widgets: ``LiveRun(steps_of(source))``.

    Args:
        source: a ``Trainer``, or an ``Executor``. work: plans with their requests, for an executor.

    Raises:
        TypeError: ``source`` is neither, or an executor comes without work or with something else.
    """
    run = getattr(getattr(source, "on_progress", None), "__self__", None)  # who watches it already
    if not isinstance(run, LiveRun) or (work and not _goes_on(run, work)):
        run = LiveRun(steps_of(source, work))
    return LiveView(run)


def _goes_on(run: LiveRun, work: Sequence[tuple[Plan, Sequence[Request]]]) -> bool:
    """Whether the run is active, or has steps left of this same work."""
    theirs = getattr(run.steps, "work", [])
    same = len(theirs) == len(work) and all(left is right for left, right in zip(theirs, work, strict=True))
    return run.state in UNDER_WAY or (same and run.steps.left() > 0)
