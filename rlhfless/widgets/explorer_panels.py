"""The panes of ``explore`` as figures and HTML: the time-cost plane, the table of actors, and the details of one response.

Input is a plan with its results. Text from logs is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless.plots import plot_plane
from rlhfless.plots.style import number
from rlhfless.simulate import Comparison
from rlhfless.system.templates import Markup
from rlhfless.widgets import html as html_parts
from rlhfless.widgets.response_reason import response_details
from rlhfless.widgets.what_if import PLANNER, WhatIf, WhatIfPlan
from solver.bounds.schedules import CLOSED_FORM, CONFIGURATION_LP
from solver.generation.pareto_front import Front

HINT = "Click a bar of the timeline to see that actor's responses. Click a response to see why it was assigned to this actor."
LEGEND_PX = 96  # of ticks, title of the axis, and two lines of legend below it
BOUND_POINTS = 48  # each takes about a millisecond, and a slider is waiting


def plane(planned: WhatIfPlan, alternatives: Comparison, front: Front) -> go.Figure:
    """Return the time-cost plane with the plan, the other policies, the front and the bound, all for the true lengths.

    Args: what ``WhatIf.plan``, ``WhatIf.alternatives`` and ``WhatIf.front`` return.
    """
    settings, results = planned.settings, alternatives.table
    names = {PLANNER: f"{PLANNER} (this plan)", "rlhfless": f"rlhfless (tau {settings.tau:g})"}
    seen = results["time_s"]
    times = np.linspace(0.5 * seen.min(), 1.3 * seen.max(), BOUND_POINTS)
    least, bound = planned.bound, None
    method = "none, because the actors of this plan differ in size"
    if least is not None:
        bound = (times, [least.gpu_seconds(float(time_s)) for time_s in times])
        method = results.set_index("policy").loc[PLANNER, "bound_method"]
    method = method.replace(CLOSED_FORM, "by a formula").replace(CONFIGURATION_LP, "by a linear programme")
    note = f"time weight {settings.time_weight:g}, {len(seen)} policies, lower bound: {method}"
    note += "<br>all computed with the true lengths"
    figure = plot_plane(results, front, bound, title="Time against cost", note=note, names=names)
    below = {"orientation": "h", "x": 0, "xanchor": "left", "y": 0, "yref": "container", "yanchor": "bottom"}
    return figure.update_layout(height=460, margin_b=LEGEND_PX, title_font_size=13, legend=below)


def actors_table(actors: pd.DataFrame, chosen: int) -> Markup:
    """Return the plan's actors as HTML, each selectable; ``chosen`` is the actor whose responses are shown."""
    rows = [
        (
            html_parts.Choice(f"actor-{a.actor}", a.actor, a.actor == chosen), a.gpus, f"{a.responses:,}", f"{a.prompts:,}",
            f"{a.shortest_tokens:,} to {a.longest_tokens:,}",
            number(a.predicted_s), number(a.done_s), number(a.busy_gpu_s),
        )
        for a in actors.itertuples()
    ]  # fmt: skip
    head = (
        "actor",
        "GPU ids",
        "responses assigned",
        "prompts",
        "predicted tokens",
        "planned end (s)",
        "executed end (s)",
        "GPU-seconds",
    )
    return html_parts.table(head, rows, "Actors of this plan")


def neighbours(planned: WhatIfPlan, actor: int, response: int | None) -> Iterator[html_parts.Choice]:
    """Return the actor's responses before and after the given one, in joining order; its first response for None."""
    rows = planned.trace.rollouts
    order = rows[rows["actor"] == f"actor-{actor}"].sort_values(["start_s", "end_s"], kind="stable").index.tolist()
    if response is None:
        yield from (html_parts.Choice(f"first response of actor-{actor}", first) for first in order[:1])
        return
    at = order.index(response)
    yield html_parts.Choice("previous response", order[max(0, at - 1)])
    yield html_parts.Choice("next response", order[min(len(order) - 1, at + 1)])


def response_html(what_if: WhatIf, planned: WhatIfPlan, actor: int, response: int | None) -> Markup:
    """Return the details of a response as HTML; texts of the log are escaped. Without a response: how to choose one."""
    if response is None:
        return html_parts.paragraph(HINT) + Markup().join(map(html_parts.choice, neighbours(planned, actor, None)))
    details = response_details(what_if, planned, response)
    done_by = planned.executed_on(response)
    parts = [
        *map(html_parts.choice, neighbours(planned, done_by, response)),
        html_parts.response_name(details.prompt_id, details.sample),
        html_parts.paragraph(
            f"Predicted {details.predicted_tokens:,} tokens, generated {details.response_tokens:,}, "
            f"from {number(details.start_s, 's')} to {number(details.end_s, 's')} of the step."
            + (f" It migrated from actor {details.actor} to actor {done_by}." if done_by != details.actor else "")
        ),
        html_parts.paragraph(details.reason),
    ]
    if len(details.elsewhere):
        parts.append(
            html_parts.table(
                ("actor", "time of the step (s)", "GPU-seconds", "change of weighted time and cost"),
                [
                    (
                        f"actor-{int(r.actor)}",
                        number(r.time_s, digits=4),
                        number(r.gpu_seconds, digits=4),
                        f"{round(r.change, 5) + 0.0:+.3%}",
                    )
                    for r in details.elsewhere.itertuples()
                ],
                "If this response were on another actor (by predicted lengths, before migrations)",
            )
        )
    if len(details.history):
        parts.append(
            html_parts.table(
                ("earlier step", "samples", "mean tokens", "longest (tokens)"),
                [
                    (f"step {int(r.step)}", int(r.samples), number(r.mean_tokens), f"{int(r.longest_tokens):,}")
                    for r in details.history.itertuples()
                ],
                "Earlier responses to this prompt",
            )
        )
    else:
        parts.append(html_parts.paragraph("The prompt is new, so its predicted length is a guess."))
    parts += [html_parts.quoted(name, text) for name, text in details.texts.items()]
    return Markup().join(parts)
