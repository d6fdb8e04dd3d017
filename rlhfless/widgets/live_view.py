"""``live``: buttons that run, pause and stop a run, and a live view of it.

It draws widgets and figures; ``live_run`` drives the run. A run has one view. A cell that is run again gets a new view of the
same run, and the old view says that it is no longer updated.

Two threads update a view. The run's draws figures and meters when it hears from its actors and when steps are complete. While
the learner computes it does neither. A second one shows the phase with its seconds, about once a second and when the phase
changes, and draws the learner's GPUs meanwhile. These seconds are the kernel's; where they do not come, the page says so. Every
drawing is sent whole, so that a page can join at any time, and none has more than a bounded number of bars and points. The
budget of the run limits what both threads compute, see ``live_run``.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import ipywidgets as widgets
import pandas as pd

from rlhfless.engine.protocol import Request
from rlhfless.executor.step.progress import BETWEEN_STEPS
from rlhfless.plots import plot_cost_over_time, plot_curves
from rlhfless.plots.cost_over_time import growing_cost
from rlhfless.plots.growing_timeline import growing_timeline
from rlhfless.plots.style import counted, message_figure, number, signed_share, usd
from rlhfless.plots.training_curves import growing_curves
from rlhfless.system.templates import Markup
from rlhfless.trace import idle_share_if_held
from rlhfless.trace.metrics.growing_step import Bar, Held, StepCost, StepSoFar
from rlhfless.trace.tracks import PlannedActor
from rlhfless.widgets import html as html_parts
from rlhfless.widgets.fallback import ReloadFallback
from rlhfless.widgets.live_run import UNDER_WAY, WHEN_IT_STOPS, LiveRun, RunStatus
from rlhfless.widgets.live_steps import steps_of
from rlhfless.widgets.panes import Panes
from solver.model.plan import Plan

ROWS = ((("phase", 1),), (("facts", 1),), (("timeline", 3), ("cost", 2)), (("curves", 1),))
BEAT_S, LEAST_BEAT_S = 1.0, 0.1
"""Seconds from one showing of the phase to the next, and at least where phases are shorter."""
NOT_STARTED, NOTHING_RUNS = "The run has not started: press run.", "No step has run yet: run one in another cell."
ELSEWHERE = "A cell runs these steps: interrupt it to stop them."
REPLACED = "Shown again in a newer view of this run; this one is no longer updated."
FAILED = "This view failed and is no longer updated; the run continues. Run the cell again for another view."


class LiveView(ReloadFallback, widgets.VBox):  # type: ignore[misc]
    """The view that ``live`` makes.

    Attributes:
        run: the run that the buttons drive; ``run.trace`` has everything that is kept.
    """

    instead = (
        "Without widgets, print_phases(LiveRun(steps_of(trainer))) of rlhfless.widgets prints each step; after "
        "it, plot_curves(trainer) and plot_timeline(trace) of rlhfless.plots draw it."
    )

    def __init__(self, run: LiveRun) -> None:
        self.run = run
        self.panes = Panes(ROWS, ("phase", "facts"))
        self._drawn_steps = -1
        self._drawn: StepSoFar | None = None
        self._buttons = {
            "run": widgets.Button(description="run", icon="play", tooltip="Start or continue the run"),
            "pause": widgets.Button(description="pause", icon="pause", tooltip="Pause the run"),
            "stop": widgets.Button(description="stop", icon="stop", tooltip="Stop the run in the current step"),
        }
        self._buttons["run"].on_click(lambda _: run.run())
        self._buttons["pause"].on_click(lambda _: run.pause())
        self._buttons["stop"].on_click(lambda _: run.request_stop())
        super().__init__([widgets.HBox(list(self._buttons.values())), self.panes])
        draw_first()
        self._drawing = threading.RLock()  # whoever draws last shows the newest
        self._beating = threading.RLock()  # the same for the phase
        self._woken, self._beats = threading.Event(), False
        self.panes.draw("timeline", message_figure("GPU timeline", NOT_STARTED if run.steps.left() else NOTHING_RUNS))
        self.panes.draw("cost", plot_cost_over_time(pd.DataFrame(columns=list(StepCost._fields))))
        before = getattr(run.on_change, "__self__", None)
        run.on_change, run.on_phase = self.refresh, self._woken.set  # from here on the thread of the run draws, too
        if isinstance(before, LiveView):
            before.show_phase()
        self.refresh()

    def refresh(self) -> None:
        """Show the current state of the run."""
        with self._drawing:
            run = self.run.status()
            self._buttons["run"].disabled = not (run.state == "paused" or (run.state not in UNDER_WAY and run.left))
            self._buttons["pause"].disabled = run.state != "running" or run.elsewhere
            self._buttons["stop"].disabled = run.state not in ("running", "paused") or run.elsewhere
            self.show_phase()
            self.panes.put("facts", facts(run))
            if run.shown is not None and run.shown is not self._drawn:
                self.panes.draw("timeline", growing_timeline(run.shown))
                costs = pd.DataFrame(run.costs, columns=list(StepCost._fields))
                self.panes.draw("cost", growing_cost(costs, run.shown.meta))
                self._drawn = run.shown
            if run.complete != self._drawn_steps:
                self.panes.draw("curves", growing_curves(run.table) if len(run.table) else plot_curves(run.table))
                self._drawn_steps = run.complete

    def show_phase(self) -> None:
        """Show what the run does and for how long it has, and go on with it in a thread while the run is under way."""
        with self._beating:
            if self._show_phase() and not self._beats:
                self._beats = True
                threading.Thread(target=self._beat, name="rlhfless-live-phase", daemon=True).start()

    def _beat(self) -> None:
        while True:
            self._woken.wait(BEAT_S)
            self._woken.clear()
            began = time.thread_time()
            with self._beating:
                self._beats = self._show_phase()
                if not self._beats:
                    return
            self.run.charge(time.thread_time() - began)
            self.run.catch_up()
            time.sleep(LEAST_BEAT_S)

    def _show_phase(self) -> bool:
        """Show the phase; returns whether it goes on."""
        run, goes_on = self.run.status(), False
        if self.run.on_change == self.refresh:
            shown, goes_on = phase(run), run.state in UNDER_WAY
        else:
            shown = html_parts.paragraph(REPLACED) if self.run.on_change is not None else html_parts.problem(FAILED)
            if self.run.on_change is None and (why := self.run.view_error) is not None:
                shown += html_parts.problem(f"{type(why).__name__}: {why}")
        self.panes.put("phase", shown)
        self.panes.beat = self.panes.beat % 1_000_000 + 1 if goes_on else 0
        return goes_on


@cache
def draw_first() -> None:
    """Draw each figure once, of made-up numbers: what plotly loads for its first ones would come out of the run's time."""
    cost = StepCost(0, 0.0, 1.0, 1.0, 0.0, math.nan, 1, True)
    held = Held("actor-0", "decode", 0, "", "", (0,), 0.0, 1.0, 1.0, 0.0, math.nan)
    bars = [Bar("actor-0", phase, False, 0.0, 1.0, 1.0) for phase in ("prefill", "decode")]
    planned = [PlannedActor("actor-0", 0.0, 1.0, 1)]
    growing_timeline(StepSoFar(0, 1, 1, 1.0, cost, [held], bars, len(bars), 0.0, [], planned, {}))
    growing_cost(pd.DataFrame([cost]))
    growing_curves(pd.DataFrame([{"step": 0, "reward_mean": 1.0, "response_tokens_mean": 1.0, "actors": 1}]))


def phase(run: RunStatus) -> Markup:
    """Return what a run does, of which step, and for how long it has: of its state where it is not under way."""
    if run.state not in UNDER_WAY or run.phase is None:
        return html_parts.cards([html_parts.Card("phase", run.state if run.state != "running" else "starting")])
    now = run.phase
    if now.name == BETWEEN_STEPS:
        total = now.step + 1 + run.left
        done = html_parts.Card("phase", f"step {now.step + 1} of {total} done; waits for your loop")
        return html_parts.cards([done, html_parts.Card("phase lasts", elapsed(now.elapsed_s))])
    shown = [("phase", now.name if run.state == "running" else f"{now.name}, {run.state}"), ("step", f"{now.step}")]
    shown += [("phase lasts", elapsed(now.elapsed_s))]
    if now.of:
        shown += [("complete responses", f"{now.completed:,} of {now.of:,}")]
    return html_parts.cards(html_parts.Card(name, value) for name, value in shown)


def elapsed(seconds: float) -> str:
    """Return ``12 s`` or ``3 min 04 s``."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def facts(run: RunStatus) -> Markup:
    """Return state and meters as HTML: of all complete steps and the running step."""
    table = run.table
    paid = [cost for cost in run.costs if cost.complete] + [cost for cost in run.costs if not cost.complete][-1:]
    gpu_s, idle_gpu_s, usd_so_far = (
        sum(getattr(c, name) for c in paid) for name in ("gpu_seconds", "idle_gpu_seconds", "cost_usd")
    )
    generation, static = (
        float(table.dropna(subset=["static_gpu_seconds"])[name].sum()) if name in table else 0.0
        for name in ("generation_gpu_seconds", "static_gpu_seconds")
    )
    gpus = max([run.gpus, *(1 + max(held.gpu_ids, default=-1) for held in (run.shown.held if run.shown else ()))])
    if_held = idle_share_if_held(gpu_s, idle_gpu_s, gpus * sum(cost.end_s - cost.start_s for cost in paid))
    unknown = "unknown" if len(table) else "after the first step"
    html = html_parts.cards(
        html_parts.Card(name, value)
        for name, value in (
            ("state", run.state),
            ("complete steps", f"{run.complete}, {run.left} left"),
            ("actors", str(paid[-1].actors) if paid else "none yet"),
            ("GPU-seconds", number(gpu_s, digits=4)),
            ("cost", (usd(usd_so_far) or "unknown: no price") if paid else "none yet"),
            ("idle share", f"{idle_gpu_s / gpu_s:.1%}" if gpu_s > 0 else "unknown"),
            (f"idle share if all {counted(gpus, 'GPU')} were held", "unknown" if math.isnan(if_held) else f"{if_held:.1%}"),
            ("generation GPU-seconds relative to static", signed_share(generation / static - 1) if static > 0 else unknown),
        )
    )
    if run.elsewhere:
        html += html_parts.paragraph(ELSEWHERE)
    if run.state == "stopping":
        html += html_parts.paragraph(f"The current step is asked to stop; {WHEN_IT_STOPS}.")
    return html if run.error is None else html + html_parts.problem(f"{type(run.error).__name__}: {run.error}")


def live(source: Any, work: Sequence[tuple[Plan, Sequence[Request]]] = ()) -> LiveView:
    """Run, pause and stop a run, and watch it: timeline of the running step, cost and idle share, curves over the steps.

    Run the cell again to see the same run in its current state; so create the source in a cell above. With other ``work``, a
    new run starts, unless the executor still has one. Steps that a cell runs (``Trainer.train``, ``Executor.run``) are shown,
    too, while that cell keeps the kernel busy. The same without widgets: ``LiveRun(steps_of(source))``.

    Args:
        source: a ``Trainer``, or an ``Executor``. work: plans with their requests that an executor's buttons run.

    Raises:
        TypeError: ``source`` is neither, or the work is no list of plans with their requests.
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
