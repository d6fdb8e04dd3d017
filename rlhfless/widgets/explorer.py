"""``Explorer``: a dashboard with sliders over the settings of a step's plan, and all results that depend on them.

It draws widgets and figures; ``what_if`` computes the results without widgets. Each move of a slider requests a new plan, and a
thread computes the newest request only, once the slider rests. The plan's panes are updated first, then the policies and the
front. Panes that still show an earlier request are grey.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ipywidgets as widgets

from rlhfless.errors import InputError
from rlhfless.latency import PriceError, usd_per_gpu_hour
from rlhfless.latency.gpus import NODE_GPUS
from rlhfless.plots import plot_responses, plot_timeline
from rlhfless.plots.timeline_data import step_timeline
from rlhfless.simulate import Comparison
from rlhfless.system.templates import Markup
from rlhfless.widgets import html as html_parts
from rlhfless.widgets.explorer_cards import plan_cards
from rlhfless.widgets.explorer_panels import actors_table, plane, response_html
from rlhfless.widgets.fallback import ReloadFallback
from rlhfless.widgets.latest_request import LatestRequestWorker, Newest
from rlhfless.widgets.panes import Panes
from rlhfless.widgets.settings import PREDICTORS, Settings, changed, fill_nodes, latency_of, models
from rlhfless.widgets.what_if import WhatIf, WhatIfPlan
from solver.generation.pareto_front import Front
from solver.model.errors import PlanningError

GPUS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
PLAN_PANES, CURVE_PANES = ("facts", "timeline", "actors", "responses", "response", "copy"), ("plane",)
ROWS = (
    (("facts", 1),),
    (("timeline", 1),),
    (("plane", 5), ("responses", 6)),
    (("actors", 1),),
    (("response", 3), ("copy", 2)),
)
HTML = ("facts", "actors", "response", "copy")
REST_S = 0.1
"""Planning begins after a move that long without another one: it cannot be interrupted, and a moving slider sends many."""
SENDING_S = 0.003
"""Time for the kernel's sending thread: it waits for the interpreter, which work on the other panes would keep."""
ANY_SIZE = 0
"""The value of the slider for GPUs per actor where the plan chooses them."""
WIDE = "290px"  # four controls in a row on a laptop's screen


class Explorer(ReloadFallback, widgets.VBox):  # type: ignore[misc]
    """The dashboard that ``Run.explore`` makes: sliders over the GPUs, the price and the objective of one step.

    Every move plans the step again. The plan and its numbers are those of ``run.plan(step)`` and its ``compare`` in the same
    settings. The same without widgets: ``WhatIf(run, step).plan(Settings(...))``, then ``alternatives`` and ``front``.

    Args:
        what_if: the step. settings: initial ones; what is None is as in the run. changes: single ones of them, by name.

    Raises:
        InputError: these are no settings, or a name is no setting's. ProfileError: there is no such profile.

    Attributes:
        what_if: the step. settings: those of the shown results.
        planned, alternatives, front: the results shown so far; ``wait`` waits for the newest.
        error: what went wrong with the newest request, or None.
        actor: the actor whose responses are shown. response: the response whose details are shown, or None.
    """

    instead = (
        "Without widgets, WhatIf(run, step).plan(settings) of rlhfless.widgets plans the step with the settings of the sliders."
    )

    def __init__(self, what_if: WhatIf, settings: Settings, **changes: Any) -> None:
        settings = changed(settings, changes).of_run(what_if.run)
        self.what_if, self.settings = what_if, settings
        self.planned: WhatIfPlan | None = None
        self.alternatives: Comparison | None = None
        self.front: Front | None = None
        self.error: Exception | None = None
        self.actor = 0
        self.response: int | None = None
        self._requests = self._shown = 0  # the newest, and the one whose plan is shown
        self._asked: dict[str, Any] = {}
        self._listening = True
        self._showing = threading.RLock()  # a click is not lost to a plan that the worker shows meanwhile
        self.panes = Panes(ROWS, HTML, on_click=self._clicked, on_choice=self._chosen)
        self._models = models(str(settings.profile))
        self._make_controls()
        self._latest: LatestRequestWorker[tuple[int, dict[str, Any]]] = LatestRequestWorker(
            self._work,
            self._failed,
            wait_s=0.0,  # each request itself waits until the slider rests
        )
        grid = widgets.Layout(grid_template_columns=f"repeat(auto-fill, {WIDE})", grid_gap="2px 10px")
        super().__init__([widgets.GridBox(self._controls, layout=grid), self.panes])
        self._request_plan()

    def wait(self, timeout_s: float | None = 30.0) -> bool:
        """Wait until all requested results are shown; returns whether that happened within the timeout."""
        return self._latest.wait(timeout_s)

    # --- controls -----------------------------------------------------------------------------------------------------

    def _make_controls(self) -> None:
        s, cluster = self.settings, self.settings.setting.cluster
        same: dict[str, Any] = {"layout": widgets.Layout(width=WIDE), "style": {"description_width": "106px"}}
        kind = next(k for k, sizes in self._models.items() if s.profile in sizes.values())
        sizes = self._models[kind]
        price, weight = cluster.usd_per_gpu_hour, s.setting.objective.time_weight
        self.time_weight = widgets.FloatSlider(
            weight, min=0, max=1, step=0.05, description="time weight", readout_format=".2f", **same
        )
        counts = sorted({*(n for n in GPUS if fill_nodes(n, s.gpus_per_node or NODE_GPUS)), cluster.gpus})
        self.gpus = widgets.SelectionSlider(options=counts, value=cluster.gpus, description="GPUs", **same)
        self.kind = widgets.Dropdown(options=list(self._models), value=kind, description="GPU kind", **same)
        per_actor = ANY_SIZE if s.any_size and len(sizes) > 1 else s.setting.latency.gpus_per_actor
        self.per_actor = widgets.SelectionSlider(options=_sizes(sizes), value=per_actor, description="GPUs per actor", **same)
        self.price = widgets.BoundedFloatText(price, min=0, max=max(1000, price), step=0.1, description="USD per GPU-h", **same)
        min_tau = min(0.05, s.tau)
        self.tau = widgets.FloatSlider(s.tau, min=min_tau, max=1, step=0.05, description="tau (rlhfless)", **same)
        self.predictor = widgets.Dropdown(options=list(PREDICTORS), value=s.predictor, description="predictor", **same)
        self._controls = [
            self.time_weight, self.gpus, self.kind, self.per_actor, self.tau, self.price, self.predictor,
        ]  # fmt: skip
        self.kind.observe(self._kind_changed, "value")
        for control in (self.time_weight, self.gpus, self.per_actor, self.price, self.tau, self.predictor):
            control.observe(self._changed, "value")

    def _kind_changed(self, change: dict[str, Any]) -> None:
        """Update actor sizes and list price (if there is one) to the new GPU kind, as one request."""
        sizes = self._models[change["new"]]
        self._listening = False
        options = _sizes(sizes)
        chosen = self.per_actor.value
        per_actor = chosen if chosen in [value for _, value in options] else options[0][1]
        self.per_actor.options = options
        self.per_actor.value = per_actor
        with suppress(PriceError):
            self.price.value = usd_per_gpu_hour(latency_of(sizes[min(sizes)]).kind)
        self._listening = True
        self._changed(change)

    def _changed(self, _: object) -> None:
        if self._listening and self._values() != self._asked:  # a page rounds values in its own way, and tells so
            self._request_plan()

    def _values(self) -> dict[str, Any]:
        """Return the values of the controls as settings."""
        sizes, per_actor = self._models[self.kind.value], self.per_actor.value
        own = self.settings.profile if self.settings.profile in sizes.values() else sizes[min(sizes)]
        return {
            "profile": own if per_actor == ANY_SIZE else sizes[per_actor],
            "any_size": per_actor == ANY_SIZE or len(sizes) == 1,
            "gpus": self.gpus.value,
            "time_weight": _as_read(self.time_weight.value),
            "tau": _as_read(self.tau.value),
            "usd_per_gpu_hour": float(self.price.value),
            "predictor": self.predictor.value,
            "gpus_per_node": self.settings.gpus_per_node,
        }

    def _request_plan(self) -> None:
        """Request the results for the values of the controls."""
        self._requests += 1
        self._asked = chosen = self._values()
        self.panes.ask([*PLAN_PANES, *CURVE_PANES], lambda: self._latest.submit((self._requests, chosen)))

    # --- work, in a thread -----------------------------------------------------------------------------------------------

    def _work(self, request: tuple[int, dict[str, Any]], newest: Newest) -> None:
        asked, chosen = request
        if not _stays(newest, REST_S):
            return
        began = time.perf_counter()
        try:
            planned = self.what_if.plan(Settings(**chosen))
        except (InputError, PlanningError) as error:
            if newest():
                self._failed(error)
            return
        if not newest():
            return
        with self._showing:
            before, self.planned = self.planned, planned
            self.settings, self.error, self._shown = planned.settings, None, asked
            self._show_plan(planned, before, time.perf_counter() - began, asked)
        self.panes.answered(newest, CURVE_PANES)
        alternatives = self.what_if.alternatives(planned, newest)
        if alternatives is None or not newest():
            return
        front = self.what_if.front(planned)
        if not newest():
            return
        self.alternatives, self.front = alternatives, front
        self.panes.draw("plane", plane(planned, alternatives, front), asked)
        self.panes.answered(newest, ())

    def _failed(self, error: Exception) -> None:
        """Show the error instead of the numbers; the figures stay grey, as they show other settings."""
        self.error = error
        self.panes.put("facts", html_parts.problem(f"{type(error).__name__}: {error}"))
        self.panes.grey([name for name in (*PLAN_PANES, *CURVE_PANES) if name != "facts"])

    def _show_plan(self, planned: WhatIfPlan, before: WhatIfPlan | None, seconds: float, asked: int) -> None:
        last = len(planned.plan.actors) - 1
        self.actor = min(self.actor, last) if self.response is None else planned.executed_on(self.response)
        self._show_timeline(planned, asked)  # first, as the page draws it while the rest is made
        time.sleep(SENDING_S)
        self.panes.put("facts", plan_cards(planned, before, seconds))
        self._show_actor(planned, asked)
        self.panes.put("response", response_html(self.what_if, planned, self.actor, self.response))
        code, text = self.as_code()
        self.panes.put("copy", html_parts.copies([("Copy as Python", "as-python", code), ("Copy as JSON", "as-json", text)]))

    def _show_timeline(self, planned: WhatIfPlan, asked: int) -> None:
        figure = plot_timeline(planned.trace, self.what_if.step, selected=self.response)
        self.panes.draw("timeline", figure.update_layout(title_font_size=13), asked)

    def _show_actor(self, planned: WhatIfPlan, asked: int) -> None:
        self.panes.put("actors", actors_table(planned.actors, self.actor))
        figure = plot_responses(planned.trace, f"actor-{self.actor}", self.what_if.step, selected=self.response)
        self.panes.draw("responses", figure, asked)

    # --- clicks and keys --------------------------------------------------------------------------------------------------

    def _clicked(self, pane: str, point: dict[str, Any]) -> None:
        """Handle a click: a bar of the timeline chooses an actor, a bar of its responses shows that response."""
        if pane == "timeline" and isinstance(point["y"], int | float) and self.planned is not None:
            holders = step_timeline(self.planned.trace, self.what_if.step, max_spans=0).holders
            holder = holders[min(max(0, round(point["y"])), len(holders) - 1)]
            if holder.startswith("actor-"):
                self.show_actor(int(holder.removeprefix("actor-")))
        elif pane == "responses" and isinstance(point["customdata"], int):
            self.show_response(point["customdata"])

    def _chosen(self, pane: str, number: int) -> None:
        """Handle a button: an actor of the table, or the response before or after the one that is shown."""
        (self.show_actor if pane == "actors" else self.show_response)(number)

    def show_actor(self, actor: int) -> None:
        """Show the responses of an actor of the plan; where there is no such actor, those of the nearest one."""
        with self._showing:
            if self.planned is not None:
                actor = min(max(0, actor), len(self.planned.plan.actors) - 1)
                self._select(self.planned, actor, None, response_html(self.what_if, self.planned, actor, None))

    def show_response(self, response: int) -> None:
        """Show a response of the step by its index: texts, history, prediction, and the reason for its assignment.

        All panes mark it, also those of later plans, until another response or an actor is chosen.

        Raises:
            IndexError: there is no such response; the response shown before stays.
        """
        with self._showing:
            if self.planned is not None:
                html = response_html(self.what_if, self.planned, self.actor, response)
                self._select(self.planned, self.planned.executed_on(response), response, html)

    def _select(self, planned: WhatIfPlan, actor: int, response: int | None, html: Markup) -> None:
        self.actor, self.response = actor, response
        self._show_timeline(planned, self._shown)
        self._show_actor(planned, self._shown)
        self.panes.put("response", html)

    def as_code(self) -> tuple[str, str]:
        """Return the state of the controls as Python code and as JSON."""
        what_if, run = self.what_if, self.what_if.run
        code = self.settings.to_python(run.trace.source, what_if.step, what_if.scale, run.max_response_tokens)
        return code, self.settings.to_json()


def _sizes(profiles: Mapping[int, str]) -> list[tuple[str, int]]:
    """Return the choices of GPUs per actor: those that the plan chooses, where there are several, and each size alone."""
    alone = [(str(gpus), gpus) for gpus in sorted(profiles)]
    return [("as planned", ANY_SIZE), *alone] if len(alone) > 1 else alone


def _stays(newest: Newest, seconds: float) -> bool:
    """Wait, and return whether the request was the newest all the time."""
    until = time.monotonic() + seconds
    while newest() and time.monotonic() < until:
        time.sleep(0.002)
    return newest()


def _as_read(value: float) -> float:
    """Return the number as a slider displays it: steps of 0.05 add up to 0.30000000000000004."""
    return float(f"{value:.12g}")
