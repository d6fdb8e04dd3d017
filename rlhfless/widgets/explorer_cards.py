"""The cards of ``explore``: the numbers of a plan, each against the static schedule and against the plan before the last move.

Input are planned runs. A sign and words, not colour alone, say which change is better.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from rlhfless.plots.style import number, signed_share
from rlhfless.system.templates import Markup
from rlhfless.widgets import html as html_parts
from rlhfless.widgets.what_if import PlannedRun

MINUS, UNKNOWN = "\u2212", "unknown"
AGAINST_STATIC, AGAINST_LAST = "against static", "against the last move"


class Meter(NamedTuple):
    """One number of a plan.

    Attributes:
        name: label of its card. value: of a plan, given the plan whose lower bound counts. shown: the number as text.
        change: text of the change from another number to this one. less_is_better: whether a change is good or bad at all.
    """

    name: str
    value: Callable[[PlannedRun, PlannedRun], float]
    shown: Callable[[float], str]
    change: Callable[[float, float], str]
    less_is_better: bool = True


def plan_cards(planned: PlannedRun, static: PlannedRun, before: PlannedRun | None) -> Markup:
    """Return the cards of a plan, without its cost where GPUs are free, and how long planning took.

    Args:
        static: the static schedule on the same cluster. before: the plan that was shown before it; None for the first one.
    """
    cards = []
    free = planned.settings.setting.cluster.usd_per_gpu_hour == 0
    for meter in METERS:
        if free and meter.name == "cost":
            continue
        value = meter.value(planned, planned)
        changes = [_change(meter, value, meter.value(static, planned), AGAINST_STATIC)]
        if before is not None:
            changes.append(_change(meter, value, meter.value(before, before), AGAINST_LAST))
        cards.append(html_parts.Card(meter.name, meter.shown(value), changes))
    return html_parts.cards(cards) + html_parts.paragraph(f"Planned and executed in {number(1e3 * planned.seconds, 'ms')}.")


def gap(run: PlannedRun, of: PlannedRun) -> float:
    """Return the share of a plan's objective that lies above the lower bound of the plan ``of``; NaN where that has none."""
    bound, reference = of.plan.lower_bound, of.plan.reference
    if bound is None or reference is None:
        return math.nan
    objective = of.settings.setting.objective
    value = objective.value(run.plan.makespan_s, run.plan.gpu_seconds, reference.norms(objective.cost))
    return max(0.0, 1 - bound / value) if value > 0 else 0.0


def _change(meter: Meter, value: float, other: float, against: str) -> tuple[str, str]:
    if math.isnan(value) or math.isnan(other):
        return f"{UNKNOWN} {against}", ""
    text = meter.change(value, other)
    if text == meter.change(other, other):
        return f"unchanged {against}", ""
    return f"{text} {against}", ("better" if value < other else "worse") if meter.less_is_better else ""


def _share(value: float, other: float) -> str:
    return signed_share(value / other - 1 if other else 0.0 if value == other else math.inf) or "from 0"


def _count(value: float, other: float) -> str:
    return f"{value - other:+.0f}".replace("-", MINUS)


def _points(value: float, other: float) -> str:
    return f"{100 * (value - other) + 0.0:+.2f} points".replace("-", MINUS)


METERS = (
    Meter("actors", lambda run, of: len(run.plan.actors), lambda value: f"{value:.0f}", _count, less_is_better=False),
    Meter("executed time", lambda run, of: run.time_s, lambda value: number(value, "s"), _share),
    Meter("planned time", lambda run, of: run.plan.makespan_s, lambda value: number(value, "s"), _share),
    Meter("GPU-seconds", lambda run, of: run.gpu_seconds, lambda value: number(value, digits=4), _share),
    Meter("cost", lambda run, of: run.cost_usd, lambda value: number(value, "USD"), _share),
    Meter("gap to the lower bound", gap, lambda value: UNKNOWN if math.isnan(value) else f"{value:.2%}", _points),
)
