"""The cards of ``explore``: the numbers of an executed plan.

Each stands against the static schedule, a random split, and the plan before the last move. A sign and words, not
colour alone, say which change is better. Input are planned runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

from rlhfless.plots.style import counted, number, signed_share
from rlhfless.system.templates import Markup
from rlhfless.widgets import html as html_parts
from rlhfless.widgets.what_if import PLANNER, REFERENCES, WhatIfPlan

MINUS, UNKNOWN = "\u2212", "unknown"
AGAINST_LAST = "against the last move"


class Meter(NamedTuple):
    """One number of an executed plan.

    Attributes:
        name: label of its card. value: of a row of ``WhatIfPlan.table``. shown: the number as text.
        change: text of the change from another number to this one. less_is_better: whether a change is good or bad at all.
    """

    name: str
    value: Callable[[pd.Series], float]
    shown: Callable[[float], str]
    change: Callable[[float, float], str]
    less_is_better: bool = True


def plan_cards(planned: WhatIfPlan, before: WhatIfPlan | None, seconds: float) -> Markup:
    """Return the cards of a plan, without its cost where GPUs are free, and how long planning took.

    Args:
        before: the plan that was shown before it; None for the first one. seconds: that planning and simulation took.
    """
    cards = []
    free = planned.setting.cluster.usd_per_gpu_hour == 0
    against = {f"against {name}": planned.executed_under(name) for name in REFERENCES}
    if before is not None:
        against[AGAINST_LAST] = before.executed
    for meter in METERS:
        if free and meter.name == "cost":
            continue
        value = meter.value(planned.executed)
        changes = [_change(meter, value, meter.value(other), words) for words, other in against.items()]
        if meter.name == ABOVE_BOUND:
            changes += [(losing_to(planned, name), "worse") for name in REFERENCES if planned.worse_than(name)]
        cards.append(html_parts.Card(meter.name, meter.shown(value), changes))
    took = f"planned and simulated in {number(seconds, 's')}"
    moved = moved_in_words(planned)
    return html_parts.cards(cards) + html_parts.paragraph(
        f"Policy {PLANNER}, simulated with the true lengths; {took}. Times: {planned.times}.{moved and f' {moved}'}"
    )


def moved_in_words(planned: WhatIfPlan) -> str:
    """Return why the predicted time is not that of what ran, where the plan's rule moved responses; else the empty text."""
    moves = int(planned.executed["moves"])
    if planned.plan.rule is None or moves == 0:
        return ""
    return (
        f"The predicted time is that of the plan by predicted lengths, before its rule {planned.plan.rule.name!r} moves "
        f"responses; while the step ran, it moved {counted(moves, 'response')}."
    )


def losing_to(planned: WhatIfPlan, policy: str) -> str:
    """Return by how much a plan is worse than a reference: weighed, in time and in cost."""
    own, other = planned.executed, planned.executed_under(policy)
    time, cost = (_share(float(own[name]), float(other[name])) for name in ("time_s", "gpu_seconds"))
    weight = planned.setting.objective.time_weight
    return f"loses to {policy}, weighed at {weight:g}: {signed_share(planned.worse_than(policy))} ({time} time, {cost} cost)"


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
    return f"{100 * (value - other) + 0.0:+.1f} points".replace("-", MINUS)


def _column(name: str) -> Callable[[pd.Series], float]:
    return lambda row: float(row[name])


def _above_bound(row: pd.Series) -> float:
    """Return the share by which the GPU-seconds lie above the bound; NaN where that is 0 or unknown."""
    bound = float(row["bound_gpu_seconds"])
    return float(row["gpu_seconds"]) / bound - 1 if bound > 0 else math.nan


ABOVE_BOUND = "above the lower bound"
METERS = (
    Meter("actors", _column("actors"), lambda value: f"{value:.0f}", _count, less_is_better=False),
    Meter("time", _column("time_s"), lambda value: number(value, "s"), _share),
    Meter("predicted time", _column("predicted_makespan_s"), lambda value: number(value, "s"), _share),
    Meter("GPU-seconds", _column("gpu_seconds"), lambda value: number(value, digits=4), _share),
    Meter("cost", _column("cost_usd"), lambda value: number(value, "USD"), _share),
    Meter(ABOVE_BOUND, _above_bound, lambda value: UNKNOWN if math.isnan(value) else f"{value:.1%}", _points),
)
"""The last one is the cost of the executed step above the least that any policy can take in the same time."""
